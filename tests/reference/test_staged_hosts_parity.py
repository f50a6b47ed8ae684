"""IBMIL, MHIM and HDMIL against torchmil's AttentionPool and numpy's chebval on copied weights."""

import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebval
from torch import nn
from torchmil.nn import AttentionPool

from gcemil.hosts.hdmil import Hdmil, chebyshev_kan
from gcemil.hosts.ibmil import Ibmil
from gcemil.hosts.mhim import Mhim

TOLERANCE = {"atol": 1e-6, "rtol": 0.0}


@pytest.fixture(params=[0, 1, 2])
def features(request: pytest.FixtureRequest) -> torch.Tensor:
    torch.manual_seed(request.param)
    return torch.randn(300, 64)


def copied(pool: AttentionPool, first: nn.Linear, last_row: torch.Tensor) -> AttentionPool:
    with torch.no_grad():
        pool.fc1.module.weight.copy_(first.weight)
        pool.fc1.module.bias.copy_(torch.zeros(len(first.weight)) if first.bias is None else first.bias)
        pool.fc2.weight.copy_(last_row)
    return pool


@torch.no_grad()
def test_ibmil_first_stage_pools_as_torchmil(features: torch.Tensor) -> None:
    host = Ibmil(64, 2).eval()
    pool = copied(AttentionPool(512, 128, act="tanh"), host.attention[0], host.attention[2].weight)
    pooled, attention = pool(host.project(features).unsqueeze(0), return_att=True)
    output = host(features)
    torch.testing.assert_close(output.bag_feature, pooled[0], **TOLERANCE)
    torch.testing.assert_close(output.scores, attention[0] + host.attention[2].bias, **TOLERANCE)
    logits = host.head(torch.cat([pooled[0], torch.zeros(512)]))
    torch.testing.assert_close(output.logits, logits, **TOLERANCE)


@torch.no_grad()
def test_mhim_pools_as_torchmil(features: torch.Tensor) -> None:
    host = Mhim(64, 2).eval()
    base = host.student
    pool = copied(AttentionPool(512, 128, act="relu"), base.attention[0], base.attention[2].weight)
    pooled, attention = pool(base.project(features).unsqueeze(0), return_att=True)
    output = host(features)
    torch.testing.assert_close(output.bag_feature, pooled[0], **TOLERANCE)
    torch.testing.assert_close(output.scores, attention[0], **TOLERANCE)
    torch.testing.assert_close(output.logits, base.head(pooled[0]), **TOLERANCE)


@torch.no_grad()
def test_hdmil_full_path_pools_each_branch_as_torchmil(features: torch.Tensor) -> None:
    host = Hdmil(64, 3, dropout=0.0).train()
    tokens = host.project(features)
    branches = []
    for branch in range(3):
        pool = AttentionPool(512, 256, act="tanh", gated=True)
        copied(pool, host.attention.content, host.attention.score.weight[branch : branch + 1])
        pool.fc_gated.module.load_state_dict(host.attention.gate.state_dict())
        branches.append(pool(tokens.unsqueeze(0))[0])
    output = host(features)
    torch.testing.assert_close(output.bag_feature, branches[int(output.logits.argmax())], **TOLERANCE)
    expected = host.bag_heads(torch.stack(branches).unsqueeze(1)).flatten()
    # Degree-12 polynomials amplify the rounding of the pooled feature.
    torch.testing.assert_close(output.logits, expected, atol=1e-5, rtol=0.0)


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
