"""Paired comparisons: of a few numbers, here the folds of two runs, d_i = ours_i - theirs_i, and of the bags they both tested.

  t-test        t = mean(d) / (sd(d) / sqrt n), n - 1 degrees of freedom, two-sided
  Wilcoxon      ranks of |d| without the zeros, signs flipped at random; exact up to 12 pairs, ties and all, two-sided
  interval      percentile bootstrap of mean(d); with few pairs it is too narrow
  d_z           mean(d) / sd(d)
  rank-biserial (ranks in favour - ranks against) / all ranks
  Holm          the j-th smallest of m p-values times (m - j + 1), made monotone
  swaps         bags: the two predictions of a case change sides at random, and the difference of the metric is taken anew; p is
                the share of swaps that differ as much as the models do. All swaps where few cases differ, else drawn ones

None means that the quantity does not exist: fewer than two pairs, or differences without spread.

The difference of two C-indices under swaps t (1: as it is, -1: swapped) is a sum over bags. With c(t_i, t_j) for a comparable
pair, C(t) - C(-t) keeps only what is odd in t, which is linear: sum of t_i g_i, where g_i sums over the pairs of bag i

  (c(1, 1) + c(1, -1) - c(-1, 1) - c(-1, -1)) / 2, t_i first, over the number of comparable pairs.

Risks enter as ranks among their own model's, so that a model that shifts or stretches all risks is not called different.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from gcemil.errors import InputError

Differences = Float[np.ndarray, "n"]

DECIMALS = 12
"""Differences that agree so far are equal: 0.8 - 0.7 and 0.9 - 0.8 differ in binary only."""
LARGEST_EXACT = 12
"""Pairs up to which all 2^n signs are tried."""
SWAPS = 10_000
_AT_ONCE = 1_000
"""Swaps that are in memory together."""


@dataclass(frozen=True)
class PairedTests:
    """Every test of one comparison."""

    n_pairs: int
    difference: float
    deviation: float | None
    low: float | None
    high: float | None
    p_paired_t: float | None
    p_wilcoxon: float | None
    cohens_dz: float | None
    rank_biserial: float | None


def paired_tests(differences: Differences, *, generator: np.random.Generator) -> PairedTests:
    """All tests of paired differences; there must be at least one."""
    low, high = bootstrap_interval(differences, generator=generator) or (None, None)
    return PairedTests(
        n_pairs=len(differences),
        difference=float(differences.mean()),
        deviation=float(differences.std(ddof=1)) if len(differences) > 1 else None,
        low=low,
        high=high,
        p_paired_t=paired_t(differences),
        p_wilcoxon=wilcoxon(differences),
        cohens_dz=cohens_dz(differences),
        rank_biserial=rank_biserial(differences),
    )


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
    # scipy's permutation method is exact with ties too, but takes seconds where this takes milliseconds.
    ranks = stats.rankdata(np.abs(nonzero))
    # Ranks are halves at worst, so that these sums and the comparison below are exact.
    flipped = np.array(list(product((-1.0, 1.0), repeat=len(nonzero)))) @ ranks
    return float((np.abs(flipped) >= abs(np.sign(nonzero) @ ranks)).mean())


def smallest_wilcoxon(n_pairs: int) -> float:
    """The smallest two-sided p that so many pairs can give: all of them in one direction."""
    return 2.0 ** (1 - n_pairs)


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


def percentile_interval(values: Float[np.ndarray, "k"], confidence: float = 0.95) -> tuple[float, float]:
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
    found = _without_zeros(differences)
    if not len(found):
        return None
    from scipy import stats

    ranks = stats.rankdata(np.abs(found))
    return float(np.sign(found) @ ranks / ranks.sum())


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Corrected p-values in the order given; a test that was not possible is no part of the family."""
    found = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for position, (p, index) in enumerate(found):
        largest = max(largest, min(1.0, p * (len(found) - position)))
        corrected[index] = largest
    return corrected


def _without_zeros(differences: Differences) -> Float[np.ndarray, "nonzero"]:
    rounded = np.round(differences, DECIMALS)
    return rounded[rounded != 0]


Signs = Float[np.ndarray, "swaps n"]
"""1 where a bag is as it was, -1 where its two predictions changed sides."""


@dataclass(frozen=True, eq=False)
class SwappedClasses:
    """The bags of one fold by class: Macro-F1, over the classes that occur in the labels or in the predictions of a model."""

    cases: Sequence[str]
    """Bags of one case are swapped together, in all folds that have it."""
    labels: Int[np.ndarray, "n"]
    ours: Int[np.ndarray, "n"]
    theirs: Int[np.ndarray, "n"]

    @property
    def moves(self) -> Bool[np.ndarray, "n"]:
        """Bags whose swap can change anything."""
        return self.ours != self.theirs

    def differences(self, signs: Signs) -> Float[np.ndarray, "swaps"]:
        """Ours minus theirs under each row of swaps."""
        n_classes = 1 + max(int(one.max()) for one in (self.labels, self.ours, self.theirs))
        classes = np.arange(n_classes)
        true = self.labels[:, None] == classes
        ours, theirs = self.ours[:, None] == classes, self.theirs[:, None] == classes
        swapped = np.where(signs < 0, 1.0, 0.0)[:, self.moves]

        def count(
            what: Bool[np.ndarray, "n c"], instead: Bool[np.ndarray, "n c"]
        ) -> Float[np.ndarray, "swaps c"]:
            change = instead[self.moves].astype(float) - what[self.moves]
            return what.sum(axis=0) + swapped @ change

        support = true.sum(axis=0)
        mine = _macro_f1(count(ours & true, theirs & true), count(ours, theirs) + support)
        return mine - _macro_f1(count(theirs & true, ours & true), count(theirs, ours) + support)


def _macro_f1(
    hits: Float[np.ndarray, "swaps c"], occurrences: Float[np.ndarray, "swaps c"]
) -> Float[np.ndarray, "swaps"]:
    occurs = occurrences > 0
    f1 = np.divide(2 * hits, occurrences, out=np.zeros_like(hits), where=occurs)
    return f1.sum(axis=1) / occurs.sum(axis=1)


@dataclass(frozen=True, eq=False)
class SwappedRisks:
    """The bags of one fold by risk: the C-index."""

    cases: Sequence[str]
    gains: Float[np.ndarray, "n"]
    """What each bag adds to the difference."""

    @classmethod
    def from_risks(
        cls,
        cases: Sequence[str],
        times: Float[np.ndarray, "n"],
        events: Bool[np.ndarray, "n"],
        ours: Float[np.ndarray, "n"],
        theirs: Float[np.ndarray, "n"],
    ) -> SwappedRisks:
        """InputError where no two bags can be compared."""
        comparable = events[:, None] & (
            (times[:, None] < times) | ((times[:, None] == times) & ~events)
        )  # first index: who died, second: who is known to have outlived that
        if not comparable.any():
            raise InputError("No two bags can be compared, so there is no C-index.")
        from scipy import stats

        ranks = {1: stats.rankdata(ours), -1: stats.rankdata(theirs)}
        agrees = {
            (first, second): np.where(
                comparable, (np.sign(ranks[first][:, None] - ranks[second]) + 1) / 2, 0.0
            )
            for first, second in product((1, -1), repeat=2)
        }
        both, neither = agrees[1, 1], agrees[-1, -1]
        as_first = both + agrees[1, -1] - agrees[-1, 1] - neither
        as_second = both + agrees[-1, 1] - agrees[1, -1] - neither
        return cls(cases, (as_first.sum(axis=1) + as_second.sum(axis=0)) / 2 / comparable.sum())

    @property
    def moves(self) -> Bool[np.ndarray, "n"]:
        return np.abs(self.gains) > 10.0**-DECIMALS

    def differences(self, signs: Signs) -> Float[np.ndarray, "swaps"]:
        return signs @ self.gains


SwappedBags = SwappedClasses | SwappedRisks


@dataclass(frozen=True)
class SwapTest:
    """A permutation test over cases."""

    difference: float
    p: float
    """1 where nothing differs."""
    moved: int
    """Cases whose swap can change anything."""


def swap_test(
    folds: Sequence[SwappedBags], *, generator: np.random.Generator, swaps: int = SWAPS
) -> SwapTest:
    """Two-sided p of the difference, averaged over the folds; there must be at least one."""
    moving = sorted(
        {case for fold in folds for case, moves in zip(fold.cases, fold.moves, strict=True) if moves}
    )
    position = {case: index for index, case in enumerate(moving)}
    # A case that moves nowhere has the sign behind the last.
    columns = [np.array([position.get(case, len(moving)) for case in fold.cases]) for fold in folds]

    def differences(signs: Signs) -> Float[np.ndarray, "swaps"]:
        signs = np.hstack([signs, np.ones((len(signs), 1))])
        return np.mean(
            [fold.differences(signs[:, own]) for fold, own in zip(folds, columns, strict=True)], axis=0
        )

    difference = float(differences(np.ones((1, len(moving))))[0])
    is_exact = 2 ** len(moving) <= swaps
    drawn = _all_signs(len(moving)) if is_exact else _draw_signs(len(moving), swaps, generator)
    found = np.concatenate([differences(signs) for signs in drawn])
    as_large = int((np.abs(found) >= abs(difference) - 10.0**-DECIMALS).sum())
    # Drawn swaps do not hold the one that was observed, which counts as well.
    p = as_large / len(found) if is_exact else (1 + as_large) / (1 + len(found))
    return SwapTest(difference, p, len(moving))


def _all_signs(n_cases: int) -> Iterator[Signs]:
    yield 1.0 - 2.0 * (np.arange(2**n_cases)[:, None] >> np.arange(n_cases) & 1)


def _draw_signs(n_cases: int, swaps: int, generator: np.random.Generator) -> Iterator[Signs]:
    for start in range(0, swaps, _AT_ONCE):
        yield 1.0 - 2.0 * generator.integers(2, size=(min(_AT_ONCE, swaps - start), n_cases))
