"""Paired comparisons of a few numbers, such as the folds of two runs: d_i = ours_i - theirs_i.

  t-test        n - 1 degrees of freedom, two-sided
  Wilcoxon      signed ranks without the zeros; exact up to 12 pairs, ties and all, two-sided
  interval      percentile bootstrap of mean(d); with few pairs it is too narrow
  d_z           mean(d) / sd(d)
  rank-biserial (ranks in favour - ranks against) / all ranks
  Holm          the j-th smallest of m p-values times (m - j + 1), made monotone

None means that the quantity does not exist: fewer than two pairs, or differences without spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from jaxtyping import Float

from gcemil.findings import Figures

Differences = Float[np.ndarray, "n"]

DECIMALS = 12
"""Differences that agree so far are equal: 0.8 - 0.7 and 0.9 - 0.8 differ in binary only."""
LARGEST_EXACT = 12
"""Pairs up to which all 2^n signs are tried."""


def paired_tests(differences: Differences, *, generator: np.random.Generator) -> Figures:
    """All tests of paired differences by metric name; there must be at least one difference."""
    low, high = bootstrap_interval(differences, generator=generator) or (None, None)
    return {
        "difference": float(differences.mean()),
        "difference_low": low,
        "difference_high": high,
        "p_paired_t": paired_t(differences),
        "p_wilcoxon": wilcoxon(differences),
        "cohens_dz": cohens_dz(differences),
        "rank_biserial": rank_biserial(differences),
    }


def paired_t(differences: Differences) -> float | None:
    """Two-sided p of the paired t-test."""
    if cohens_dz(differences) is None:
        return None
    # scipy.stats takes a second to load, and tables without a test need none of it.
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def wilcoxon(differences: Differences) -> float | None:
    """Two-sided p of the signed-rank test."""
    nonzero = _without_zeros(differences)
    if len(differences) < 2 or not len(nonzero):
        return None
    from scipy import stats

    if len(nonzero) > LARGEST_EXACT:
        return float(stats.wilcoxon(nonzero).pvalue)
    # scipy's permutation method is exact with ties too, but takes seconds.
    ranks = stats.rankdata(np.abs(nonzero))
    # Ranks are halves at worst, so that these sums and the comparison below are exact.
    flipped = np.array(list(product((-1.0, 1.0), repeat=len(nonzero)))) @ ranks
    return float((np.abs(flipped) >= abs(np.sign(nonzero) @ ranks)).mean())


def bootstrap_interval(
    differences: Differences,
    *,
    generator: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> tuple[float, float] | None:
    """Percentile interval of the mean difference."""
    if len(differences) < 2:
        return None
    draws = generator.integers(len(differences), size=(resamples, len(differences)))
    return percentile_interval(differences[draws].mean(axis=1), confidence)


def percentile_interval(
    values: Float[np.ndarray, "k"], confidence: float = 0.95
) -> tuple[float, float]:
    """The middle of the values that holds so much of them."""
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def cohens_dz(differences: Differences) -> float | None:
    """Mean difference in units of its standard deviation."""
    if len(differences) < 2 or np.ptp(np.round(differences, DECIMALS)) == 0:
        return None
    return float(differences.mean() / differences.std(ddof=1))


def rank_biserial(differences: Differences) -> float | None:
    """1 when every difference is in favour, -1 when every one is against."""
    nonzero = _without_zeros(differences)
    if not len(nonzero):
        return None
    from scipy import stats

    ranks = stats.rankdata(np.abs(nonzero))
    return float(np.sign(nonzero) @ ranks / ranks.sum())


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Corrected p-values in the order given; None is not part of the family."""
    ordered = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for position, (p, index) in enumerate(ordered):
        largest = max(largest, min(1.0, p * (len(ordered) - position)))
        corrected[index] = largest
    return corrected


def _without_zeros(differences: Differences) -> Float[np.ndarray, "nonzero"]:
    rounded = np.round(differences, DECIMALS)
    return rounded[rounded != 0]
