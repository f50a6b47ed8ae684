"""One slide as a map needs it: its evidence, where its patches lie, and what is known beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from gcemil.bags import store
from gcemil.bags.arrays import read_truth, stated_number
from gcemil.bags.bag import grid_stride
from gcemil.records import SlideEvidence
from gcemil.report.figures.slide_pixels import slide_attributes, slide_thumbnail
from gcemil.report.overlay import Thumbnail
from gcemil.report.run_data import BagKey, RunData


@dataclass(frozen=True, eq=False)
class SlideView:
    """A slide with evidence and coordinates."""

    slide_id: str
    evidence: SlideEvidence
    coords: Int[np.ndarray, "n 2"]
    patch_size: int
    truth: Bool[np.ndarray, "n"] | None
    thumbnail: Thumbnail | None


def slide_view(run: RunData, bag: BagKey, slide_id: str) -> SlideView | None:
    """None where a map cannot be drawn: no evidence, no coordinates, or patches of unknown size."""
    evidence = run.fold(bag.fold).evidence(slide_id)
    if evidence is None or evidence.coords is None:
        return None
    coords = evidence.coords.astype(np.int64)
    size = patch_size(run, slide_id, coords)
    if size is None:
        return None
    truth = true_patches(run, slide_id, len(coords))
    return SlideView(slide_id, evidence, coords, size, truth, slide_thumbnail(run.cohort, slide_id))


def patch_size(run: RunData, slide_id: str, coords: Int[np.ndarray, "n 2"]) -> int | None:
    """In level-0 pixels: the cohort's, the feature file's own, or the step of the grid."""
    if run.card is not None and run.card.patch_size_level0 is not None:
        return run.card.patch_size_level0
    size = stated_number(slide_attributes(run.cohort, slide_id), "patch_size_level0") or grid_stride(coords)
    return None if size is None else max(1, round(size))


def true_patches(run: RunData, slide_id: str, n_patches: int) -> Bool[np.ndarray, "n"] | None:
    """The annotated patches, where the cohort knows them and they are of these very patches."""
    path = run.cohort / "truth" / f"{slide_id}.h5"
    if not path.is_file():
        return None
    if store.read(path, "evidence").shape != (n_patches,):
        return None
    return read_truth(path, "evidence", n_patches).astype(bool)
