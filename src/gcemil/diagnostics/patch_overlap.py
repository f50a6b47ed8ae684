"""Marked patches against positive patches: Dice, specificity, and the threshold that makes Dice best.

  Dice         = 2 |marked and positive| / (|marked| + |positive|), mean over the slides with a positive patch
  specificity  = share of negative patches that are not marked
A patch is marked when its score is at or above the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float


@dataclass(frozen=True, eq=False)
class ScoredSlide:
    """One score map beside the truth of its slide."""

    scores: Float[np.ndarray, "n"]
    positive: Bool[np.ndarray, "n"]

    def marked(self, threshold: float) -> Bool[np.ndarray, "n"]:
        return self.scores >= threshold


def dice(marked: Bool[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> float | None:
    """None where there is nothing to find."""
    if not positive.any():
        return None
    return float(2 * (marked & positive).sum() / (marked.sum() + positive.sum()))


def specificity(marked: Bool[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> float | None:
    """None where no patch is negative."""
    return None if positive.all() else float((~marked[~positive]).mean())


def best_threshold(slides: Sequence[ScoredSlide]) -> float | None:
    """The score at which the mean Dice is highest, the higher one where two are equal; None without positives."""
    with_truth = [slide for slide in slides if slide.positive.any()]
    if not with_truth:
        return None
    # Going down the joined ranking, each patch changes the Dice of its own slide alone.
    walks = [dice_steps(slide) for slide in with_truth]
    scores = np.concatenate([walk[0] for walk in walks])
    order = np.argsort(-scores, kind="stable")
    total = np.cumsum(np.concatenate([walk[1] for walk in walks])[order])
    ranked = scores[order]
    # Patches of equal score are marked together: only the last of them is a state that a threshold has.
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    # Sums of changes differ in their last digits; those digits must not choose the threshold.
    return float(ranked[last[np.round(total[last], 9).argmax()]])


def dice_steps(slide: ScoredSlide) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """The slide's scores in decreasing order, and what each patch adds to its Dice when it is marked next."""
    order = np.argsort(-slide.scores, kind="stable")
    hits = np.cumsum(slide.positive[order])
    after = 2 * hits / (np.arange(1, len(order) + 1) + slide.positive.sum())
    return slide.scores[order].astype(np.float64), np.diff(after, prepend=0.0)
