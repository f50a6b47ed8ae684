"""Paired tests on numbers whose answers are known by hand, by scipy or by trying everything."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gcemil.diagnostics.paired_tests import (
    SwappedClasses,
    SwappedRisks,
    bootstrap_interval,
    cohens_dz,
    holm,
    paired_t,
    paired_tests,
    rank_biserial,
    smallest_wilcoxon,
    swap_test,
    wilcoxon,
)
from gcemil.errors import InputError
from gcemil.tasks.classification import macro_f1
from gcemil.tasks.survival import c_index


def draws():
    return np.random.default_rng(0)


def test_effect_sizes_known_by_hand():
    differences = np.array([1.0, 2.0, 3.0, -1.0])
    # Mean 5/4, squared deviations 1/16 + 9/16 + 49/16 + 81/16 = 140/16 over 3.
    assert cohens_dz(differences) == pytest.approx(1.25 / np.sqrt(140 / 48))
    # Ranks of 1, 2, 3, 1 are 1.5, 3, 4, 1.5; one of the 1.5 is against.
    assert rank_biserial(differences) == pytest.approx((8.5 - 1.5) / 10)


def test_five_folds_in_one_direction_give_the_smallest_wilcoxon_p():
    assert smallest_wilcoxon(5) == pytest.approx(0.0625)
    assert wilcoxon(np.array([0.01, 0.02, 0.03, 0.04, 0.05])) == pytest.approx(0.0625)
    assert wilcoxon(np.array([0.1, 0.1, 0.1, 0.1, 0.1])) == pytest.approx(0.0625)
    assert (wilcoxon(np.array([0.3, 0.2])), smallest_wilcoxon(2)) == pytest.approx((0.5, 0.5))


def test_one_small_loss_among_five_gains_doubles_the_wilcoxon_p():
    # Only the signs of rank 1 or of none are as extreme: 4 of 32.
    assert wilcoxon(np.array([-0.01, 0.02, 0.03, 0.04, 0.05])) == pytest.approx(0.125)


def test_ties_that_only_binary_numbers_break_are_ties():
    differences = np.array([0.8 - 0.7, 0.9 - 0.8, -(0.4 - 0.3), 0.5 - 0.4])
    assert len(set(np.abs(differences))) > 1
    # Four equal ranks: 3 or more of one sign in 10 of 16.
    assert wilcoxon(differences) == pytest.approx(10 / 16)
    assert rank_biserial(differences) == pytest.approx(0.5)


@given(st.lists(st.integers(-1000, 1000).filter(bool), min_size=5, max_size=12, unique_by=abs))
def test_both_tests_equal_scipy(values):
    differences = np.array(values, dtype=np.float64)
    assert wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue)
    assert paired_t(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=1e-12)


def test_zeros_are_left_out_of_the_ranks():
    assert wilcoxon(np.array([0.0, 1.0, 2.0, 3.0])) == pytest.approx(0.25)
    assert rank_biserial(np.array([0.0, 1.0])) == pytest.approx(1)


def test_many_pairs_are_handed_to_scipy():
    differences = np.random.default_rng(1).normal(0.3, 1, size=40)
    assert wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences).pvalue)


def test_identical_values_cannot_be_tested():
    found = paired_tests(np.zeros(5), generator=draws())
    assert (found.difference, found.deviation, found.low, found.high) == pytest.approx((0, 0, 0, 0))
    assert found.p_paired_t is found.p_wilcoxon is found.cohens_dz is found.rank_biserial is None


def test_the_same_gain_in_every_fold_has_no_t():
    found = paired_tests(np.full(5, 0.1), generator=draws())
    assert found.p_paired_t is found.cohens_dz is None
    assert found.p_wilcoxon == pytest.approx(0.0625)
    assert found.rank_biserial == pytest.approx(1)


def test_two_folds_can_be_tested_and_one_cannot():
    two = paired_tests(np.array([0.1, 0.3]), generator=draws())
    # t = 0.2 / 0.1 with one degree of freedom: p = 1 - 2 atan(2) / pi.
    assert two.p_paired_t == pytest.approx(1 - 2 * np.arctan(2) / np.pi)
    assert two.p_wilcoxon == pytest.approx(0.5)
    assert (two.low, two.high) == pytest.approx((0.1, 0.3))
    one = paired_tests(np.array([0.1]), generator=draws())
    assert one.n_pairs == 1
    assert one.difference == pytest.approx(0.1)
    assert one.deviation is one.low is one.p_paired_t is one.p_wilcoxon is one.cohens_dz is None


def test_the_interval_is_that_of_all_resamples():
    differences = np.array([0.0, 1.0, 5.0])
    every = np.array([[a, b, c] for a in differences for b in differences for c in differences]).mean(axis=1)
    low, high = bootstrap_interval(differences, generator=draws(), confidence=0.8, resamples=50_000)
    assert (low, high) == pytest.approx(np.quantile(every, [0.1, 0.9]), abs=0.34)
    assert bootstrap_interval(differences, generator=draws()) == bootstrap_interval(
        differences, generator=draws()
    )


def test_holm_multiplies_by_how_many_are_left_and_never_falls():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_holm_counts_only_tests_that_were_possible():
    assert holm([None, 0.02, None, 0.03]) == pytest.approx([None, 0.04, None, 0.04])
    assert holm([]) == []


def names(n):
    return [f"case {index}" for index in range(n)]


def classes_of(labels, ours, theirs, cases=None):
    return SwappedClasses(cases or names(len(labels)), *map(np.array, (labels, ours, theirs)))


def true_macro_f1(labels, predicted, n_classes=3):
    matrix = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(matrix, (labels, predicted), 1)
    return macro_f1(matrix)


def try_all_swaps(difference, ours, theirs, groups=None):
    """The share of all swaps with a difference as large, by the package's own metric."""
    groups = np.arange(len(ours)) if groups is None else np.array(groups)
    observed = difference(ours, theirs)
    found = []
    for choice in product((False, True), repeat=groups.max() + 1):
        swapped = np.array(choice)[groups]
        found.append(difference(np.where(swapped, theirs, ours), np.where(swapped, ours, theirs)))
    return observed, float((np.abs(found) >= abs(observed) - 1e-12).mean())


def test_swaps_of_two_slides_by_hand():
    # Two slides of four differ, both in favour of ours: Macro-F1 1 against 1/3 (class 1 is never found).
    test = swap_test([classes_of([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0])], generator=draws())
    assert test.difference == pytest.approx(1 - 1 / 3)
    # Of the four swaps none and both have it; one alone makes both sides equal.
    assert (test.p, test.moved) == (0.5, 2)


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


def test_a_model_that_stretches_all_risks_does_not_differ():
    risks = np.array([0.1, 0.5, 0.3, 0.9])
    times, events = np.array([4.0, 2.0, 3.0, 1.0]), np.array([True, True, False, True])
    test = swap_test(
        [SwappedRisks.from_risks(names(4), times, events, risks, 10 * risks + 7)], generator=draws()
    )
    assert (test.difference, test.p, test.moved) == (0.0, 1.0, 0)


def test_identical_predictions_give_one_since_nothing_differs():
    test = swap_test([classes_of([0, 1, 2], [0, 1, 1], [0, 1, 1])], generator=draws())
    assert (test.difference, test.p, test.moved) == (0.0, 1.0, 0)


def test_slides_of_a_case_are_swapped_together():
    labels, ours, theirs = (
        np.array([0, 0, 1, 1, 2, 2]),
        np.array([0, 0, 1, 1, 2, 2]),
        np.array([1, 1, 0, 1, 2, 0]),
    )
    cases = ["a", "a", "b", "b", "c", "d"]
    test = swap_test([classes_of(labels, ours, theirs, cases)], generator=draws())
    observed, p = try_all_swaps(
        lambda a, b: true_macro_f1(labels, a) - true_macro_f1(labels, b), ours, theirs, [0, 0, 1, 1, 2, 3]
    )
    assert (test.difference, test.p, test.moved) == pytest.approx((observed, p, 3))


def test_differences_are_averaged_over_folds_within_every_swap():
    first = classes_of([0, 1], [0, 1], [0, 0], ["a", "b"])
    second = classes_of([0, 1], [0, 0], [0, 1], ["c", "d"])
    apart = swap_test([first, second], generator=draws())
    # One slide for and one against: of four swaps two cancel and two do not, and 0 was observed.
    assert (apart.difference, apart.p, apart.moved) == (0.0, 1.0, 2)
    # The same slide in two seeds is swapped once: with both in favour only two swaps exist.
    seeds = swap_test([first, first], generator=draws())
    assert (seeds.difference, seeds.p, seeds.moved) == (pytest.approx(2 / 3), 1.0, 1)


def test_many_slides_are_drawn_and_drawn_alike_from_one_seed():
    generator = np.random.default_rng(5)
    labels = generator.integers(2, size=60)
    ours, theirs = (np.where(generator.random(60) < share, labels, 1 - labels) for share in (0.9, 0.5))
    first, second = (swap_test([classes_of(labels, ours, theirs)], generator=draws()) for _ in range(2))
    assert first == second
    # 27 right of 30 against 15 of 30, roughly: no swap of ten thousand comes near.
    assert first.p < 0.01
    few = swap_test([classes_of(labels, ours, theirs)], generator=draws(), swaps=99)
    # The observed one counts, so that no p is 0.
    assert few.p >= 0.01


def test_p_is_uniform_where_two_models_are_alike():
    generator = np.random.default_rng(7)
    found = []
    for _ in range(300):
        labels = generator.integers(3, size=60)
        ours, theirs = (
            np.where(generator.random(60) < 0.7, labels, generator.integers(3, size=60)) for _ in range(2)
        )
        found.append(swap_test([classes_of(labels, ours, theirs)], generator=generator, swaps=199).p)
    # 300 draws of a uniform p: 15 below 0.05 with a deviation of 3.8, 150 below a half with 8.7.
    assert 4 <= sum(p <= 0.05 for p in found) <= 27
    assert 120 <= sum(p <= 0.5 for p in found) <= 180


def test_risks_without_a_comparable_pair_are_refused():
    with pytest.raises(InputError, match="No two bags can be compared"):
        SwappedRisks.from_risks(
            names(2),
            np.array([1.0, 2.0]),
            np.array([False, False]),
            np.array([0.1, 0.2]),
            np.array([0.2, 0.1]),
        )
