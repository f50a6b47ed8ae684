"""Gate variants."""

import math

import pytest
import torch

from gcemil.evidence.gates import Gate, budget_count, slide_centre, straight_through

SCORES = torch.tensor([0.0, 4.0, 1.0, 3.0])


@pytest.mark.parametrize(
    ("n", "budget", "k"),
    [(1000, 0.05, 50), (10, 0.01, 1), (1, 0.05, 1), (3, 1.0, 3), (30, 0.05, 2)],
)
def test_the_budget_counts_patches(n: int, budget: float, k: int) -> None:
    assert budget_count(n, budget=budget) == k


def test_the_slide_centre_lies_midway_between_last_in_and_first_out() -> None:
    assert float(slide_centre(SCORES, 2)) == pytest.approx(2.0)
    assert float(slide_centre(SCORES, 1)) == pytest.approx(3.5)
    assert float(slide_centre(SCORES, 4)) == -math.inf
    assert float(slide_centre(torch.tensor([3e38, 2.9e38]), 1)) == pytest.approx(2.95e38)


def test_the_consecutive_gate_is_the_annealed_sigmoid() -> None:
    output = Gate("consecutive", budget=0.5)(SCORES, temperature=0.5)
    torch.testing.assert_close(torch.logit(output.gates), (SCORES - 2) / 0.5)
    assert output.selected.tolist() == [False, True, False, True]
    wider = Gate("consecutive", budget=0.25)(SCORES, temperature=0.1, count=3)
    assert wider.selected.tolist() == [False, True, True, True]
    paper = Gate("consecutive", centre="zero")(SCORES, temperature=0.4)
    torch.testing.assert_close(paper.gates, torch.sigmoid(SCORES / 0.4))


@pytest.mark.parametrize("kind", ["sigmoid_threshold", "concrete", "consecutive", "gumbel_sigmoid"])
def test_a_bag_within_its_budget_is_all_open_with_finite_gradients(kind: str) -> None:
    scores = torch.tensor([-5.0], requires_grad=True)
    output = Gate(kind)(scores, temperature=0.1)
    assert output.gates.tolist() == pytest.approx([1.0])
    assert output.log_gates.tolist() == pytest.approx([0.0])
    assert output.selected.tolist() == [True]
    (output.gates.sum() + output.log_gates.sum()).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [0.0]


def test_the_logarithm_survives_where_the_gate_underflows() -> None:
    scores = torch.tensor([-300.0, 300.0], requires_grad=True)
    output = Gate("consecutive", centre="zero")(scores, temperature=1.0)
    assert output.gates[0] == 0
    assert output.log_gates.tolist() == pytest.approx([-300.0, 0.0])
    output.log_gates[0].backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == pytest.approx([1.0, 0.0])


def test_noise_moves_gates_in_training_only_and_repeats_with_its_generator() -> None:
    gate = Gate("concrete", budget=0.5)
    noisy = [
        gate(SCORES, temperature=0.5, generator=torch.Generator().manual_seed(s)).gates
        for s in (1, 1, 2)
    ]
    assert torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy[0], noisy[2])
    gate.eval()
    torch.testing.assert_close(
        gate(SCORES, temperature=0.5).gates, torch.sigmoid((SCORES - 2) / 0.5)
    )


def test_the_noise_is_logistic() -> None:
    gate = Gate("gumbel_sigmoid", centre="zero")
    scores = torch.full((40_000,), 1.0)
    opened = gate(scores, temperature=1.0, generator=torch.Generator().manual_seed(0)).selected
    # P(1 + logistic > 0) = sigma(1)
    assert float(opened.float().mean()) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.01)


def test_top_k_opens_exactly_k_and_breaks_ties_by_index() -> None:
    gate = Gate("top_k", budget=0.5).eval()
    output = gate(torch.tensor([1.0, 2.0, 1.0, 1.0]), temperature=1.0)
    assert output.selected.tolist() == [True, True, False, False]
    assert output.gates.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert output.log_gates.tolist() == [0.0, 0.0, -math.inf, -math.inf]


def test_top_k_in_training_is_hard_forward_and_soft_backward() -> None:
    scores = SCORES.clone().requires_grad_()
    output = Gate("top_k", budget=0.5)(scores, temperature=2.0)
    assert output.gates.tolist() == [0.0, 1.0, 0.0, 1.0]
    output.gates.sum().backward()
    soft = torch.sigmoid((SCORES - 2) / 2)
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad, soft * (1 - soft) / 2)


def test_straight_through_gives_an_attention_host_the_gradient_of_its_weights() -> None:
    """The log-gate of a closed patch must carry d/d pi of sum pi e^z m / sum pi e^z taken at pi = 0."""
    logits, values = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    selected = torch.tensor([True, False, True, False, False])
    gates = torch.rand(5, dtype=torch.float64, requires_grad=True)
    output = straight_through(gates, selected)
    (torch.softmax(logits + output.log_gates, 0) @ values).backward()
    hard = selected.double().requires_grad_()
    weights = hard * logits.exp()
    (weights @ values / weights.sum()).backward()
    torch.testing.assert_close(gates.grad, hard.grad, rtol=1e-4, atol=1e-5)
