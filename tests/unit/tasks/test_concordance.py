"""Concordance of three or four bags, counted by hand."""

import math

import numpy as np
import pytest

from gcemil.errors import InputError, UsageError
from gcemil.tasks.survival import concordance


def test_pairs_of_four_bags_counted_by_hand():
    # Events at 1 and 3. Pairs: 1 < 2, 3, 4 with risks 5 > 1, 5 > 2, 5 < 9; and 3 < 4 with 2 < 9.
    result = concordance(
        np.array([5.0, 1.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, False])
    )
    assert (result.concordant, result.discordant, result.tied_risk, result.tied_time) == (2, 2, 0, 0)
    assert result.index == pytest.approx(0.5)


def test_equal_risks_count_one_half():
    result = concordance(np.array([1.0, 1.0]), np.array([1.0, 2.0]), np.array([True, True]))
    assert (result.index, result.tied_risk) == (pytest.approx(0.5), 1)


def test_risks_within_the_tolerance_are_equal_and_beyond_it_are_not():
    times, events = np.array([1.0, 2.0]), np.array([True, False])
    assert concordance(np.array([1e-8, 0.0]), times, events).index == pytest.approx(0.5)
    assert concordance(np.array([1.1e-8, 0.0]), times, events).index == pytest.approx(1.0)


def test_a_censoring_at_the_time_of_an_event_is_comparable_but_a_second_event_is_not():
    risks, times = np.array([2.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0])
    result = concordance(risks, times, np.array([True, True, False]))
    assert (result.concordant, result.tied_time) == (2, 2)


def test_standard_error_of_two_disagreeing_pairs_by_hand():
    # One event, outlived by two: one pair right (score 1), one wrong (0); C = 1/2, residuals +1/2 and -1/2.
    # Per bag: event 0, others +1/2 and -1/2; root(1/4 + 1/4) / 2 pairs.
    result = concordance(np.array([1.0, 0.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.array([True, False, False]))
    assert result.standard_error == pytest.approx(math.sqrt(0.5) / 2)


def test_interval_is_the_normal_one_cut_at_zero_and_one():
    result = concordance(
        np.array([5.0, 4.0, 4.5, 1.0]), np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, True, False])
    )
    low, high = result.interval(level=0.95) or (0.0, 0.0)
    assert result.index == pytest.approx(5 / 6)
    assert low == pytest.approx(5 / 6 - 1.959964 * result.standard_error)
    assert high == pytest.approx(1.0)


def test_pairs_that_all_agree_have_no_interval():
    result = concordance(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([True, True, True]))
    assert result.index == pytest.approx(1.0)
    assert result.interval() is None


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_outside_zero_and_one_is_refused(level):
    result = concordance(np.array([1.0, 0.0]), np.array([1.0, 2.0]), np.array([True, False]))
    with pytest.raises(UsageError, match="between 0 and 1"):
        result.interval(level=level)


@pytest.mark.parametrize(
    ("times", "events"),
    [
        ([], []),
        ([1.0], [True]),
        ([1.0, 2.0], [False, False]),
        ([1.0, 1.0], [True, True]),
        ([1.0, 2.0], [False, True]),
    ],
    ids=["empty", "one bag", "all censored", "all tied", "last event"],
)
def test_without_a_comparable_pair_the_index_is_refused(times, events):
    with pytest.raises(InputError, match="no comparable pair"):
        concordance(np.zeros(len(times)), np.array(times), np.array(events, dtype=bool))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_risk_that_is_not_finite_is_refused(bad):
    with pytest.raises(InputError, match="1 of 2 risks are NaN"):
        concordance(np.array([bad, 0.0]), np.array([1.0, 2.0]), np.array([True, False]))
