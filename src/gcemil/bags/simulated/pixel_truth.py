"""What is true of a patch of a drawn slide, wherever the patch lies.

Patches come from `gcemil patch`, which knows nothing of the plan; the truth of each is read off the masks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.bags.tables import read_table
from gcemil.errors import CohortError
from gcemil.slides.area import covered_share
from gcemil.slides.drawn.slide import MASK_DOWNSAMPLE, mask_path, read_drawn_mask
from gcemil.slides.grid import PatchGrid

EVIDENT = 0.5
"""A patch is evidence when more than this share of it lies inside the annotation."""

Coords = Int[np.ndarray, "n 2"]


def write_pixel_truth(folder: Path, slide_id: str, grid: PatchGrid) -> Path:
    """truth/<slide>.h5 for these patches of a drawn slide, laid out as that of simulated features."""
    path = folder / "truth" / f"{slide_id}.h5"
    store.write(
        path, pixel_truth(folder, slide_id, grid.coords, grid.level0_side), true_target(folder, slide_id)
    )
    return path


def pixel_truth(folder: Path, slide_id: str, coords: Coords, side: float) -> dict[str, NDArray[Any]]:
    """Evidence, concept, region and overlap of square patches of this level-0 side."""
    regions, region_share = shares(read_drawn_mask(mask_path(folder, "evidence", slide_id)), coords, side)
    concepts, concept_share = shares(read_drawn_mask(mask_path(folder, "concept", slide_id)), coords, side)
    overlap = np.clip(region_share.sum(axis=1), 0, 1)
    evidence = overlap > EVIDENT
    region = regions[region_share.argmax(axis=1)] if len(regions) else np.zeros(len(coords), np.int64)
    return {
        "evidence": evidence.astype(np.uint8),
        "concept": (concepts[concept_share.argmax(axis=1)] - 1).astype(np.uint8),
        "region": np.where(evidence, region, 0).astype(np.uint16),
        "overlap": overlap.astype(np.float32),
    }


def shares(
    mask: NDArray[np.uint8], coords: Coords, side: float
) -> tuple[Int[np.ndarray, "values"], Float[np.ndarray, "n values"]]:
    """The values of a mask apart from 0, and the share of every patch that each covers."""
    values = np.unique(mask[mask > 0]).astype(np.int64)
    corner, wide = coords / MASK_DOWNSAMPLE, side / MASK_DOWNSAMPLE
    found = [
        covered_share(mask == value, corner[:, 0], corner[:, 1], width=wide, height=wide) for value in values
    ]
    return values, np.stack(found, axis=1) if found else np.zeros((len(coords), 0))


def true_target(folder: Path, slide_id: str) -> dict[str, str | int | float | bool]:
    """The label or log-risk of a slide without noise."""
    for row in read_table(folder / "targets.csv", ("slide_id",)):
        if row["slide_id"] == slide_id:
            return {"label": row["label"]} if "label" in row else {"log_risk": float(row["log_risk"])}
    raise CohortError(f"{folder / 'targets.csv'} does not name slide '{slide_id}'.")
