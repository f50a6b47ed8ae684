"""Nyström, TransMIL and the parts of CAMIL against the PyPI layer and torchmil, on copied weights."""

from math import isqrt

import nystrom_attention
import pytest
import torch
import torchmil.models
import torchmil.nn
from torch import nn

from gcemil.hosts.camil import Camil, neighbour_graph
from gcemil.hosts.nystrom import NystromAttention
from gcemil.hosts.transmil import TransMil


def make_pair(seed=0):
    """Our layer and the PyPI one with the same weights."""
    torch.manual_seed(seed)
    theirs = nystrom_attention.NystromAttention(dim=512, dim_head=64, heads=8, num_landmarks=256).eval()
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
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.to_qkv.weight.grad, rtol=1e-3, atol=1e-3)


def make_reduced_transmil():
    """torchmil has no value convolution and no output projection: ours without them."""
    torch.manual_seed(0)
    ours = TransMil(64, 2).eval()
    project = nn.Sequential(nn.Linear(64, 512), nn.ReLU())
    theirs = torchmil.models.TransMIL(
        in_shape=(64,), att_dim=512, n_heads=8, n_layers=2, n_landmarks=256, feat_ext=project
    ).eval()
    with torch.no_grad():
        for layer in (ours.first, ours.second):
            nn.init.zeros_(layer.value_conv.weight)
            nn.init.eye_(layer.project[0].weight)
            nn.init.zeros_(layer.project[0].bias)
        theirs.feat_ext.load_state_dict(ours.project.state_dict())
        theirs.cls_token.copy_(ours.class_token.unsqueeze(0))
        for layer, norm, block in zip(
            (ours.first, ours.second), (ours.first_norm, ours.second_norm), theirs.layers, strict=True
        ):
            block.norm1.load_state_dict(norm.state_dict())
            block.att_module.qkv_nn.load_state_dict(layer.qkv.state_dict())
        theirs.pos_layer.proj.load_state_dict(ours.position.wide.state_dict())
        theirs.pos_layer.proj1.load_state_dict(ours.position.middle.state_dict())
        theirs.pos_layer.proj2.load_state_dict(ours.position.narrow.state_dict())
        theirs.norm.load_state_dict(ours.norm.state_dict())
        theirs.classifier.weight.copy_(ours.head.weight[1:] - ours.head.weight[:1])
        theirs.classifier.bias.copy_(ours.head.bias[1:] - ours.head.bias[:1])
    return ours, theirs


@pytest.mark.parametrize("n", [1, 2, 50, 255, 256, 700])
@torch.no_grad()
def test_transmil_without_convolution_and_projection_is_torchmils(n):
    (ours, theirs), features = make_reduced_transmil(), make_tokens(n, 64)
    output = ours(features)
    logit, attention = theirs(features.unsqueeze(0), return_att=True)
    torch.testing.assert_close(output.logits[1] - output.logits[0], logit[0], rtol=0, atol=1e-5)
    # torchmil drops what its repeated patches received; the patches that were not repeated agree.
    once = slice((isqrt(n - 1) + 1) ** 2 - n, n)
    torch.testing.assert_close(output.scores[once], attention[0, once], rtol=0, atol=1e-5)


@torch.no_grad()
def test_camils_pool_is_torchmils_gated_attention_pool_without_biases():
    torch.manual_seed(0)
    ours, theirs = Camil(64, 2), torchmil.nn.AttentionPool(in_dim=512, att_dim=128, gated=True)
    theirs.fc1.module.weight.copy_(ours.pool_content.weight)
    theirs.fc_gated.module.weight.copy_(ours.pool_gate.weight)
    theirs.fc2.weight.copy_(ours.pool_score.weight)
    nn.init.zeros_(theirs.fc1.module.bias)
    nn.init.zeros_(theirs.fc_gated.module.bias)
    fused = make_tokens(90)
    pooled, attention = theirs(fused.unsqueeze(0), return_att=True)
    scores = ours.attention_logits(fused)
    torch.testing.assert_close(scores, attention[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.softmax(scores, 0) @ fused, pooled[0], rtol=0, atol=1e-6)


@torch.no_grad()
def test_camils_gather_is_the_dense_product_of_torchmils_neighbour_attention():
    torch.manual_seed(0)
    ours = Camil(64, 2)
    theirs = torchmil.models.camil.CAMILSelfAttention(in_dim=512, att_dim=256)
    theirs.qk_nn.weight.copy_(torch.cat([ours.query.weight, ours.key.weight]))
    theirs.v_nn.load_state_dict(ours.value.state_dict(), strict=False)
    tokens = 0.3 * make_tokens(100)
    places = torch.arange(100)
    graph = neighbour_graph(
        make_tokens(100, 64, seed=3), 256 * torch.stack([places % 10, places // 10], dim=1)
    )
    adjacency = torch.zeros(100, 100).scatter_(1, graph.neighbours, graph.shares)
    dense = (ours.query(tokens) @ ours.key(tokens).T * adjacency).sum(dim=1) / 16
    logits = ours.neighbour_logits(tokens, graph, None)
    torch.testing.assert_close(logits, dense, rtol=0, atol=1e-5)
    local = torch.softmax(logits, 0).unsqueeze(1) * theirs.v_nn(tokens)
    expected = theirs(tokens.unsqueeze(0), adjacency.unsqueeze(0))[0]
    torch.testing.assert_close(local, expected, rtol=0, atol=1e-6)
