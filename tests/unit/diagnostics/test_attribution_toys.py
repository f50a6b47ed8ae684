"""Toys whose patch scores are known by hand: f is the mean of three patches, 3, 1 and 2."""

import pytest
import torch

from builders.occlusion_loops import keep_one, leave_one_out
from builders.wrappers import prepared_host, tensor_bag
from gcemil.diagnostics import attribution as attribution_table
from gcemil.diagnostics.attribution import (
    ATTRIBUTIONS,
    block_occlusion,
    block_single,
    has_lrp_rules,
    hold_constant,
    integrated_gradients,
    lrp,
    patch_blocks,
    supported_attributions,
)
from gcemil.diagnostics.trained_fold import predict_bag
from gcemil.errors import UsageError
from gcemil.hosts.abmil import Abmil
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.table import HOSTS, create_host

THREE = torch.tensor([[3.0], [1.0], [2.0]])
THIRD = 1 / 3
KNOWN = {
    "attention": [0, 0, 0],
    "contribution": [1, THIRD, 2 * THIRD],
    "saliency": [THIRD, THIRD, THIRD],
    "gradient_x_input": [1, THIRD, 2 * THIRD],
    "integrated_gradients": [1, THIRD, 2 * THIRD],
    "occlusion": [2 - 1.5, 2 - 2.5, 0],
    "single": [3, 1, 2],
    "lrp": [1, THIRD, 2 * THIRD],
}


def mean_host(n_outputs=2, host_class=Abmil):
    """Uniform attention; the logits are the mean of the patches, and its negative."""
    host = host_class(1, n_outputs, width=1, hidden=1).eval()
    with torch.no_grad():
        for parameter in host.parameters():
            parameter.zero_()
        host.project[0].weight.fill_(1.0)
        host.head.weight.copy_(torch.tensor([[1.0], [-1.0]])[:n_outputs])
    return host


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("name", KNOWN)
def test_the_mean_of_three_patches_is_explained_as_by_hand(name, n_outputs):
    scores = ATTRIBUTIONS[name].scores(predict_bag(mean_host(n_outputs), THREE, None))
    torch.testing.assert_close(scores, torch.tensor(KNOWN[name], dtype=torch.float32))


def test_the_class_predicted_on_the_whole_bag_is_explained():
    host = mean_host()
    with torch.no_grad():
        # Patches speak for the second class only once there are two of them.
        host.head.weight.copy_(torch.tensor([[1.0], [2.0]]))
        host.head.bias.copy_(torch.tensor([1.5, 0.0]))
    assert predict_bag(host, THREE, None).index == 1
    # Alone, the patch of 1 would be of the first class; its score is still the logit of the second.
    scores = ATTRIBUTIONS["single"].scores(predict_bag(host, THREE, None))
    assert scores.tolist() == pytest.approx([6, 2, 4], abs=1e-6)


def test_integrated_gradients_sum_to_what_the_bag_has_over_an_empty_one():
    host, (features, coords) = prepared_host("abmil"), tensor_bag(30)
    index = predict_bag(host, features, coords).index
    with torch.no_grad():
        gained = host(features).logits[index] - host(torch.zeros_like(features)).logits[index]
    total = integrated_gradients(predict_bag(host, features, coords)).sum()
    assert float(total) == pytest.approx(float(gained), abs=2e-3)


@pytest.mark.parametrize("host_name", HOSTS)
def test_every_attribution_of_a_host_scores_every_patch(host_name):
    host = prepared_host(host_name)
    for n_patches in (1, 10):
        features, coords = tensor_bag(n_patches)
        for name, attribution in supported_attributions(host).items():
            scores = attribution.scores(predict_bag(host, features, coords))
            assert scores.shape == (n_patches,), name
            assert bool(torch.isfinite(scores).all()), name
            assert not scores.requires_grad, name


def test_attributions_leave_the_host_as_it_was():
    host, (features, coords) = prepared_host("transmil"), tensor_bag(12)
    before = host(features, coords).logits
    bag = predict_bag(host, features, coords)
    for attribution in supported_attributions(host).values():
        attribution.scores(bag)
    torch.testing.assert_close(host(features, coords).logits, before)
    assert all(parameter.grad is None for parameter in host.parameters())
    assert not any(module._forward_hooks for module in host.modules())


def test_a_black_box_without_gradients_is_explained_by_its_scores_and_by_removal():
    host = CallableHost(
        lambda features: features.mean(dim=0), in_dim=2, n_outputs=2, scores="keep-one"
    ).eval()
    assert list(supported_attributions(host)) == ["attention", "occlusion_blocks", "single_blocks"]
    features = torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    torch.testing.assert_close(
        block_occlusion(predict_bag(host, features, None)), torch.tensor([0.5, -0.5, 0.0])
    )


def test_a_black_box_scored_by_slope_has_gradients():
    host = CallableHost(lambda features: features.sum(dim=0), in_dim=2, n_outputs=2).eval()
    features = torch.tensor([[3.0, 0.0], [-1.0, 0.0]])
    scores = ATTRIBUTIONS["gradient_x_input"].scores(predict_bag(host, features, None))
    assert scores.tolist() == pytest.approx([3, -1], abs=1e-6)


@pytest.mark.parametrize("name", ["transmil", "camil"])
def test_blocks_of_one_patch_are_the_loop_over_patches(name):
    bag = predict_bag(prepared_host(name), *tensor_bag(9))
    torch.testing.assert_close(block_occlusion(bag), leave_one_out(bag))
    torch.testing.assert_close(block_single(bag), keep_one(bag))


def test_blocks_are_squares_of_the_grid_as_small_as_their_number_allows(monkeypatch):
    monkeypatch.setattr(attribution_table, "MAX_BLOCKS", 4)
    _, coords = tensor_bag(36)
    blocks = patch_blocks(coords, 36).view(6, 6)
    # Six by six patches in at most four blocks: squares of three.
    assert [len(blocks[r : r + 3, c : c + 3].unique()) for r in (0, 3) for c in (0, 3)] == [
        1,
        1,
        1,
        1,
    ]
    assert len(blocks.unique()) == 4


def test_blocks_without_coordinates_are_runs_of_rows(monkeypatch):
    monkeypatch.setattr(attribution_table, "MAX_BLOCKS", 3)
    assert patch_blocks(None, 6).tolist() == [0, 0, 1, 1, 2, 2]
    assert patch_blocks(None, 2).tolist() == [0, 1]


def test_a_patch_has_the_score_of_its_block(monkeypatch):
    monkeypatch.setattr(attribution_table, "MAX_BLOCKS", 2)
    features = torch.tensor([[1.0], [3.0], [5.0], [7.0]])
    bag = predict_bag(mean_host(), features, None)
    assert block_single(bag).tolist() == pytest.approx([2, 2, 6, 6], abs=1e-6)
    assert block_occlusion(bag).tolist() == pytest.approx([4 - 6, 4 - 6, 4 - 2, 4 - 2], abs=1e-6)


def test_a_host_that_still_trains_is_not_explained():
    host = create_host("abmil", in_dim=1, n_outputs=2)
    with pytest.raises(UsageError, match="evaluation mode"):
        predict_bag(host, THREE, None)


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


def test_hosts_without_a_rule_for_one_of_their_parts_are_not_supported():
    assert [name for name in HOSTS if not has_lrp_rules(prepared_host(name))] == ["camil", "hdmil"]


def test_relevance_works_on_frozen_weights_and_without_gradients():
    host, (features, coords) = prepared_host("abmil"), tensor_bag(5)
    expected = lrp(predict_bag(host, features, coords))
    host.requires_grad_(False)
    with torch.no_grad():
        torch.testing.assert_close(lrp(predict_bag(host, features, coords)), expected)
