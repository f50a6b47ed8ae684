"""A permutation test of two models on the bags that both tested.

The two predictions of a case change sides at random, and the difference of the metric is taken anew; p is the share of swaps
that differ as much as the models do. All swaps are tried where few cases differ, else some are drawn.

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

from gcemil.diagnostics.paired_tests import DECIMALS
from gcemil.errors import InputError

SWAPS = 10_000
_AT_ONCE = 1_000
"""Swaps that are in memory together."""

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
        {
            case
            for fold in folds
            for case, moves in zip(fold.cases, fold.moves, strict=True)
            if moves
        }
    )
    position = {case: index for index, case in enumerate(moving)}
    # A case that moves nowhere has the sign behind the last.
    columns = [np.array([position.get(case, len(moving)) for case in fold.cases]) for fold in folds]

    def differences(signs: Signs) -> Float[np.ndarray, "swaps"]:
        signs = np.hstack([signs, np.ones((len(signs), 1))])
        return np.mean(
            [fold.differences(signs[:, own]) for fold, own in zip(folds, columns, strict=True)],
            axis=0,
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
