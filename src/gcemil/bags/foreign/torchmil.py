"""torchmil: one array per bag in parallel folders: features, labels, inst_labels, coords.

Either those four folders, or the published sets' root/patches_<size>/{features/features_<encoder>,
labels,patch_labels,coords} with root/splits.csv. An .h5 file holds one dataset, named after its
folder's role.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.bags.bag import CoordRows, connected_regions, grid_stride, patch_cells
from gcemil.bags.foreign.source import (
    UNKNOWN_ENCODER,
    FeatureLayout,
    ForeignSlide,
    Names,
    ReadOptions,
    Rows,
    Truth,
    as_float,
    check_features,
    plain_ids,
)
from gcemil.bags.store import check_coords
from gcemil.errors import CohortError, StoreError, UsageError
from gcemil.files import require_file
from gcemil.units import LevelZeroPx


def _find_features(source: Path, encoder: str | None) -> Path:
    """The folder of the features; one encoder and one patch size must be left."""
    features: list[Path] = []
    for base in sorted(path for path in source.glob("patches_*") if path.is_dir()) or [source]:
        named = [path for path in sorted(base.glob("features/features_*")) if path.is_dir()]
        if named:
            features += [one for one in named if encoder in (None, _name_encoder(one))]
        elif (base / "features").is_dir():
            features.append(base / "features")
        elif any(base.glob("*.npy")):
            features.append(base)
    if len(features) != 1:
        names = ", ".join(str(path.relative_to(source)) for path in features) or "none"
        raise UsageError(
            f"{source} must hold one torchmil features folder, found: {names}. Name the encoder."
        )
    return features[0]


def _name_encoder(features: Path) -> str:
    """features_<encoder>; unknown for a folder of another name."""
    is_named = features.name.startswith("features_")
    return features.name.removeprefix("features_") if is_named else UNKNOWN_ENCODER


def _find_base(features: Path) -> Path:
    """The folder that holds the folders of features, labels and coords."""
    outer = features.parent if features.name.startswith("features_") else features
    return outer.parent if outer.name == "features" else outer


def _find_partner(path: Path, *names: str) -> Path | None:
    """The file of the same bag in a parallel folder of one of these names, where there is one."""
    base = _find_base(path.parent)
    folder = next((base / name for name in names if (base / name).is_dir()), None)
    if folder is None:
        return None
    partner = folder / path.name
    if not partner.is_file():
        raise CohortError(
            f"{partner} does not exist, though {path} does. Complete the folder or remove both."
        )
    return partner


def _list_arrays(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in {".npy", ".h5"})


def read_bag_labels(source: Path, encoder: str | None = None) -> dict[str, str]:
    """The label of every bag, from the labels folder."""
    folder = _find_base(_find_features(source, encoder)) / "labels"
    if not folder.is_dir():
        raise UsageError(f"{source} has no labels folder. Give a table with --labels.")
    files = _list_arrays(folder)
    ids = plain_ids((path.name for path in files), where=str(folder))
    labels = {}
    for path in files:
        values = np.ravel(read_array(path, "labels"))
        if len(values) != 1:
            raise CohortError(f"{path}: a bag has one label, this file has {len(values)}.")
        labels[ids[path.name]] = str(float(values[0])).removesuffix(".0")
    return labels


def _read_truth(slide: ForeignSlide, patch_labels: Path) -> Truth:
    evidence = (np.ravel(read_array(patch_labels, "inst_labels")) > 0).astype(np.uint8)
    if len(evidence) != slide.n_patches:
        raise CohortError(
            f"{patch_labels}: {len(evidence)} patch labels for {slide.n_patches} patches of "
            f"'{slide.slide_id}'."
        )
    coords = slide.load()[1]
    if coords is None:
        return {"evidence": evidence}
    cells = patch_cells(coords, slide.patch_size or 1)
    return {"evidence": evidence, "region": connected_regions(cells, evidence > 0).astype(np.int32)}


def read_array(path: Path, key: str) -> NDArray[Any]:
    """The array of a .npy file, or of the only dataset of an .h5 file."""
    if path.suffix == ".h5":
        datasets = store.describe(path)
        return store.read(
            path, key if key in datasets or len(datasets) != 1 else next(iter(datasets))
        )
    require_file(path)
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        # The header of a damaged file is parsed as Python, which fails in its own ways.
        raise StoreError(
            f"{path} cannot be read as a NumPy array ({error}). Write it again."
        ) from error
    if not store.is_number_type(array.dtype):
        raise StoreError(
            f"{path} holds {array.dtype}, not real numbers. Write it again as numbers."
        )
    return array


def _read_slide(path: Path, slide_id: str, options: ReadOptions) -> ForeignSlide:
    """One bag; the level of the size in patches_<size> is unknown."""
    features = read_array(path, "features")
    check_features(features.shape, features.dtype, path)
    coords_file = _find_partner(path, "coords")
    patch_labels = _find_partner(path, "inst_labels", "patch_labels")
    stated = _find_base(path.parent).name.removeprefix("patches_")
    patch_px = int(stated) if stated.isdigit() else None
    size, scale = _read_grid(coords_file, patch_px, options.patch_size)
    notes = []
    if coords_file is not None:
        notes.append("torchmil names no level of its coordinates: level-0 pixels are assumed.")
    if patch_labels is not None:
        notes.append("Patch labels above 0 are written as truth/, with their connected regions.")
    slide = ForeignSlide(
        slide_id,
        path,
        features.shape[0],
        features.shape[1],
        size,
        partial(_load_rows, path, coords_file, scale),
        has_coords=coords_file is not None,
        notes=tuple(notes),
        encoder=_name_encoder(path.parent),
    )
    if patch_labels is None:
        return slide
    return replace(slide, read_truth=partial(_read_truth, slide, patch_labels))


def _read_grid(
    coords_file: Path | None, patch_px: int | None, given: int | None
) -> tuple[LevelZeroPx | None, int]:
    """Patch size and the factor for the coordinates: a stride of 1 counts patches, not pixels."""
    if coords_file is None:
        return None, 1
    stride = grid_stride(_read_coords(coords_file, 1))
    if stride != 1:
        size = given or (patch_px if stride is None else round(stride))
        return (None if size is None else LevelZeroPx(size)), 1
    size = given or patch_px
    if size is None:
        raise UsageError(
            f"{coords_file} counts patches, not pixels. Give the patch size with --patch-size."
        )
    return LevelZeroPx(size), size


def _load_rows(path: Path, coords_file: Path | None, scale: int) -> Rows:
    features = as_float(np.array(read_array(path, "features")))
    if coords_file is None:
        return features, None
    coords = _read_coords(coords_file, scale)
    if len(coords) != len(features):
        raise CohortError(
            f"{coords_file}: coords of shape {coords.shape} for {len(features)} feature rows "
            f"of {path}."
        )
    return features, coords


def _read_coords(path: Path, scale: int) -> CoordRows:
    return check_coords(np.rint(read_array(path, "coords").astype(np.float64)) * scale, path)


def _owns_folder(folder: Path, names: Names) -> bool:
    if any(re.match(r"patches_\d+$", name) or name.endswith(".npy") for name in names):
        return True
    return "features" in names and bool(names & {"labels", "inst_labels", "patch_labels", "coords"})


LAYOUT = FeatureLayout(
    tool="torchmil",
    name="torchmil",
    title="torchmil bags",
    find_files=lambda source, options: (
        source,
        _list_arrays(_find_features(source, options.encoder)),
    ),
    read_slide=_read_slide,
    assumes="torchmil features are converted, so they are copied.",
    owns_folder=_owns_folder,
    read_labels=read_bag_labels,
)
