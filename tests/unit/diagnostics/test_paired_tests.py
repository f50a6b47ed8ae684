"""Paired tests on numbers whose answers are known by hand or by scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gcemil.diagnostics.paired_tests import (
    bootstrap_interval,
    cohens_dz,
    holm,
    paired_t,
    paired_tests,
    rank_biserial,
    wilcoxon,
)


def draws():
    return np.random.default_rng(0)


def test_effect_sizes_known_by_hand():
    differences = np.array([1.0, 2.0, 3.0, -1.0])
    # Mean 5/4, squared deviations 1/16 + 9/16 + 49/16 + 81/16 = 140/16 over 3.
    assert cohens_dz(differences) == pytest.approx(1.25 / np.sqrt(140 / 48))
    # Ranks of 1, 2, 3, 1 are 1.5, 3, 4, 1.5; one of the 1.5 is against.
    assert rank_biserial(differences) == pytest.approx((8.5 - 1.5) / 10)


def test_five_folds_in_one_direction_give_the_smallest_wilcoxon_p():
    assert wilcoxon(np.array([0.01, 0.02, 0.03, 0.04, 0.05])) == pytest.approx(0.0625)
    assert wilcoxon(np.array([0.1, 0.1, 0.1, 0.1, 0.1])) == pytest.approx(0.0625)
    assert wilcoxon(np.array([0.3, 0.2])) == pytest.approx(0.5)


def test_ties_that_only_binary_numbers_break_are_ties():
    differences = np.array([0.8 - 0.7, 0.9 - 0.8, -(0.4 - 0.3), 0.5 - 0.4])
    assert len(set(np.abs(differences))) > 1
    # Four equal ranks: 3 or more of one sign in 10 of 16.
    assert wilcoxon(differences) == pytest.approx(10 / 16)
    assert rank_biserial(differences) == pytest.approx(0.5)


@given(st.lists(st.integers(-1000, 1000).filter(bool), min_size=5, max_size=12, unique_by=abs))
def test_both_tests_equal_scipy(values):
    differences = np.array(values, dtype=np.float64)
    assert wilcoxon(differences) == pytest.approx(
        stats.wilcoxon(differences, method="exact").pvalue
    )
    assert paired_t(differences) == pytest.approx(
        stats.ttest_1samp(differences, 0).pvalue, abs=1e-12
    )


def test_identical_values_cannot_be_tested():
    found = paired_tests(np.zeros(5), generator=draws())
    figures = [found[name] for name in ("difference", "difference_low", "difference_high")]
    assert figures == pytest.approx([0, 0, 0])
    assert (
        found["p_paired_t"]
        is found["p_wilcoxon"]
        is found["cohens_dz"]
        is found["rank_biserial"]
        is None
    )


def test_the_same_gain_in_every_fold_has_no_t():
    found = paired_tests(np.full(5, 0.1), generator=draws())
    assert found["p_paired_t"] is found["cohens_dz"] is None
    assert found["p_wilcoxon"] == pytest.approx(0.0625)
    assert found["rank_biserial"] == pytest.approx(1)


def test_two_folds_can_be_tested_and_one_cannot():
    two = paired_tests(np.array([0.1, 0.3]), generator=draws())
    # t = 0.2 / 0.1 with one degree of freedom: p = 1 - 2 atan(2) / pi.
    assert two["p_paired_t"] == pytest.approx(1 - 2 * np.arctan(2) / np.pi)
    assert two["p_wilcoxon"] == pytest.approx(0.5)
    assert (two["difference_low"], two["difference_high"]) == pytest.approx((0.1, 0.3))
    one = paired_tests(np.array([0.1]), generator=draws())
    assert one["difference"] == pytest.approx(0.1)
    assert (
        one["difference_low"] is one["p_paired_t"] is one["p_wilcoxon"] is one["cohens_dz"] is None
    )


def test_the_interval_is_that_of_all_resamples():
    differences = np.array([0.0, 1.0, 5.0])
    every = np.array(
        [[a, b, c] for a in differences for b in differences for c in differences]
    ).mean(axis=1)
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
