"""Patch coordinates on disk as TRIDENT lays them out: `<run>/patches/<slide>_patches.h5`, attributes on `coords`.

`patch_size` counts pixels at the target magnification, `patch_size_level0` those of the slide. Magnifications are nominal;
what counts are `level0_mpp` and `target_mpp`, which TRIDENT does not write and other readers pass over.

Coordinates count from the corner of the whole file, as TRIDENT's and OpenSlide's do. QuPath and our thumbnails show the scanned
part only; `bounds_x`, `bounds_y`, `bounds_width` and `bounds_height` say where in the file that part lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcemil.bags import store
from gcemil.bags.arrays import read_coords
from gcemil.errors import StoreError
from gcemil.slides.grid import PatchGrid, PatchSettings
from gcemil.slides.reader import SlideReader
from gcemil.slides.resolution import magnification

SUFFIX = "_patches.h5"
PATCH_NUMBERS = ("level0_mpp", "target_mpp", "min_tissue", "patch_size", "overlap")
"""Attributes of the coordinates without which patches cannot be read from a slide."""


@dataclass(frozen=True)
class PatchOrigin:
    """What a patch file was made from; the same again means that nothing needs to be done."""

    slide: str
    """Fingerprint of the slide file."""
    rules: str
    """Hash of the settings, and of the mask where one was given."""


def patch_file(out: Path, settings: PatchSettings, slide_id: str) -> Path:
    return out / settings.folder_name / "patches" / f"{slide_id}{SUFFIX}"


def write_patch_file(
    path: Path, grid: PatchGrid, slide: SlideReader, slide_id: str, origin: PatchOrigin
) -> None:
    """Coordinates and attributes of one slide in a file that appears whole or not at all."""
    settings = grid.settings
    width, height = slide.dimensions
    attributes: dict[str, str | int | float | bool] = {
        "patch_size": settings.patch_px,
        "patch_size_level0": int(grid.patch_size_level0),
        "level0_magnification": magnification(grid.mpp),
        "target_magnification": magnification(settings.target_mpp),
        "overlap": settings.overlap_px,
        "name": slide_id,
        "savetodir": path.parent.parent.name,
        "level0_width": width,
        "level0_height": height,
        "bounds_x": int(slide.bounds.x),
        "bounds_y": int(slide.bounds.y),
        "bounds_width": int(slide.bounds.width),
        "bounds_height": int(slide.bounds.height),
        "level0_mpp": grid.mpp,
        "target_mpp": settings.target_mpp,
        "min_tissue": settings.min_tissue,
        "slide_fingerprint": origin.slide,
        "rules_fingerprint": origin.rules,
    }
    datasets: dict[str, store.Array] = {
        "coords": grid.coords.astype(np.int64),
        "tissue_share": grid.tissue_share.astype(np.float32),
    }
    store.write(path, datasets, dataset_attributes={"coords": attributes})


def read_patch_file(path: Path) -> PatchGrid:
    """The grid of a file that `gcemil patch` wrote."""
    found = store.attributes(path, "coords")
    if missing := [key for key in PATCH_NUMBERS if not is_number(found.get(key))]:
        raise StoreError(
            f"{path}: 'coords' has no attribute '{missing[0]}' that is a number, so the pixel size is unknown. "
            "Make it again with 'gcemil patch'."
        )
    settings = stated_settings(found)
    coords = read_coords(path)
    share = store.read(path, "tissue_share").astype(np.float64)
    if share.shape != (len(coords),):
        raise StoreError(
            f"{path}: 'tissue_share' has shape {share.shape} for {len(coords)} patches. Make it again with 'gcemil patch'."
        )
    return PatchGrid(coords, settings, float(found["level0_mpp"]), share)


def stated_settings(attributes: Mapping[str, Any]) -> PatchSettings:
    """How the patches were cut, from attributes that hold all of PATCH_NUMBERS."""
    return PatchSettings(
        patch_px=int(attributes["patch_size"]),
        target_mpp=float(attributes["target_mpp"]),
        overlap_px=int(attributes["overlap"]),
        min_tissue=float(attributes["min_tissue"]),
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_origin(path: Path) -> PatchOrigin:
    """What an existing patch file was made from."""
    found = store.attributes(path, "coords")
    return PatchOrigin(str(found.get("slide_fingerprint")), str(found.get("rules_fingerprint")))
