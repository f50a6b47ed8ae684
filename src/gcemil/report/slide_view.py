"""One slide as a map needs it: its evidence, where its patches lie, and what is known beside it.

thumbnails/<slide>.jpg is what `gcemil patch` writes: the scanned part of the slide. slides/<slide>.* is a slide file beside the
features, as drawn cohorts have it. Both are optional; without them a slide is its grid of patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from gcemil.bags import store
from gcemil.bags.arrays import read_truth
from gcemil.bags.cohort import find_patch_size, find_slide_file
from gcemil.errors import GcemilError
from gcemil.exports.overlay import Canvas, Thumbnail, read_own_thumbnail
from gcemil.records import SlideEvidence
from gcemil.report.run_data import BagKey, RunData
from gcemil.slides.reader import open_slide, read_region

PATCH_PIXELS = 96


@dataclass(frozen=True, eq=False)
class SlideView:
    """A slide with evidence and coordinates."""

    slide_id: str
    evidence: SlideEvidence
    coords: Int[np.ndarray, "n 2"]
    patch_size: int
    truth: Bool[np.ndarray, "n"] | None
    thumbnail: Thumbnail | None


def read_slide_view(run: RunData, bag: BagKey, slide_id: str) -> SlideView | None:
    """None where a map cannot be drawn: no evidence, no coordinates, or patches of unknown size."""
    evidence = run.fold(bag.fold).evidence(slide_id)
    if evidence is None or evidence.coords is None:
        return None
    coords = evidence.coords.astype(np.int64)
    size = find_patch_size(run.cohort, run.card, slide_id, coords)
    if size is None:
        return None
    truth = _read_truth_of_patches(run, slide_id, len(coords))
    return SlideView(slide_id, evidence, coords, size, truth, read_own_thumbnail(run.cohort, slide_id))


def _read_truth_of_patches(run: RunData, slide_id: str, n_patches: int) -> Bool[np.ndarray, "n"] | None:
    """The annotated patches, where the cohort knows them and they are of these very patches."""
    path = run.cohort / "truth" / f"{slide_id}.h5"
    if not path.is_file():
        return None
    if store.read(path, "evidence").shape != (n_patches,):
        return None
    return read_truth(path, "evidence", n_patches).astype(bool)


def cut_patches(
    cohort: Path, slide_id: str, coords: Int[np.ndarray, "n 2"], patches: Sequence[int], *, patch_size: int
) -> list[Canvas] | None:
    """These patches as pictures; None without a slide file that can be opened here."""
    path = find_slide_file(cohort, slide_id)
    if path is None:
        return None
    try:
        with open_slide(path) as slide:
            return [
                read_region(
                    slide, left=float(coords[patch, 0]), top=float(coords[patch, 1]), width=float(patch_size),
                    height=float(patch_size), size=(PATCH_PIXELS, PATCH_PIXELS),
                )
                for patch in patches
            ]  # fmt: skip
    except GcemilError:
        # A report is about the run; a slide that cannot be opened here only costs it a picture.
        return None
