"""Has the model learned? Its figure on test bags against chance, and how far it fits its own training bags. No torch.

  figure     AUC or C-index on the test bags; 0.5 is chance
  error      bootstrap standard error of that figure over the test bags of a fold
  explained  classification: 1 - loss / entropy of the training labels, on training bags in evaluation mode
             (McFadden's pseudo R squared: 0 for a constant prediction, 1 for a perfect one)

Over the folds of a run the figures are averaged, so the error of the mean is sqrt(sum of squared errors) / folds. A model whose
95 % interval reaches 0.5 is no better than chance as far as the run can tell, and evidence of such a model is not certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
from jaxtyping import Int
from pydantic import BaseModel, ConfigDict

from gcemil.errors import InputError

CHANCE = 0.5
Z95 = 1.959963984540054
LEAST_EXPLAINED = 0.5
"""A model that explains less of its training labels has not fitted them."""
LEAST_TRAIN_C_INDEX = 0.6
BOOTSTRAP_DRAWS = 200
FIGURE_WORDS = {"auc": "AUC", "c_index": "C-index"}


class Learning(BaseModel):
    """What one fold shows of whether its model has learned."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    figure: str
    """auc or c_index."""
    value: float
    """On the test bags."""
    error: float | None
    """Bootstrap standard error; None where resampled test bags never hold two classes or an event."""
    n_test: int
    train_value: float
    """The same figure on training bags."""
    explained: float | None = None


def bootstrap_error(measure: Callable[[Int[np.ndarray, "n"]], float], n_bags: int) -> float | None:
    """Standard error of `measure(rows)` under resampling of the bags; draws in which it is undefined are left out."""
    generator, values = np.random.default_rng(0), []
    for _ in range(BOOTSTRAP_DRAWS):
        try:
            values.append(measure(generator.integers(n_bags, size=n_bags)))
        except InputError:
            continue
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def describe_learning(folds: Sequence[Learning]) -> str | None:
    """What is wrong with the model of a run, in one or two sentences; None where it has learned."""
    if not folds:
        return None
    words = FIGURE_WORDS[folds[0].figure]
    value, n_test = fmean(one.value for one in folds), sum(one.n_test for one in folds)
    error = math.sqrt(sum((one.error or 0.0) ** 2 for one in folds)) / len(folds)
    # Perfect folds have no bootstrap error; a fold whose error is unknown says nothing.
    low, high = value - Z95 * error, min(1.0, value + Z95 * error)
    if low <= CHANCE or all(one.error is None for one in folds):
        return (
            f"This model is no better than chance as far as {n_test} test bags can tell: {words} {value:.2f}, "
            f"95 % interval {max(0.0, low):.2f} to {high:.2f}. Its evidence is not certified."
        )
    explained = [one.explained for one in folds if one.explained is not None]
    if explained and fmean(explained) < LEAST_EXPLAINED:
        return (
            f"This model has not fitted its training slides: it explains {fmean(explained):.0%} of the uncertainty of their labels. "
            "Its evidence is not certified."
        )
    if not explained and (train := fmean(one.train_value for one in folds)) < LEAST_TRAIN_C_INDEX:
        return f"This model has not fitted its training slides: their {words} is {train:.2f}. Its evidence is not certified."
    return None
