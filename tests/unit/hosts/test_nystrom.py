"""The layer in its two forms, and what a log-gate takes away."""

import pytest
import torch

from builders.published import published_iteration
from gcemil.evidence.gates import straight_through
from gcemil.hosts.nystrom import NystromAttention, attended


def make_layer(*, landmarks=8, seed=0):
    torch.manual_seed(seed)
    return (
        NystromAttention(16, heads=2, head_width=8, landmarks=landmarks, kernel=5).double().eval()
    )


def make_tokens(length, *, seed=1):
    return torch.randn(
        length, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 40])
@pytest.mark.parametrize("gated", [False, True])
def test_first_row_is_the_first_row_of_the_whole_layer(length, gated):
    layer, tokens = make_layer(), make_tokens(length)
    log_gates = torch.linspace(0.1, 1, length, dtype=torch.float64).log() if gated else None
    output, _ = layer.first_row(tokens, log_gates)
    torch.testing.assert_close(output, layer(tokens, log_gates)[0], rtol=0, atol=1e-12)


def test_a_token_with_a_vanishing_gate_no_longer_acts_on_the_others():
    layer, tokens = make_layer(), make_tokens(24)
    log_gates = torch.zeros(24, dtype=torch.float64)
    log_gates[10] = -80
    changed = tokens.clone()
    changed[10] = 5 * make_tokens(1, seed=9)
    others = torch.arange(24) != 10
    before, after = layer(tokens, log_gates)[others], layer(changed, log_gates)[others]
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)
    assert (layer(tokens)[others] - layer(changed)[others]).abs().max() > 1e-2


def test_with_as_many_landmarks_as_tokens_gates_give_exact_gated_attention():
    # A1 = A2 when every token is a landmark, so A1 pinv(A2) A3 = A3: landmarks are a basis, not evidence.
    torch.manual_seed(0)
    layer = (
        NystromAttention(16, heads=2, head_width=8, landmarks=12, kernel=5, iterations=60)
        .double()
        .eval()
    )
    torch.nn.init.zeros_(layer.value_conv.weight)
    tokens, log_gates = 3 * make_tokens(12), make_tokens(12, seed=5)[:, 0].abs().neg()
    query, key, value = layer.qkv(tokens).view(12, 3, 2, 8).permute(1, 2, 0, 3)
    exact = attended(query, key, value, log_gates)
    expected = layer.project(exact.transpose(0, 1).flatten(1))
    torch.testing.assert_close(layer(tokens, log_gates), expected, rtol=0, atol=1e-6)


def spelled_out(layer, tokens, log_gates):
    """The gated layer with every landmark of padding as a row of its own."""
    padding = -len(tokens) % layer.landmarks
    qkv = layer.qkv(tokens).view(len(tokens), 3, layer.heads, -1).permute(1, 2, 0, 3)
    query, key, value = torch.nn.functional.pad(qkv, (0, 0, padding, 0)).unbind(0)
    gates = torch.nn.functional.pad(log_gates, (padding, 0))
    weights = torch.softmax(gates.view(layer.landmarks, -1), dim=1).unsqueeze(2)
    query_landmarks, key_landmarks = (
        (rows.view(layer.heads, layer.landmarks, -1, rows.shape[2]) * weights).sum(dim=2)
        for rows in (query, key)
    )
    inverse = published_iteration(
        torch.softmax(layer.scale * query_landmarks @ key_landmarks.mT, dim=-1), layer.iterations
    )
    summaries = torch.softmax(layer.scale * query_landmarks @ key.mT + gates, dim=-1) @ value
    values = torch.softmax(layer.scale * query @ key_landmarks.mT, dim=-1) @ inverse @ summaries
    convolved = layer.value_conv((value * gates.exp().unsqueeze(1))[:, -len(tokens) :])
    return layer.project((values[:, -len(tokens) :] + convolved).transpose(0, 1).flatten(1))


@pytest.mark.parametrize("length", [1, 3, 7, 8, 9, 10, 17, 23])
def test_padding_that_is_kept_once_changes_nothing_under_gates(length):
    layer, tokens = make_layer(), make_tokens(length)
    log_gates = make_tokens(length, seed=5)[:, 0].abs().neg()
    expected = spelled_out(layer, tokens, log_gates)
    torch.testing.assert_close(layer(tokens, log_gates), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        layer.first_row(tokens, log_gates)[0], expected[0], rtol=0, atol=1e-9
    )


def test_a_segment_of_closed_gates_passes_no_slope_of_a_million():
    layer, tokens = make_layer(), make_tokens(32)
    soft = torch.full((32,), 0.01, dtype=torch.float64).requires_grad_()
    gates = straight_through(soft, torch.arange(32) < 2)
    layer(tokens, gates.log_gates).square().sum().backward()
    assert 0 < soft.grad.abs().max() < 1e3


@pytest.mark.parametrize("length", [5, 8, 23])
def test_gradients_of_the_gated_layer_are_those_of_the_layer_spelled_out(length):
    slopes = []
    for attend in (lambda layer, *given: layer(*given), spelled_out):
        layer, tokens = make_layer(), make_tokens(length).requires_grad_()
        attend(layer, tokens, torch.zeros(length, dtype=torch.float64)).pow(3).sum().backward()
        slopes.append([tokens.grad, layer.qkv.weight.grad, layer.value_conv.weight.grad])
    for ours, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9)
