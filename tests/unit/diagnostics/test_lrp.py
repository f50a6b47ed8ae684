"""Relevance is conserved, and flows where the rules say it does."""

import pytest
import torch
from torch import nn

from builders.wrappers import prepared_host, tensor_bag
from gcemil.diagnostics.attribution import has_lrp_rules, hold_constant, lrp, normalise_by_constant
from gcemil.diagnostics.trained_fold import predict_bag
from gcemil.hosts.table import HOSTS

LINEAR_HEADS = ["abmil", "clam_sb", "mhim", "dtfd", "dsmil"]


def head_of(host):
    return host.student.head if hasattr(host, "student") else host.head


def without_biases(host):
    """Biases take a share of the relevance; without them the patches have all of it."""
    with torch.no_grad():
        for name, parameter in host.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return host


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("name", LINEAR_HEADS)
def test_the_patches_share_the_logit_without_its_bias(name, n_outputs):
    host, (features, coords) = prepared_host(name, n_outputs=n_outputs), tensor_bag(25)
    bag = predict_bag(host, features, coords)
    expected = bag.logit - head_of(host).bias[bag.index]
    torch.testing.assert_close(lrp(bag).sum(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("n_patches", [1, 7, 25])
def test_transmil_without_biases_and_class_token_gives_all_of_the_logit_to_the_patches(n_patches):
    host = without_biases(prepared_host("transmil"))
    with torch.no_grad():
        host.class_token.zero_()
    bag = predict_bag(host, *tensor_bag(n_patches))
    torch.testing.assert_close(lrp(bag).sum(), bag.logit, atol=1e-4, rtol=0)


def test_the_dictionary_of_ibmil_keeps_its_share():
    host, (features, coords) = prepared_host("ibmil"), tensor_bag(10)
    bag = predict_bag(host, features, coords)
    of_bag = host.head.weight[bag.index, : bag.full.bag_feature.shape[0]] @ bag.full.bag_feature
    torch.testing.assert_close(lrp(bag).sum(), of_bag, atol=1e-5, rtol=0)


def test_softmax_pooling_shares_by_attention_times_value():
    host, (features, coords) = prepared_host("abmil"), tensor_bag(8)
    bag = predict_bag(host, features, coords)
    weights = bag.full.scores.softmax(dim=0)
    expected = weights * (bag.embedded.tokens @ host.head.weight[bag.index])
    torch.testing.assert_close(lrp(bag), expected)


@pytest.mark.parametrize("name", [name for name in HOSTS if name not in ("camil", "hdmil")])
def test_holding_parts_constant_changes_no_value(name):
    host, (features, coords) = prepared_host(name), tensor_bag(17)
    with torch.no_grad():
        before = host(features, coords).logits
        with hold_constant(host):
            during = host(features, coords).logits
    torch.testing.assert_close(during, before, atol=1e-5, rtol=0)


def test_the_rule_of_the_normalisation_by_hand():
    norm = nn.LayerNorm(2, eps=0.0, elementwise_affine=True)
    rows = torch.tensor([[3.0, 1.0]], requires_grad=True)
    output = normalise_by_constant(norm, (rows,), norm(rows))
    assert output[0].tolist() == pytest.approx([1.0, -1.0])
    # (x1 - x2) / 2 over the constant deviation 1: relevance 3/2 and -1/2, in sum the output.
    (slope,) = torch.autograd.grad(output[0, 0], rows)
    assert (slope * rows)[0].tolist() == pytest.approx([1.5, -0.5])


def test_hosts_without_a_rule_for_one_of_their_parts_are_not_supported():
    assert [name for name in HOSTS if not has_lrp_rules(prepared_host(name))] == ["camil", "hdmil"]


def test_relevance_works_on_frozen_weights_and_without_gradients():
    host, (features, coords) = prepared_host("abmil"), tensor_bag(5)
    expected = lrp(predict_bag(host, features, coords))
    host.requires_grad_(False)
    with torch.no_grad():
        torch.testing.assert_close(lrp(predict_bag(host, features, coords)), expected)
