"""Nyström, TransMIL and the parts of CAMIL against the PyPI layer and torchmil, on copied weights."""

import nystrom_attention
import pytest
import torch

from gcemil.hosts.nystrom import NystromAttention


def make_pair(seed=0):
    """Our layer and the PyPI one with the same weights."""
    torch.manual_seed(seed)
    theirs = nystrom_attention.NystromAttention(
        dim=512, dim_head=64, heads=8, num_landmarks=256
    ).eval()
    ours = NystromAttention(512).eval()
    ours.qkv.load_state_dict(theirs.to_qkv.state_dict())
    ours.value_conv.load_state_dict(theirs.res_conv.state_dict())
    ours.project[0].load_state_dict(theirs.to_out[0].state_dict())
    return ours, theirs


def make_tokens(length, width=512, seed=1):
    return torch.randn(length, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 2, 100, 256, 257, 730])
@torch.no_grad()
def test_layer_and_class_row_are_those_of_the_pypi_layer(length):
    (ours, theirs), tokens = make_pair(), make_tokens(length)
    expected, matrix = theirs(tokens.unsqueeze(0), return_attn=True)
    torch.testing.assert_close(ours(tokens), expected[0], rtol=0, atol=1e-5)
    output, row = ours.first_row(tokens)
    torch.testing.assert_close(output, expected[0, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(row, matrix[0, :, -length, -length:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_sharp_attention_agrees_in_double_precision():
    (ours, theirs), tokens = make_pair(), 6 * make_tokens(300).double()
    expected = theirs.double()(tokens.unsqueeze(0))[0]
    torch.testing.assert_close(ours.double()(tokens), expected, rtol=0, atol=1e-6)


def test_gradients_are_those_of_the_pypi_layer():
    ours, theirs = make_pair()
    tokens = make_tokens(300)
    upstream = make_tokens(300, seed=2)
    gradients = []
    for layer, given in ((ours, tokens), (theirs, tokens.unsqueeze(0))):
        given = given.clone().requires_grad_()
        (layer(given) * upstream).sum().backward()
        gradients.append(given.grad.reshape(300, 512))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        ours.qkv.weight.grad, theirs.to_qkv.weight.grad, rtol=1e-3, atol=1e-3
    )
