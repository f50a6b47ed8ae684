"""Cox windows small enough for pencil and paper: exp(risk) is 1, 2, 3 ..."""

import math

import pytest
import torch

from gcemil.tasks.survival import cox_loss


def log_of(*hazards: float) -> torch.Tensor:
    return torch.tensor(hazards, dtype=torch.float64).log()


def test_two_events_without_ties_are_the_textbook_fractions():
    # Risk sets {1, 2, 3} and {2, 3}; events are the bags of hazard 1 and 2.
    loss = cox_loss(
        log_of(1, 2, 3), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, False])
    )
    assert loss is not None
    assert loss.item() == pytest.approx(-(math.log(1 / 6) + math.log(2 / 5)) / 2)


@pytest.mark.parametrize(
    ("ties", "likelihood"),
    [("breslow", (1 / 6) * (2 / 6)), ("efron", (1 / 6) * (2 / (6 - 0.5 * (1 + 2))))],
)
def test_two_tied_events_follow_the_named_rule(ties, likelihood):
    loss = cox_loss(
        log_of(1, 2, 3), torch.tensor([1.0, 1.0, 3.0]), torch.tensor([True, True, False]), ties=ties
    )
    assert loss is not None
    assert loss.item() == pytest.approx(-math.log(likelihood) / 2)


def test_three_tied_events_take_away_thirds_under_efron():
    events = torch.tensor([True, True, True, False])
    loss = cox_loss(log_of(1, 2, 3, 4), torch.ones(4), events)
    assert loss is not None
    assert loss.item() == pytest.approx(-math.log((1 / 10) * (2 / (10 - 2)) * (3 / (10 - 4))) / 3)


def test_a_bag_censored_at_the_time_of_an_event_is_still_at_risk():
    loss = cox_loss(log_of(1, 3), torch.tensor([2.0, 2.0]), torch.tensor([True, False]))
    assert loss is not None
    assert loss.item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_an_eventless_window_has_no_loss_rather_than_zero(ties):
    assert (
        cox_loss(log_of(1, 2), torch.tensor([1.0, 2.0]), torch.tensor([False, False]), ties=ties)
        is None
    )


@pytest.mark.parametrize(
    ("times", "events"),
    [([1.0], [True]), ([1.0, 2.0], [False, True]), ([], [])],
    ids=["one", "last", "none"],
)
def test_a_window_whose_only_event_outlived_everyone_has_no_loss(times, events):
    risks = torch.zeros(len(times))
    assert cox_loss(risks, torch.tensor(times), torch.tensor(events, dtype=torch.bool)) is None


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_loss_and_gradient_stay_finite_where_exponentials_overflow(ties, scale):
    risks = (scale * torch.tensor([1.0, -1.0, 1.0, -1.0])).requires_grad_()
    times, events = torch.tensor([1.0, 1.0, 1.0, 2.0]), torch.tensor([True, True, False, True])
    loss = cox_loss(risks, times, events, ties=ties)
    assert loss is not None
    loss.backward()
    assert torch.isfinite(loss)
    assert risks.grad is not None
    assert torch.isfinite(risks.grad).all()
