from math import log

import pytest
import torch

from gcemil.hosts.dsmil import Dsmil, TwoStreamEmbedded


def toy_host(n_outputs, weight, *, mode="deletion"):
    host = Dsmil(1, n_outputs, mode, hidden=1).eval()
    with torch.no_grad():
        host.head.weight.copy_(torch.tensor(weight))
        host.head.bias.zero_()
    return host


def bag(tokens, instance_logits, queries):
    return TwoStreamEmbedded(
        torch.tensor(tokens).unsqueeze(1),
        torch.tensor(instance_logits),
        torch.tensor(queries).unsqueeze(1),
    )


def test_the_bag_head_mixes_the_streams_of_the_classes():
    # Critical patches are 0 and 1; queries of 0 give uniform attention, so B = (3, 3).
    host = toy_host(2, [[1.0, 10.0], [100.0, 1000.0]])
    output = host.pool(bag([2.0, 4.0], [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), None, None, None)
    assert output.bag_feature.tolist() == pytest.approx([3.0, 3.0])
    assert output.logits.tolist() == pytest.approx([33.0, 3300.0])
    assert output.contributions.sum().item() == pytest.approx((3300 - 33) / 2)
    assert output.contributions.tolist() == pytest.approx([544.5, 1089.0])


def test_a_closed_patch_does_not_become_critical_but_the_winner_keeps_its_own_logit():
    host = toy_host(1, [[1.0]])
    log_gates = torch.tensor([0.0, log(0.01)])
    output = host.pool(bag([2.0, 4.0], [[1.0], [5.0]], [1.0, 3.0]), None, log_gates, None)
    assert output.auxiliary_logits["max"].tolist() == pytest.approx([1.0])
    assert output.scores.tolist() == pytest.approx([1.0, 3.0])


def test_suppressed_patches_below_the_bias_stay_out_of_the_max_stream_in_both_modes():
    # True logits are -1 and -3; pi h of a closed patch would score the bias, 0.
    for mode in ("paper", "deletion"):
        host = toy_host(1, [[1.0]], mode=mode)
        with torch.no_grad():
            host.instance_head.weight.fill_(1.0)
        output = host(torch.tensor([[-1.0], [-3.0]]), gates=torch.tensor([1.0, 1e-8]))
        assert output.auxiliary_logits["max"].tolist() == pytest.approx([-1.0])


def test_deletion_counts_the_gate_once_and_the_hybrid_counts_it_twice():
    features, gates = torch.tensor([[1.0], [1.0]]), torch.tensor([1.0, 0.5])
    for mode, expected in (("deletion", 1.0), ("paper", (1 + 0.5**2) / 1.5)):
        host = toy_host(1, [[1.0]], mode=mode)
        with torch.no_grad():
            host.query[2].weight.zero_()
        assert host(features, gates=gates).bag_feature.tolist() == pytest.approx([expected])


def test_the_max_stream_trains_the_gate_only_under_the_hybrid():
    for mode, trains in (("deletion", False), ("paper", True)):
        gates = torch.full((6,), 0.5, requires_grad=True)
        host = Dsmil(4, 2, mode)
        host(torch.randn(6, 4), gates=gates).auxiliary_logits["max"].sum().backward(
            retain_graph=True
        )
        assert (gates.grad is not None and bool(gates.grad.any())) == trains
