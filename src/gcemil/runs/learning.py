"""Has the model learned? Its figure on test bags against chance, and its fit of its training bags.

  figure     AUC or C-index on the test bags (chance is 0.5), or R2 (0 is the mean of the labels)
  error      bootstrap standard error of that figure over the test bags of a fold
  explained  classification: 1 - loss / entropy of the training labels (McFadden's pseudo R squared)

Over the folds of a run the figures are averaged, so the error of the mean is
sqrt(sum of squared errors) / folds. Evidence is not certified if the 95 % interval reaches chance.
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
    """None where the figure is undefined on nearly all resampled test bags."""
    n_test: int
    train_value: float
    explained: float | None = None


def bootstrap_error(measure: Callable[[Int[np.ndarray, "n"]], float], n_bags: int) -> float | None:
    """Standard error of `measure(rows)` under resampling of the bags, where it is defined."""
    generator, values = np.random.default_rng(0), []
    for _ in range(BOOTSTRAP_DRAWS):
        try:
            values.append(measure(generator.integers(n_bags, size=n_bags)))
        except InputError:
            continue
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def describe_learning(folds: Sequence[Learning]) -> str | None:
    """What is wrong with the model of a run; None where it has learned."""
    if not folds:
        return None
    figure = folds[0].figure
    words, value = METRICS[figure].label, fmean(one.value for one in folds)
    error = math.sqrt(sum((one.error or 0.0) ** 2 for one in folds)) / len(folds)
    # Perfect folds have no bootstrap error; a fold whose error is unknown does not count.
    low, high = value - Z95 * error, min(1.0, value + Z95 * error)
    if low <= CHANCE[figure] or all(one.error is None for one in folds):
        rival = "the mean of the labels" if figure == "r2" else "chance"
        least = low if figure == "r2" else max(0.0, low)
        return (
            f"This model is no better than {rival} as far as {sum(one.n_test for one in folds)} "
            f"test bags can show: {words} {value:.2f}, 95 % interval {least:.2f} to {high:.2f}. "
            "Its evidence is not certified."
        )
    explained = [one.explained for one in folds if one.explained is not None]
    train = fmean(one.train_value for one in folds)
    if explained and fmean(explained) < LEAST_EXPLAINED:
        fit = f"it explains {fmean(explained):.0%} of the uncertainty of their labels"
    elif not explained and train < LEAST_TRAIN.get(figure, -math.inf):
        fit = f"their {words} is {train:.2f}"
    else:
        return None
    return f"This model has not fitted its training slides: {fit}. Its evidence is not certified."
