"""Four intervals by hand: a logit of 0 is a hazard of one half, log 3 of three quarters."""

import math

import numpy as np
import pytest
import torch

from gcemil.errors import InputError
from gcemil.tasks.survival import (
    baseline_logits,
    discrete_time_loss,
    interval_edges,
    interval_index,
)
from gcemil.tasks.task import DiscreteTimeTask

MIXED = torch.tensor([[0.0, math.log(3), 0.0, 0.0]], dtype=torch.float64)


def test_edges_are_quartiles_of_event_times_and_ignore_censored_ones():
    times = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 100.0, 200.0])
    events = np.array([True, True, True, True, True, False, False])
    assert interval_edges(times, events).tolist() == pytest.approx([2.0, 3.0, 4.0])


def test_a_time_on_an_edge_belongs_to_the_later_interval_and_the_ends_are_open():
    edges = np.array([2.0, 3.0, 4.0])
    assert interval_index(np.array([0.0, 1.9, 2.0, 3.5, 4.0, 500.0]), edges).tolist() == [
        0,
        0,
        1,
        2,
        3,
        3,
    ]


def test_edges_without_an_event_are_refused():
    with pytest.raises(InputError, match="None of 2 training cases has an event"):
        interval_edges(np.array([1.0, 2.0]), np.array([False, False]))


def test_edges_that_coincide_are_refused():
    with pytest.raises(InputError, match="coincide"):
        interval_edges(np.array([1.0, 1.0, 1.0, 9.0]), np.ones(4, dtype=bool))


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
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0])


def test_the_baseline_is_the_hazard_of_the_cases_still_at_risk():
    # Interval 0: 1 death among 5. Interval 1: 1 among 4. Interval 2: none among 2. Interval 3: 1 among 1.
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
    # At risk 0 an event in the first interval has the baseline's own probability: (2 + 1/2) / (8 + 1).
    assert float(task.loss(torch.zeros(1, 1), early)) == pytest.approx(-np.log(2.5 / 9), abs=1e-6)
