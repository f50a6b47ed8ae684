"""Concordance of three or four bags, counted by hand."""

import numpy as np
import pytest

from gcemil.errors import InputError
from gcemil.tasks.survival import c_index


def test_pairs_of_four_bags_counted_by_hand():
    # Events at 1 and 3. Pairs: 1 < 2, 3, 4 with risks 5 > 1, 5 > 2, 5 < 9; and 3 < 4 with 2 < 9.
    index = c_index(
        np.array([5.0, 1.0, 2.0, 9.0]),
        np.array([1.0, 2.0, 3.0, 4.0]),
        np.array([True, False, True, False]),
    )
    assert index == pytest.approx(2 / 4)


def test_equal_risks_count_one_half():
    assert c_index(
        np.array([1.0, 1.0]), np.array([1.0, 2.0]), np.array([True, True])
    ) == pytest.approx(0.5)


def test_risks_within_the_tolerance_are_equal_and_beyond_it_are_not():
    times, events = np.array([1.0, 2.0]), np.array([True, False])
    assert c_index(np.array([1e-8, 0.0]), times, events) == pytest.approx(0.5)
    assert c_index(np.array([1.1e-8, 0.0]), times, events) == pytest.approx(1.0)


def test_a_censoring_at_the_time_of_an_event_is_comparable_but_a_second_event_is_not():
    # Each event against the censoring, one right and one wrong; the two events would be a third pair.
    risks, times = np.array([2.0, 0.0, 1.0]), np.array([1.0, 1.0, 1.0])
    assert c_index(risks, times, np.array([True, True, False])) == pytest.approx(1 / 2)


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
        c_index(np.zeros(len(times)), np.array(times), np.array(events, dtype=bool))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_risk_that_is_not_finite_is_refused(bad):
    with pytest.raises(InputError, match="1 of 2 risks are NaN"):
        c_index(np.array([bad, 0.0]), np.array([1.0, 2.0]), np.array([True, False]))
