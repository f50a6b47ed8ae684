"""IBMIL, MHIM and HDMIL against torchmil's AttentionPool and numpy's chebval on copied weights."""

import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebval

from gcemil.hosts.hdmil import Hdmil, chebyshev_kan

TOLERANCE = {"atol": 1e-6, "rtol": 0.0}


@pytest.fixture(params=[0, 1, 2])
def features(request: pytest.FixtureRequest) -> torch.Tensor:
    torch.manual_seed(request.param)
    return torch.randn(300, 64)


@pytest.mark.parametrize("degree", [1, 2, 12, 16])
def test_chebyshev_head_equals_numpys_chebval(degree: int) -> None:
    generator = torch.Generator().manual_seed(degree)
    inputs = 3 * torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    coefficients = torch.randn(2, 7, 4, degree + 1, generator=generator, dtype=torch.float64)
    expected = np.zeros((2, 5, 4))
    for head, row, out in np.ndindex(2, 5, 4):
        u = np.tanh(inputs[head, row].numpy())
        expected[head, row, out] = sum(
            chebval(value, coefficients[head, i, out].numpy()) for i, value in enumerate(u)
        )
    found = chebyshev_kan(inputs, coefficients)
    torch.testing.assert_close(found, torch.from_numpy(expected), **TOLERANCE)


@torch.no_grad()
def test_hdmil_logits_equal_numpys_chebval_of_the_pooled_feature(features: torch.Tensor) -> None:
    host = Hdmil(64, 2, dropout=0.0).double().train()
    embedded = host.embed(features.double())
    u = np.tanh((torch.softmax(embedded.attention_logits, dim=0).T @ embedded.tokens).numpy())
    coefficients = host.bag_heads.coefficients.numpy()[:, :, 0]
    expected = [chebval(u[c], coefficients[c].T, tensor=False).sum() for c in range(2)]
    np.testing.assert_allclose(host(features.double()).logits.numpy(), expected, atol=1e-6, rtol=0)
