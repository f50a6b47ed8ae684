"""Free-response ROC: lesions found against false positives per slide, over the scores of detections.

A lesion's score is that of the best detection that hits it; a detection that hits no lesion is a false positive. At
threshold t:
  sensitivity(t)      = lesions with a score >= t / all lesions
  false positives(t)  = false positives with a score >= t / all slides
Detections of equal score enter together, so that no order among them is invented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

PAPER_RATES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""False positives per slide at which the paper averages."""
OFFICIAL_RATES = (1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""False positives per slide at which the organisers of CAMELYON16 average."""

NOT_FOUND = -np.inf


@dataclass(frozen=True, eq=False)
class SlideDetections:
    """One slide's part of the curve; a normal slide has no lesions, a quiet one no false positives."""

    lesion_scores: Float[np.ndarray, "lesions"]
    """NOT_FOUND for a lesion that no detection hits."""
    false_positives: Float[np.ndarray, "k"]
    """Scores of the detections that hit nothing."""


@dataclass(frozen=True, eq=False)
class FrocCurve:
    """From (0, 0) on, both coordinates ascending."""

    false_positives: Float[np.ndarray, "points"]
    sensitivity: Float[np.ndarray, "points"]


def froc_curve(slides: Sequence[SlideDetections]) -> FrocCurve | None:
    """The curve over all slides; None where there is no lesion to find."""
    lesions = np.concatenate([slide.lesion_scores for slide in slides]) if slides else np.empty(0)
    if not len(lesions):
        return None
    found = np.sort(lesions[lesions > NOT_FOUND])
    false = np.sort(np.concatenate([slide.false_positives for slide in slides]))
    thresholds = np.unique(np.concatenate([found, false]))[::-1]
    hits = len(found) - np.searchsorted(found, thresholds, side="left")
    wrong = len(false) - np.searchsorted(false, thresholds, side="left")
    return FrocCurve(
        false_positives=np.concatenate([[0.0], wrong / len(slides)]),
        sensitivity=np.concatenate([[0.0], hits / len(lesions)]),
    )


def reached_sensitivity(curve: FrocCurve, rates: Sequence[float] = PAPER_RATES) -> Float[np.ndarray, "rates"]:
    """The highest sensitivity that some threshold reaches with at most so many false positives."""
    last = np.searchsorted(curve.false_positives, np.array(rates), side="right") - 1
    return curve.sensitivity[last]


def interpolated_sensitivity(
    curve: FrocCurve, rates: Sequence[float] = OFFICIAL_RATES
) -> Float[np.ndarray, "rates"]:
    """Sensitivity by straight lines between the points, as the organisers read their curve."""
    return np.interp(np.array(rates), curve.false_positives, curve.sensitivity)
