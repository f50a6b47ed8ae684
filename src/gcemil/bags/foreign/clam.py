"""CLAM: FEATURES/{h5_files/<slide>.h5, pt_files/<slide>.pt}, coordinates in RESULTS/patches.

CLAM's feature files have no attributes. The patch size is in the coords file alone: level-0
size = patch_size * custom_downsample * downsample of patch_level. Without it, it is the stride.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gcemil.bags import store
from gcemil.bags.foreign.source import (
    FeatureLayout,
    ForeignSlide,
    ReadOptions,
    Rows,
    as_float,
    bag_shape,
    check_features,
    infer_patch_size,
    read_bag_coords,
    read_plain_slide,
    squeeze_bag,
)
from gcemil.errors import CohortError, StoreError
from gcemil.files import require_file
from gcemil.units import LevelZeroPx


def _find_files(source: Path, options: ReadOptions) -> tuple[Path, list[Path]]:
    """HDF5 files first; a .pt file only for a slide that has no .h5."""
    h5_dir = source / "h5_files" if (source / "h5_files").is_dir() else source
    pt_dir = source / "pt_files" if (source / "pt_files").is_dir() else source
    h5 = {path.stem: path for path in h5_dir.glob("*.h5")}
    pt = {path.stem: path for path in pt_dir.glob("*.pt") if path.stem not in h5}
    return source, [(h5 | pt)[stem] for stem in sorted(h5 | pt)]


def _find_patch_size(attributes: store.Attributes) -> LevelZeroPx | None:
    factors = attributes.get("downsample")
    # The axes are the same up to rounding.
    first = factors[0] if isinstance(factors, list) and factors else factors
    stated = {"custom_downsample": 1, **attributes, "downsample": first}
    names = ("patch_size", "downsample", "custom_downsample")
    size, downsample, custom = (store.stated_number(stated, name) for name in names)
    if not (size and downsample and custom):
        return None
    return LevelZeroPx(max(1, round(size * downsample * custom)))


def _read_slide(path: Path, slide_id: str, options: ReadOptions) -> ForeignSlide:
    """One file; a tensor's coordinates, and the patch size, come from a coords folder nearby."""
    coords_file = _find_coords_file(path, options)
    files: tuple[Path, ...] = (path,)
    stated, notes = None, []
    if coords_file is not None:
        files = (path, coords_file)
        stated = _find_patch_size(store.attributes(coords_file, "coords"))
        where = coords_file.parent
        notes = [f"Patch size read from the attributes of the coords files in {where}."]
    if path.suffix.lower() != ".pt":
        slide = read_plain_slide(path, slide_id, options, stated)
        notes = [*slide.notes, *(notes if stated else [])]
        return replace(slide, notes=tuple(notes), attributes_files=files)
    shape = bag_shape(read_tensor_shape(path))
    check_features(shape, np.dtype(np.float32), path)
    slide = ForeignSlide(
        slide_id,
        path,
        shape[0],
        shape[1],
        options.patch_size or stated,
        partial(_load_rows, path, coords_file),
        has_coords=coords_file is not None,
        notes=tuple(notes if stated else []),
        attributes_files=files[1:],
    )
    return slide if coords_file is None else infer_patch_size(slide, coords_file)


def _load_rows(path: Path, coords_file: Path | None) -> Rows:
    """Rows of a .pt file with the coordinates of its coords file, which are in the same order."""
    tensor = _load_tensor(path)
    half = str(tensor.dtype) == "torch.float16"
    features = as_float(squeeze_bag((tensor if half else tensor.float()).numpy().copy()))
    if coords_file is None:
        return features, None
    coords = read_bag_coords(coords_file)
    if len(coords) != len(features):
        raise CohortError(
            f"{path}: {len(features)} feature rows, but {coords_file} has {len(coords)} "
            "coordinates. Extract the slide again."
        )
    return features, coords


def read_tensor_shape(path: Path) -> tuple[int, ...]:
    """Shape of the tensor in a .pt file."""
    return tuple(_load_tensor(path).shape)


def _load_tensor(path: Path) -> Any:
    """The bare tensor of a .pt file, loaded without unpickling anything else."""
    import torch  # the folder is read without torch until a .pt file is met

    require_file(path)
    try:
        # Only the zip format can be mapped; the old one is read whole.
        loaded = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:
        # A damaged pickle makes torch raise almost anything, KeyError and AttributeError among
        # them.
        raise StoreError(
            f"{path} cannot be read as a tensor: it is damaged, or holds Python objects, "
            "which are never unpickled."
        ) from error
    if not isinstance(loaded, torch.Tensor) or not loaded.is_floating_point():
        kind = loaded.dtype if isinstance(loaded, torch.Tensor) else type(loaded).__name__
        raise StoreError(
            f"{path} holds a {kind}, not one tensor of floating point features. "
            "Save the features alone."
        )
    return loaded


def _find_coords_file(path: Path, options: ReadOptions) -> Path | None:
    """RESULTS/patches/<slide>.h5 when the features lie beside it, as CLAM puts them."""
    parents = path.parents[:4]
    folders = (
        [folder / "patches" for folder in parents]
        if options.coords_dir is None
        else [options.coords_dir]
    )
    candidates = (folder / f"{path.stem}.h5" for folder in folders if folder.is_dir())
    return next((file for file in candidates if file.is_file() and file != path), None)


LAYOUT = FeatureLayout(
    tool="clam",
    name="CLAM",
    title="CLAM features, or gcemil's own",
    find_files=_find_files,
    read_slide=_read_slide,
    assumes="CLAM coordinates are taken as level-0 pixels of the top-left corner, x before y.",
    owns_folder=lambda folder, names: bool(names & {"h5_files", "pt_files"}),
    owns_file=lambda datasets, attributes: "features" in datasets,
    # A bags_config.json makes bare tensors slideflow's.
    owns_loose=lambda names: (
        "bags_config.json" not in names and any(name.endswith(".pt") for name in names)
    ),
)
