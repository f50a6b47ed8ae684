"""Has the model learned? Its figure on test bags against chance, and how far it fits its own training bags. No torch.

  figure     AUC or C-index on the test bags, of which 0.5 is chance, or R2, of which 0 is the mean of the labels
  error      bootstrap standard error of that figure over the test bags of a fold
  explained  classification: 1 - loss / entropy of the training labels, on training bags in evaluation mode
             (McFadden's pseudo R squared: 0 for a constant prediction, 1 for a perfect one)

Over the folds of a run the figures are averaged, so the error of the mean is sqrt(sum of squared errors) / folds. A model whose
95 % interval reaches chance is no better than it as far as the run can tell, and evidence of such a model is not certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
from jaxtyping import Int
from pydantic import BaseModel, ConfigDict

from gcemil.errors import InputError
from gcemil.metrics import CHANCE, METRICS

Z95 = 1.959963984540054
LEAST_EXPLAINED = 0.5
"""A model that explains less of its training labels has not fitted them."""
LEAST_TRAIN = {"c_index": 0.6, "r2": 0.1}
"""The figure on its own training bags below which a model has not fitted them."""
BOOTSTRAP_DRAWS = 200


class Learning(BaseModel):
    """What one fold shows of whether its model has learned."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    figure: str
    """auc, c_index or r2."""
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
    figure = folds[0].figure
    words, chance = METRICS[figure].label, CHANCE[figure]
    value, n_test = fmean(one.value for one in folds), sum(one.n_test for one in folds)
    error = math.sqrt(sum((one.error or 0.0) ** 2 for one in folds)) / len(folds)
    # Perfect folds have no bootstrap error; a fold whose error is unknown says nothing.
    low, high = value - Z95 * error, min(1.0, value + Z95 * error)
    if low <= chance or all(one.error is None for one in folds):
        rival, least = (
            ("the mean of the labels", low) if figure == "r2" else ("chance", max(0.0, low))
        )
        return (
            f"This model is no better than {rival} as far as {n_test} test bags can tell: {words} {value:.2f}, "
            f"95 % interval {least:.2f} to {high:.2f}. Its evidence is not certified."
        )
    explained = [one.explained for one in folds if one.explained is not None]
    if explained and fmean(explained) < LEAST_EXPLAINED:
        return (
            f"This model has not fitted its training slides: it explains {fmean(explained):.0%} of the uncertainty of their labels. "
            "Its evidence is not certified."
        )
    if not explained and (train := fmean(one.train_value for one in folds)) < LEAST_TRAIN.get(
        figure, -math.inf
    ):
        return f"This model has not fitted its training slides: their {words} is {train:.2f}. Its evidence is not certified."
    return None
