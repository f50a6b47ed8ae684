"""The low-rank adapter and its folded form."""

import pytest
import torch

from gcemil.evidence.selector import LowRankAdapter
from gcemil.row_blocks import apply_reads


def perturbed_adapter(in_dim: int, dtype: torch.dtype) -> LowRankAdapter:
    """An adapter far from its start, so that every factor matters."""
    torch.manual_seed(4)
    adapter = LowRankAdapter(in_dim, adapter_rank=3).to(dtype)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return adapter


def test_the_adapter_is_the_formula_of_the_paper() -> None:
    adapter = perturbed_adapter(7, torch.float64)
    features = torch.randn(5, 7, dtype=torch.float64)
    residual = (torch.eye(7, dtype=torch.float64) + adapter.up @ adapter.down.T) @ features.T
    expected = torch.nn.functional.layer_norm(
        residual.T, (7,), adapter.norm.weight, adapter.norm.bias
    )
    torch.testing.assert_close(adapter(features), expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_folded_layer_equals_the_layer_on_adapted_features(
    dtype: torch.dtype, tolerance: float
) -> None:
    adapter = perturbed_adapter(96, dtype)
    layer = torch.nn.Linear(96, 8).to(dtype)
    features = torch.randn(40, 96, dtype=dtype) + 1
    (folded,) = apply_reads(features, [adapter.linear(layer.weight, layer.bias)])
    torch.testing.assert_close(
        folded, layer(adapter(features)), rtol=tolerance, atol=10 * tolerance
    )


def test_the_folded_layer_has_the_gradient_of_the_plain_one() -> None:
    adapter = perturbed_adapter(6, torch.float64)
    layer = torch.nn.Linear(6, 4).double()
    features = torch.randn(9, 6, dtype=torch.float64)
    parameters = [*adapter.parameters(), *layer.parameters()]
    (folded,) = apply_reads(features, [adapter.linear(layer.weight, layer.bias)])
    gradients = torch.autograd.grad(folded.sin().sum(), parameters)
    expected = torch.autograd.grad(layer(adapter(features)).sin().sum(), parameters)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)
