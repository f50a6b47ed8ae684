"""HDMIL's Chebyshev heads against numpy's chebval."""

import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebval

from gcemil.hosts.hdmil import chebyshev_kan

TOLERANCE = {"atol": 1e-6, "rtol": 0.0}


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
