"""Swaps whose answers are known by hand or by trying all of them."""

from itertools import product

import numpy as np
import pytest
from paper.slide_tests import SwappedClasses, SwappedRisks, swap_test
from scipy import stats
from sklearn.metrics import f1_score

from gcemil.tasks.survival import c_index


def draws():
    return np.random.default_rng(0)


def names(n):
    return [f"case {index}" for index in range(n)]


def classes_of(labels, ours, theirs, cases=None):
    return SwappedClasses(cases or names(len(labels)), *map(np.array, (labels, ours, theirs)))


def true_macro_f1(labels, predicted):
    return f1_score(labels, predicted, average="macro")


def try_all_swaps(difference, ours, theirs, groups=None):
    """The share of all swaps with a difference as large, by the package's own metric."""
    groups = np.arange(len(ours)) if groups is None else np.array(groups)
    observed = difference(ours, theirs)
    found = []
    for choice in product((False, True), repeat=groups.max() + 1):
        swapped = np.array(choice)[groups]
        found.append(difference(np.where(swapped, theirs, ours), np.where(swapped, ours, theirs)))
    return observed, float((np.abs(found) >= abs(observed) - 1e-12).mean())


@pytest.mark.parametrize("seed", range(4))
def test_swapped_macro_f1_is_that_of_every_swap_tried(seed):
    generator = np.random.default_rng(seed)
    labels, ours, theirs = generator.integers(3, size=(3, 9))
    test = swap_test([classes_of(labels, ours, theirs)], generator=draws())
    observed, p = try_all_swaps(
        lambda a, b: true_macro_f1(labels, a) - true_macro_f1(labels, b), ours, theirs
    )
    assert (test.difference, test.p) == pytest.approx((observed, p))


@pytest.mark.parametrize("seed", range(4))
def test_swapped_c_index_is_that_of_every_swap_tried(seed):
    generator = np.random.default_rng(seed)
    times, events = generator.integers(1, 6, size=9).astype(float), generator.random(9) < 0.6
    # Ranks of each model, some of them tied, so that the swap of ranks is the swap of risks.
    ours, theirs = (stats.rankdata(generator.integers(6, size=9)) for _ in range(2))
    events[times.argmin()] = True
    bags = SwappedRisks.from_risks(names(9), times, events, ours, theirs)
    test = swap_test([bags], generator=draws())
    observed, p = try_all_swaps(
        lambda a, b: c_index(a, times, events) - c_index(b, times, events), ours, theirs
    )
    assert (test.difference, test.p) == pytest.approx((observed, p))


def test_slides_of_a_case_are_swapped_together():
    labels, ours, theirs = (
        np.array([0, 0, 1, 1, 2, 2]),
        np.array([0, 0, 1, 1, 2, 2]),
        np.array([1, 1, 0, 1, 2, 0]),
    )
    cases = ["a", "a", "b", "b", "c", "d"]
    test = swap_test([classes_of(labels, ours, theirs, cases)], generator=draws())
    observed, p = try_all_swaps(
        lambda a, b: true_macro_f1(labels, a) - true_macro_f1(labels, b),
        ours,
        theirs,
        [0, 0, 1, 1, 2, 3],
    )
    assert (test.difference, test.p, test.moved) == pytest.approx((observed, p, 3))


def test_p_is_uniform_where_two_models_are_alike():
    generator = np.random.default_rng(7)
    found = []
    for _ in range(300):
        labels = generator.integers(3, size=60)
        ours, theirs = (
            np.where(generator.random(60) < 0.7, labels, generator.integers(3, size=60))
            for _ in range(2)
        )
        found.append(
            swap_test([classes_of(labels, ours, theirs)], generator=generator, swaps=199).p
        )
    # 300 draws of a uniform p: 15 below 0.05 with a deviation of 3.8, 150 below a half with 8.7.
    assert 4 <= sum(p <= 0.05 for p in found) <= 27
    assert 120 <= sum(p <= 0.5 for p in found) <= 180
