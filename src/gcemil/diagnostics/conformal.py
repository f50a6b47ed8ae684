"""The smallest evidence size that keeps the prediction, with a promise that holds for finitely many calibration bags.

A bag agrees at a size when its evidence of that size gives the answer of the whole bag. Sizes are fractions of the bag
on a fixed grid that ends with 1, the whole bag, which agrees with itself.

  conformal        stable size of a bag = the smallest size from which on it agrees at every larger one, too
                   size = the ceil((n + 1)(1 - alpha))-th smallest stable size of n calibration bags
                   promise: a new exchangeable bag agrees with probability >= 1 - alpha, over calibration and new bag
                   (for 0/1 losses made monotone in this way, conformal risk control gives the same size)
  learn then test  p(size) = P(Binomial(n, alpha) <= failures at this size), tested from the largest size down until
                   one p > 1 - confidence; the last size that passed
                   promise: with the stated confidence over the calibration, new bags agree at a rate >= 1 - alpha
                   (a fixed sequence needs no correction, and no monotony)

Few bags promise little: conformal needs n >= 1 / alpha - 1, learn then test n >= log(1 - confidence) / log(1 - alpha)
even if nothing ever fails. Below that, and when the calibration bags fail too often, the size is 1 and nothing is
certified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import bdtr
from scipy.stats import betabinom, binom

from gcemil.errors import UsageError

Agreement = Bool[np.ndarray, "n s"]
"""Whether calibration bag n agrees at size s."""

WHOLE_BAG = 1.0
FLOOR_LEVEL = 0.05


@dataclass(frozen=True)
class Certificate:
    """A size and what is promised of it."""

    fraction: float
    """1 when nothing smaller could be certified."""
    certified: bool
    n_bags: int
    alpha: float
    rank: int | None = None
    """Conformal: which of the sorted stable sizes was taken."""

    def realised_floor(self, n_test: int) -> float:
        """A rate that a kept promise falls below in at most one of twenty tests with so many bags."""
        if not self.certified:
            return 1.0
        if self.rank is None:
            return float(binom.ppf(FLOOR_LEVEL, n_test, 1 - self.alpha)) / n_test
        # The rate of new bags at an order statistic of n is Beta(rank, n + 1 - rank), or higher where sizes tie.
        law = betabinom(n_test, self.rank, self.n_bags + 1 - self.rank)
        return float(law.ppf(FLOOR_LEVEL)) / n_test


def conformal_certificate(agrees: Agreement, fractions: Sequence[float], *, alpha: float) -> Certificate:
    """The size that a share 1 - alpha of new bags does not need to exceed."""
    check_level("alpha", alpha)
    check_grid(agrees, fractions)
    rank = conformal_rank(len(agrees), alpha)
    if rank > len(agrees):
        return Certificate(WHOLE_BAG, False, len(agrees), alpha)
    size = float(np.sort(stable_sizes(agrees, fractions))[rank - 1])
    return Certificate(size, size < WHOLE_BAG, len(agrees), alpha, rank=rank)


def binomial_certificate(
    agrees: Agreement, fractions: Sequence[float], *, alpha: float, confidence: float = 0.9
) -> Certificate:
    """The last size on the way down at which calibration bags fail too seldom for a rate above alpha."""
    check_level("alpha", alpha)
    check_level("confidence", confidence)
    check_grid(agrees, fractions)
    size = WHOLE_BAG
    # The whole bag cannot fail, so it needs no test.
    for column in range(len(fractions) - 2, -1, -1):
        failures = int((~agrees[:, column]).sum())
        # The bound is reached exactly by powers of 1 - alpha, so rounding must not decide.
        if failure_p_value(failures, len(agrees), alpha=alpha) > (1 - confidence) * (1 + 1e-12):
            break
        size = float(fractions[column])
    return Certificate(size, size < WHOLE_BAG, len(agrees), alpha)


def stable_sizes(agrees: Agreement, fractions: Sequence[float]) -> Float[np.ndarray, "n"]:
    """For each bag the smallest size from which on it always agrees."""
    settled = np.logical_and.accumulate(agrees[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(fractions, dtype=np.float64)[settled.argmax(axis=1)]


def conformal_rank(n_bags: int, alpha: float) -> int:
    """ceil((n + 1)(1 - alpha)); beyond n there is no such bag, and only the whole bag is safe."""
    # (9 + 1)(1 - 0.1) is 9, not the 9.000000000000002 a computer may find.
    return max(1, math.ceil((n_bags + 1) * (1 - alpha) - 1e-9))


def failure_p_value(failures: int, n_bags: int, *, alpha: float) -> float:
    """How likely so few failures are when bags fail at rate alpha; 1 without bags."""
    return float(bdtr(failures, n_bags, alpha)) if n_bags else 1.0


def bags_needed(alpha: float, confidence: float | None = None) -> int:
    """The least number of calibration bags that can certify anything: conformal, or tested at a confidence."""
    check_level("alpha", alpha)
    if confidence is None:
        return math.ceil(1 / alpha - 1 - 1e-9)
    check_level("confidence", confidence)
    return math.ceil(math.log(1 - confidence) / math.log(1 - alpha) - 1e-9)


def check_grid(agrees: Agreement, fractions: Sequence[float]) -> None:
    rising = all(low < high for low, high in pairwise(fractions))
    if not fractions or not rising or fractions[0] <= 0 or fractions[-1] != WHOLE_BAG:
        raise UsageError(f"Sizes are rising fractions of the bag that end with 1, got {list(fractions)}.")
    if agrees.shape[1] != len(fractions):
        raise UsageError(f"{len(fractions)} sizes need as many columns of agreement, got {agrees.shape[1]}.")
    if not agrees[:, -1].all():
        raise UsageError("A whole bag agrees with itself: the last column of agreement must be true.")


def check_level(name: str, level: float) -> None:
    if not 0 < level < 1:
        raise UsageError(f"{name} lies in (0, 1), got {level}.")
