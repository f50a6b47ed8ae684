"""Simplex gates against the entmax package: its bisection, which shares no code with the sort it gives us, and itself."""

import pytest
import torch
from entmax import entmax15, entmax_bisect, sparsemax, sparsemax_bisect
from torch import Tensor

from gcemil.evidence.gates import Gate

CASES = {
    "sparsemax": (sparsemax, lambda x: sparsemax_bisect(x, dim=0, n_iter=100)),
    "entmax15": (entmax15, lambda x: entmax_bisect(x, alpha=1.5, dim=0, n_iter=100)),
}


def bag_scores(n: int, spread: float) -> Tensor:
    return spread * torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("kind", sorted(CASES))
@pytest.mark.parametrize(("n", "spread"), [(1, 1.0), (7, 0.1), (200, 1.0), (5000, 3.0)])
@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_simplex_gates_are_the_package_probabilities_over_their_maximum(
    kind: str, n: int, spread: float, temperature: float
) -> None:
    scores = bag_scores(n, spread)
    output = Gate(kind)(scores, temperature=temperature)
    exact, bisected = CASES[kind]
    for probabilities in (exact(scores / temperature, dim=0), bisected(scores / temperature)):
        torch.testing.assert_close(
            output.gates, probabilities / probabilities.max(), rtol=1e-6, atol=1e-8
        )
    assert torch.equal(output.selected, exact(scores / temperature, dim=0) > 0)


@pytest.mark.parametrize("kind", sorted(CASES))
def test_simplex_gates_have_the_gradient_of_the_package(kind: str) -> None:
    scores = bag_scores(50, 1.0).requires_grad_()
    pull = torch.linspace(-1, 1, 50, dtype=torch.float64)
    gates = Gate(kind)(scores, temperature=1.0).gates
    (gradient,) = torch.autograd.grad(gates @ pull, scores)
    bisected = CASES[kind][1](scores)
    (expected,) = torch.autograd.grad((bisected / bisected.max()) @ pull, scores)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)
