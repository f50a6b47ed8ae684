"""Lesions on the patch grid, and how well a map of scores finds them.

Lesions and lesion candidates are 8-connected (sides and corners).

lesion      connected positive patches, so two annotations whose patches touch count as one
candidate   connected patches with a score at or above the threshold; its score is the highest
            inside, its peak the patch that has it (the lower index on ties)

  by overlap (the paper)       a candidate hits every lesion of which it holds a positive patch
  by point (the organisers)    a candidate hits the one lesion in which its peak lies

Free-response ROC (FROC): a lesion's score is that of the best detection that hits it; a detection
that hits no lesion is a false positive. At threshold t:
  sensitivity(t)      = lesions with a score >= t / all lesions
  false positives(t)  = false positives with a score >= t / all slides
Detections of equal score enter together.

  Dice         = 2 |marked and positive| / (|marked| + |positive|)
  specificity  = share of negative patches that are not marked
A patch is marked when its score is at or above the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from gcemil.bags.bag import Cells, Numbers, connected_regions

PAPER_RATES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""False positives per slide at which the paper averages."""
OFFICIAL_RATES = (1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""False positives per slide at which the organisers of CAMELYON16 average."""

NOT_FOUND = -np.inf


@dataclass(frozen=True, eq=False)
class SlideDetections:
    """One slide's part of the curve."""

    lesion_scores: Float[np.ndarray, "lesions"]
    """NOT_FOUND for a lesion that no detection hits."""
    false_positives: Float[np.ndarray, "k"]
    """Scores of the detections that hit nothing."""


FrocCurve = tuple[Float[np.ndarray, "points"], Float[np.ndarray, "points"]]
"""False positives per slide and sensitivity, from (0, 0) on, both ascending."""


def froc_curve(slides: Sequence[SlideDetections]) -> FrocCurve | None:
    """The curve over all slides; None where there is no lesion to find."""
    lesions = np.concatenate([slide.lesion_scores for slide in slides]) if slides else np.empty(0)
    if not len(lesions):
        return None
    hit_lesions = np.sort(lesions[lesions > NOT_FOUND])
    false = np.sort(np.concatenate([slide.false_positives for slide in slides]))
    thresholds = np.unique(np.concatenate([hit_lesions, false]))[::-1]
    hits = len(hit_lesions) - np.searchsorted(hit_lesions, thresholds, side="left")
    wrong = len(false) - np.searchsorted(false, thresholds, side="left")
    return np.concatenate([[0.0], wrong / len(slides)]), np.concatenate(
        [[0.0], hits / len(lesions)]
    )


def reached_sensitivity(
    curve: FrocCurve | None, rates: Sequence[float] = PAPER_RATES
) -> list[float]:
    """The highest sensitivity at no more than each rate of false positives."""
    if curve is None:
        return []
    false_positives, sensitivity = curve
    return sensitivity[np.searchsorted(false_positives, rates, side="right") - 1].tolist()


def interpolated_sensitivity(
    curve: FrocCurve | None, rates: Sequence[float] = OFFICIAL_RATES
) -> list[float]:
    """Sensitivity by straight lines between the points, as the organisers read their curve."""
    return [] if curve is None else np.interp(rates, *curve).tolist()


PatchScores = Float[np.ndarray, "n"]
Ignored = Bool[np.ndarray, "lesions"]


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Numbered from 1 in `number`; scores and peaks by number - 1."""

    number: Numbers
    scores: Float[np.ndarray, "k"]
    peaks: Int[np.ndarray, "k"]


def lesion_candidates(cells: Cells, scores: PatchScores, threshold: float) -> _Candidates:
    """Connected patches at or above the threshold."""
    number = connected_regions(cells, scores >= threshold)
    order = np.lexsort((np.arange(len(scores)), -scores, number))
    order = order[number[order] > 0]
    _, first = np.unique(number[order], return_index=True)
    peaks = order[first]
    return _Candidates(number, scores[peaks].astype(np.float64), peaks)


def hits_by_overlap(candidates: _Candidates, lesion: Numbers) -> SlideDetections:
    """The paper's rule: one positive patch inside is a hit, possibly of several lesions."""
    inside = (candidates.number > 0) & (lesion > 0)
    best = np.full(int(lesion.max(initial=0)), NOT_FOUND)
    np.maximum.at(best, lesion[inside] - 1, candidates.scores[candidates.number[inside] - 1])
    hitting = np.zeros(len(candidates.scores), dtype=bool)
    hitting[candidates.number[inside] - 1] = True
    return SlideDetections(best, candidates.scores[~hitting])


def hits_by_point(
    candidates: _Candidates, lesion: Numbers, ignored: Ignored | None = None
) -> SlideDetections:
    """The organisers' rule: the peak decides; ignored lesions are neither found nor missed."""
    struck = lesion[candidates.peaks]
    best = np.full(int(lesion.max(initial=0)), NOT_FOUND)
    np.maximum.at(best, struck[struck > 0] - 1, candidates.scores[struck > 0])
    counted = np.ones(len(best), dtype=bool) if ignored is None else ~ignored
    return SlideDetections(best[counted], candidates.scores[struck == 0])


def major_axes(
    cells: Cells, lesion: Numbers, overlap: PatchScores, patch_size: float
) -> Float[np.ndarray, "lesions"]:
    """Major axis of the ellipse with each lesion's second moments, in the unit of `patch_size`.

    The annotated part of a patch is taken as a square of that area in the middle of the patch.
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


def dice(marked: Bool[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> float | None:
    """None where there is nothing to find."""
    if not positive.any():
        return None
    return float(2 * (marked & positive).sum() / (marked.sum() + positive.sum()))


def specificity(marked: Bool[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> float | None:
    """None where no patch is negative."""
    return None if positive.all() else float((~marked[~positive]).mean())


def best_threshold(
    slides: Sequence[tuple[Float[np.ndarray, "_"], Bool[np.ndarray, "_"]]],
) -> float | None:
    """The highest score of best mean Dice over slides (scores, positive patches)."""
    # Going down the joined ranking, each patch changes the Dice of its own slide alone.
    walks = [_dice_steps(scores, positive) for scores, positive in slides if positive.any()]
    if not walks:
        return None
    scores = np.concatenate([walk[0] for walk in walks])
    order = np.argsort(-scores, kind="stable")
    total = np.cumsum(np.concatenate([walk[1] for walk in walks])[order])
    ranked = scores[order]
    # Patches of equal score are marked together: only the last of them is a threshold.
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    # Sums of changes differ in their last digits; those digits must not choose the threshold.
    return float(ranked[last[np.round(total[last], 9).argmax()]])


def _dice_steps(
    scores: PatchScores, positive: Bool[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """A slide's scores in decreasing order, and what each patch adds to its Dice."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    after = 2 * hits / (np.arange(1, len(order) + 1) + positive.sum())
    return scores[order].astype(np.float64), np.diff(after, prepend=0.0)
