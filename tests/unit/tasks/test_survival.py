"""Cox, discrete time and the C-index on a few bags: exp(risk) is 1, 2, 3, a logit of 0 is 1/2."""

import math

import numpy as np
import pytest
import torch

from gcemil.errors import InputError
from gcemil.tasks.survival import (
    baseline_logits,
    c_index,
    cox_loss,
    discrete_time_loss,
    interval_edges,
    interval_index,
)
from gcemil.tasks.task import DiscreteTimeTask

MIXED = torch.tensor([[0.0, math.log(3), 0.0, 0.0]], dtype=torch.float64)


def cox(hazards, times, events):
    risks = torch.tensor(hazards, dtype=torch.float64).log()
    return cox_loss(risks, torch.tensor(times), torch.tensor(events, dtype=torch.bool))


@pytest.mark.parametrize(
    ("hazards", "times", "events", "likelihoods"),
    [
        # Risk sets {1, 2, 3} and {2, 3}.
        ([1, 2, 3], [1.0, 2.0, 3.0], [1, 1, 0], [1 / 6, 2 / 5]),
        ([1, 2, 3], [1.0, 1.0, 3.0], [1, 1, 0], [1 / 6, 2 / (6 - 0.5 * (1 + 2))]),
        ([1, 2, 3, 4], [1.0] * 4, [1, 1, 1, 0], [1 / 10, 2 / (10 - 2), 3 / (10 - 4)]),
        # A bag censored at the time of an event is still at risk.
        ([1, 3], [2.0, 2.0], [1, 0], [1 / 4]),
    ],
    ids=["no ties", "two tied", "three tied", "censored at the event"],
)
def test_the_cox_loss_is_the_mean_over_events_with_efrons_ties(hazards, times, events, likelihoods):
    expected = -sum(map(math.log, likelihoods)) / len(likelihoods)
    assert cox(hazards, times, events).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("times", "events"),
    [([1.0, 2.0], [0, 0]), ([1.0], [1]), ([1.0, 2.0], [0, 1]), ([], [])],
    ids=["eventless", "one", "last", "none"],
)
def test_a_window_that_orders_nobody_has_no_loss(times, events):
    assert cox([1.0] * len(times), times, events) is None


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_cox_and_its_gradient_stay_finite_where_exponentials_overflow(scale):
    risks = (scale * torch.tensor([1.0, -1.0, 1.0, -1.0])).requires_grad_()
    times, events = torch.tensor([1.0, 1.0, 1.0, 2.0]), torch.tensor([True, True, False, True])
    loss = cox_loss(risks, times, events)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(risks.grad).all()


# Discrete time


def test_edges_are_quartiles_of_event_times_and_a_time_on_an_edge_is_in_the_later_interval():
    times = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 100.0, 200.0])
    edges = interval_edges(times, np.array([True] * 5 + [False] * 2))
    assert edges.tolist() == pytest.approx([2.0, 3.0, 4.0])
    found = interval_index(np.array([0.0, 1.9, 2.0, 3.5, 4.0, 500.0]), edges)
    assert found.tolist() == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("times", "event", "words"),
    [([1.0, 2.0], False, "None of 2 training"), ([1.0, 1.0, 1.0, 9.0], True, "coincide")],
)
def test_times_without_quartiles_are_refused(times, event, words):
    with pytest.raises(InputError, match=words):
        interval_edges(np.array(times), np.full(len(times), event))


@pytest.mark.parametrize(
    ("interval", "event", "likelihood"),
    [
        (0, True, 1 / 2),
        (1, True, 1 / 2 * 3 / 4),
        (0, False, 1 / 2),
        (1, False, 1 / 2 * 1 / 4),
        (3, False, 1 / 2 * 1 / 4 * 1 / 2 * 1 / 2),
    ],
)
def test_likelihood_of_one_case_is_the_product_along_its_intervals(interval, event, likelihood):
    loss = discrete_time_loss(MIXED, torch.tensor([interval]), torch.tensor([event]))
    assert loss.item() == pytest.approx(-math.log(likelihood))


def test_extreme_logits_keep_loss_and_gradient_finite():
    logits = torch.tensor([[200.0, -200.0, 200.0, -200.0]], requires_grad=True)
    loss = discrete_time_loss(logits, torch.tensor([1]), torch.tensor([True]))
    loss.backward()
    assert loss.item() == pytest.approx(400.0)
    assert logits.grad[0].tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0])


def test_the_baseline_is_the_hazard_of_the_cases_still_at_risk():
    # Interval 0: 1 death among 5. Interval 1: 1 of 4. Interval 2: none of 2. Interval 3: 1 of 1.
    intervals = np.array([0, 1, 1, 2, 3])
    events = np.array([True, True, False, False, True])
    expected = np.log([1.5 / 4.5, 1.5 / 3.5, 0.5 / 2.5, 1.5 / 0.5])
    np.testing.assert_allclose(baseline_logits(intervals, events), expected)


def test_a_task_of_one_output_moves_all_hazards_alike():
    times = torch.arange(1.0, 9.0)
    task = DiscreteTimeTask.of_training(torch.stack([times, torch.ones(8)], dim=1))
    assert task.edges == pytest.approx((2.75, 4.5, 6.25))
    early, late = torch.tensor([[1.0, 1.0]]), torch.tensor([[8.0, 1.0]])
    low, high = torch.tensor([[-1.0]]), torch.tensor([[1.0]])
    assert task.loss(high, early) < task.loss(low, early)
    assert task.loss(low, late) < task.loss(high, late)
    # At risk 0 an event in the first interval has the baseline's probability: (2 + 1/2) / (8 + 1).
    assert float(task.loss(torch.zeros(1, 1), early)) == pytest.approx(-np.log(2.5 / 9), abs=1e-6)


# The C-index


@pytest.mark.parametrize(
    ("risks", "times", "events", "index"),
    [
        # Pairs: 1 < 2, 3, 4 with risks 5 > 1, 5 > 2, 5 < 9; and 3 < 4 with 2 < 9.
        ([5.0, 1.0, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], 2 / 4),
        ([1.0, 1.0], [1.0, 2.0], [1, 1], 1 / 2),
        ([1e-8, 0.0], [1.0, 2.0], [1, 0], 1 / 2),
        ([1.1e-8, 0.0], [1.0, 2.0], [1, 0], 1.0),
        # Each event against the censoring at its time; the two events would be a third pair.
        ([2.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1, 1, 0], 1 / 2),
    ],
    ids=["four", "tied", "within the tolerance", "beyond it", "censored at the event"],
)
def test_concordant_pairs_counted_by_hand(risks, times, events, index):
    found = c_index(np.array(risks), np.array(times), np.array(events, dtype=bool))
    assert found == pytest.approx(index)


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
