"""Files laid out exactly as CLAM, TRIDENT, STAMP and torchmil write them."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import torch

DIM = 8


def grid(n: int, step: int, *, origin: tuple[int, int] = (0, 0)) -> np.ndarray:
    """n patches of a grid four patches wide."""
    index = np.arange(n)
    return np.stack([index % 4, index // 4], axis=1) * step + np.array(origin)


def rows(n: int, *, dim: int = DIM, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, n]).normal(size=(n, dim)).astype(np.float32)


def write_table(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def clam_features(root: Path, slide: str, coords: np.ndarray, *, dim: int = DIM) -> Path:
    """FEATURES/h5_files/<slide>.h5: resizable, one row per chunk, no attributes."""
    path = root / "h5_files" / f"{slide}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "features", data=rows(len(coords), dim=dim), chunks=(1, dim), maxshape=(None, dim)
        )
        file.create_dataset(
            "coords", data=coords.astype(np.int32), chunks=(1, 2), maxshape=(None, 2)
        )
    return path


def clam_tensor(root: Path, slide: str, n: int) -> Path:
    """FEATURES/pt_files/<slide>.pt: a bare tensor."""
    path = root / "pt_files" / f"{slide}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.from_numpy(rows(n)), path)
    return path


def clam_coords(
    folder: Path, slide: str, coords: np.ndarray, *, patch_size: int, downsample: float
) -> Path:
    """RESULTS/patches/<slide>.h5 with the attributes that hold the patch size."""
    path = folder / f"{slide}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "coords", data=coords.astype(np.int64), chunks=(1, 2), maxshape=(None, 2)
        )
        data.attrs["patch_size"] = patch_size
        data.attrs["patch_level"] = 1
        data.attrs["downsample"] = np.array([downsample, downsample])
        data.attrs["downsampled_level_dim"] = np.array([1000, 1000])
        data.attrs["level_dim"] = np.array([4000, 4000])
        data.attrs["name"] = slide
        data.attrs["save_path"] = str(folder)
    return path


def trident_features(
    job: Path,
    slide: str,
    coords: np.ndarray,
    *,
    encoder: str = "uni_v1",
    level0: int | None = 512,
    run: str = "20x_256px_0px_overlap",
    magnifications: tuple[object, object] = (40, 20),
    dim: int = DIM,
) -> Path:
    """<job>/<run>/features_<encoder>/<slide>.h5; an empty slide is (0, D) and (0, 2)."""
    path = job / run / f"features_{encoder}" / f"{slide}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        features = file.create_dataset(
            "features", data=rows(len(coords), dim=dim), chunks=(1, dim), maxshape=(None, dim)
        )
        features.attrs.update({"name": slide, "savetodir": str(job), "encoder": encoder})
        placed = file.create_dataset(
            "coords", data=coords.astype(np.int64), chunks=(1, 2), maxshape=(None, 2)
        )
        placed.attrs.update(
            {
                "patch_size": 256,
                "level0_magnification": magnifications[0],
                "target_magnification": magnifications[1],
                "overlap": 0,
                "name": slide,
                "savetodir": str(job),
                "level0_width": 9000,
                "level0_height": 9000,
            }
        )
        if level0 is not None:
            placed.attrs["patch_size_level0"] = level0
    return path


def stamp_features(
    folder: Path, slide: str, coords_um: np.ndarray, *, attributes: dict[str, object] | None = None
) -> Path:
    """<out>/<extractor>-<hash>/<slide>.h5 with feats in half precision and micrometres."""
    path = folder / f"{slide}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    root = {
        "stamp_version": "2.3.0",
        "extractor": "uni2",
        "unit": "um",
        "tile_size_um": 256.0,
        "tile_size_px": 224,
        "code_hash": "0a1b2c3d",
        "feat_type": "tile",
    }
    with h5py.File(path, "w") as file:
        file["feats"] = rows(len(coords_um)).astype(np.float16)
        file["coords"] = coords_um.astype(np.float32)
        file.attrs.update(root if attributes is None else attributes)
    return path


def torchmil_set(root: Path, bags: dict[str, tuple[np.ndarray, int, list[int]]]) -> Path:
    """root/patches_512/{features/features_UNI,labels,patch_labels,coords}/<bag>.npy and root/splits.csv."""
    base = root / "patches_512"
    folders = {
        name: base / name for name in ("features/features_UNI", "labels", "patch_labels", "coords")
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for bag, (coords, label, patch_labels) in bags.items():
        np.save(folders["features/features_UNI"] / f"{bag}.npy", rows(len(coords)))
        np.save(folders["labels"] / f"{bag}.npy", np.array([label]))
        np.save(folders["patch_labels"] / f"{bag}.npy", np.array(patch_labels))
        np.save(folders["coords"] / f"{bag}.npy", coords)
    write_table(
        root / "splits.csv",
        "bag_name,split",
        *(f"{bag},{'test' if index % 2 else 'train'}" for index, bag in enumerate(bags)),
    )
    return root


def stamp_splits(path: Path, *folds: tuple[list[str], list[str]]) -> Path:
    splits = [{"train_patients": train, "test_patients": test} for train, test in folds]
    path.write_text(json.dumps({"splits": splits}), encoding="utf-8")
    return path
