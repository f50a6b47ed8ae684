"""Lesions and lesion candidates on the patch grid; both are 8-connected (sides and corners).

lesion      connected positive patches, so two annotations whose positive patches touch count as one
candidate   connected patches with a score at or above the threshold; its score is the highest inside, its peak the
            patch that has it (the lower index where several do)

Which candidates hit which lesions is asked in two ways:
  by overlap (the paper)       a candidate hits every lesion of which it holds a positive patch
  by point (the organisers)    a candidate hits the one lesion in which its peak lies
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from gcemil.bags.annotations.truth import Cells, Numbers, connected_regions
from gcemil.diagnostics.froc import NOT_FOUND, SlideDetections

PatchScores = Float[np.ndarray, "n"]
Ignored = Bool[np.ndarray, "lesions"]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Numbered from 1 in `number`; scores and peaks by number - 1."""

    number: Numbers
    scores: Float[np.ndarray, "k"]
    peaks: Int[np.ndarray, "k"]


def lesion_candidates(cells: Cells, scores: PatchScores, threshold: float) -> Candidates:
    """Connected patches at or above the threshold."""
    number = connected_regions(cells, scores >= threshold)
    order = np.lexsort((np.arange(len(scores)), -scores, number))
    order = order[number[order] > 0]
    _, first = np.unique(number[order], return_index=True)
    peaks = order[first]
    return Candidates(number, scores[peaks].astype(np.float64), peaks)


def hits_by_overlap(candidates: Candidates, lesion: Numbers) -> SlideDetections:
    """The paper's rule: one positive patch inside is a hit, and one candidate may hit several lesions."""
    inside = (candidates.number > 0) & (lesion > 0)
    best = np.full(int(lesion.max(initial=0)), NOT_FOUND)
    np.maximum.at(best, lesion[inside] - 1, candidates.scores[candidates.number[inside] - 1])
    hitting = np.zeros(len(candidates.scores), dtype=bool)
    hitting[candidates.number[inside] - 1] = True
    return SlideDetections(best, candidates.scores[~hitting])


def hits_by_point(candidates: Candidates, lesion: Numbers, ignored: Ignored | None = None) -> SlideDetections:
    """The organisers' rule: the peak decides; a peak in an ignored lesion is neither right nor wrong."""
    struck = lesion[candidates.peaks]
    best = np.full(int(lesion.max(initial=0)), NOT_FOUND)
    np.maximum.at(best, struck[struck > 0] - 1, candidates.scores[struck > 0])
    counted = np.ones(len(best), dtype=bool) if ignored is None else ~ignored
    return SlideDetections(best[counted], candidates.scores[struck == 0])


def major_axes(
    cells: Cells, lesion: Numbers, overlap: PatchScores, patch_size: float
) -> Float[np.ndarray, "lesions"]:
    """Major axis of the ellipse with each lesion's second moments, in the unit of `patch_size`.

    The annotated part of a patch is taken as a square of that area in the middle of the patch, since where it lies
    inside the patch is not known.
    """
    n_lesions = int(lesion.max(initial=0))
    rows = lesion > 0
    own, weight, position = (
        lesion[rows] - 1,
        overlap[rows].astype(np.float64),
        cells[rows] * float(patch_size),
    )

    def mean(values: Float[np.ndarray, "k"]) -> Float[np.ndarray, "lesions"]:
        return np.bincount(own, weight * values, n_lesions) / np.bincount(own, weight, n_lesions)

    x = position[:, 0] - mean(position[:, 0])[own]
    y = position[:, 1] - mean(position[:, 1])[own]
    within = mean(weight * patch_size**2 / 12)
    xx, yy, xy = mean(x * x) + within, mean(y * y) + within, mean(x * y)
    largest = (xx + yy) / 2 + np.hypot((xx - yy) / 2, xy)
    return 4 * np.sqrt(largest)
