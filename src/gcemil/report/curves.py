"""Curves of a classifier over test bags, for many weightings of the bags at once.

One row of weights is one bootstrap draw; a row of ones is the curve itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from gcemil.report.bootstrap import FoldPredictions, Weights, share_of_pairs

BINS = 10
GRID = np.linspace(0, 1, 101)
Lines = Float[np.ndarray, "d g"]
PerClass = Float[np.ndarray, "d c"]


@dataclass(frozen=True, eq=False)
class Curves:
    """Two curves on GRID, one line per row of weights."""

    roc: Lines
    """Sensitivity over the false positive rate."""
    precision_recall: Lines
    """The best precision at this recall or a higher one."""
    average_precision: Float[np.ndarray, "d"]
    """Precision at every threshold, weighted by the recall it gains."""


def trace_curves(
    bags: FoldPredictions, mode: str, weights: Weights, classes: Sequence[int] | None = None
) -> Curves | None:
    """The mean over the classes: the second of two, or each of several against the others.

    None where one class occurs.
    """
    if classes is None:
        classes = (1,) if len(bags.classes) == 2 else np.unique(bags.labels).tolist()
    found = [
        _trace_class(bags.labels == index, bags.by_mode[mode][:, index], weights)
        for index in classes
        if (bags.labels == index).any() and (bags.labels != index).any()
    ]
    if not found:
        return None
    return Curves(*(np.mean(parts, axis=0) for parts in zip(*found, strict=True)))


def _trace_class(
    positive: Bool[np.ndarray, "n"], scores: Float[np.ndarray, "n"], weights: Weights
) -> tuple[Lines, Lines, Float[np.ndarray, "d"]]:
    order = np.argsort(-scores, kind="stable")
    # Bags with one score pass the threshold together.
    is_last = np.append(np.diff(scores[order]) != 0, True)
    hits, alarms = (
        np.cumsum(weights[:, order] * side[order], axis=1)[:, is_last]
        for side in (positive, ~positive)
    )
    start = np.zeros((len(weights), 1))
    recall, false_rate = (
        np.hstack([start, counts / np.maximum(counts[:, -1:], 1e-12)]) for counts in (hits, alarms)
    )
    # Where nothing has passed the threshold, no answer was wrong.
    precision = np.divide(hits, hits + alarms, out=np.ones_like(hits), where=hits + alarms > 0)
    precision = np.hstack([start + 1, precision])
    average = (np.diff(recall, axis=1) * precision[:, 1:]).sum(axis=1)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    roc = [np.interp(GRID, across, up) for across, up in zip(false_rate, recall, strict=True)]
    precision_recall = [
        up[np.minimum(np.searchsorted(across, GRID), len(up) - 1)]
        for across, up in zip(recall, best, strict=True)
    ]
    return np.array(roc), np.array(precision_recall), average


def bin_confidence(
    bags: FoldPredictions, mode: str, weights: Weights
) -> tuple[Lines, Lines, Float[np.ndarray, "d"]]:
    """Mean confidence and share of right predictions per bin (NaN if empty), and their ECE."""
    confidence = bags.by_mode[mode].max(axis=1)
    right = bags.by_mode[mode].argmax(axis=1) == bags.labels
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    members = place[:, None] == np.arange(BINS)
    sizes = weights @ members
    means, shares = (
        _divide(weights @ (members * values[:, None]), sizes) for values in (confidence, right)
    )
    error = np.nansum(sizes * np.abs(means - shares), axis=1) / sizes.sum(axis=1)
    return means, shares, error


def measure_classes(bags: FoldPredictions, mode: str, weights: Weights) -> dict[str, PerClass]:
    """Metrics of each class against the others; NaN where undefined."""
    scores, classes = bags.by_mode[mode], np.arange(len(bags.classes))
    is_true = bags.labels[:, None] == classes
    is_predicted = scores.argmax(axis=1)[:, None] == classes
    hits, true, predicted = (
        weights @ is_member for is_member in (is_true & is_predicted, is_true, is_predicted)
    )
    others = weights.sum(axis=1, keepdims=True) - true
    areas = [share_of_pairs(weights, is_true[:, i], ~is_true[:, i], scores[:, i]) for i in classes]
    return {
        "sensitivity": _divide(hits, true),
        "specificity": _divide(others - predicted + hits, others),
        "precision": _divide(hits, predicted),
        "f1": _divide(2 * hits, true + predicted),
        "auc": np.stack(areas, axis=1),
    }


def _divide(above: Lines, below: Lines) -> Lines:
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
