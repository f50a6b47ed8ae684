"""Loss terms against numbers by hand."""

import math

import pytest
import torch

from gcemil.evidence.coverage import patch_concept_presence
from gcemil.evidence.losses import (
    NullTarget,
    budget_excess_squared,
    grounding_divergence,
    grounding_squared_error,
)


def test_only_an_exceeded_budget_costs() -> None:
    assert float(budget_excess_squared(torch.tensor([0.1, 0.3]), budget=0.05)) == pytest.approx(
        0.0225
    )
    assert float(budget_excess_squared(torch.tensor([0.0, 0.04]), budget=0.05)) == pytest.approx(
        0.0
    )


def test_the_divergence_by_hand() -> None:
    responses = torch.tensor([[0.6], [0.2]])
    gates = torch.tensor([0.3, 0.3])
    # q = (3/4, 1/4) against (1/2, 1/2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(
        grounding_divergence(gates.log(), responses, torch.tensor([4.0]))
    ) == pytest.approx(expected)


def test_the_divergence_ignores_the_scale_of_the_gates_and_vanishes_at_its_target() -> None:
    responses = torch.rand(10, 3, dtype=torch.float64)
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    presence = patch_concept_presence(responses, weights / 2)
    for scale in (1.0, 1e-8):
        loss = grounding_divergence((scale * presence).log(), responses, weights)
        assert float(loss) == pytest.approx(0.0, abs=1e-12)


def test_the_divergence_teaches_the_gates_and_not_the_responses() -> None:
    log_gates = torch.tensor([-0.5, -0.5], requires_grad=True)
    responses = torch.tensor([[0.9], [0.1]], requires_grad=True)
    weights = torch.tensor([1.0], requires_grad=True)
    grounding_divergence(log_gates, responses, weights).backward()
    assert responses.grad is None
    assert weights.grad is None
    assert log_gates.grad is not None
    # d KL / d log pi = pi / sum pi - q
    assert log_gates.grad.tolist() == pytest.approx([0.5 - 0.9, 0.5 - 0.1])


def test_the_divergence_stays_finite_when_a_gate_is_closed_or_nothing_responds() -> None:
    log_gates = torch.tensor([0.0, -math.inf], requires_grad=True)
    loss = grounding_divergence(log_gates, torch.tensor([[0.5], [0.5]]), torch.ones(1))
    assert loss.item() == pytest.approx(math.log(0.5) - 0.5 * math.log(1e-6), rel=1e-5)
    loss.backward()
    assert log_gates.grad is not None
    assert torch.isfinite(log_gates.grad).all()
    assert float(
        grounding_divergence(torch.zeros(2), torch.zeros(2, 1), torch.ones(1))
    ) == pytest.approx(0.0)
    assert float(
        grounding_divergence(torch.zeros(2), torch.ones(2, 1), torch.zeros(1))
    ) == pytest.approx(0.0)


def test_the_literal_grounding_pulls_both_sides() -> None:
    gates = torch.tensor([0.05, 0.05], requires_grad=True)
    responses = torch.tensor([[0.5, 0.5], [0.0, 0.0]], requires_grad=True)
    loss = grounding_squared_error(gates, responses)
    assert loss.item() == pytest.approx((0.7**2 + 0.05**2) / 2)
    loss.backward()
    assert gates.grad is not None
    assert responses.grad is not None
    assert gates.grad[0] < 0
    assert (responses.grad[0] > 0).all()


def test_necessity_is_least_where_the_complement_says_the_null() -> None:
    null = NullTarget(2, momentum=1.0, peak=1.0)
    null.running_mean.copy_(torch.tensor([0.8, 0.2]))
    assert float(null.distance(torch.zeros(2))) == pytest.approx(math.log(2))
    logits = torch.tensor([math.log(4.0), 0.0], requires_grad=True)
    null.distance(logits).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_the_null_target_starts_uniform_and_peaks_on_what_complements_say() -> None:
    null = NullTarget(4)
    assert null().tolist() == pytest.approx([0.25] * 4)
    null.update(torch.tensor([100.0, 0.0, 0.0, 0.0]))
    mean = [0.95 * 0.25 + 0.05] + [0.95 * 0.25] * 3
    assert null.running_mean.tolist() == pytest.approx(mean)
    squares = [value**2 for value in mean]
    assert null().tolist() == pytest.approx([value / sum(squares) for value in squares])
