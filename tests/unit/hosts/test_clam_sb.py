from math import exp, log, log1p

import pytest
import torch

from gcemil.hosts.attention import AttentionEmbedded
from gcemil.hosts.clam import ClamSb


def softplus(x):
    return log1p(exp(x))


def toy_host(n_outputs=2, **options):
    """Width 1, bag head (-m, m), every instance head (0, m)."""
    host = ClamSb(1, n_outputs, width=1, hidden=1, **options).eval()
    with torch.no_grad():
        host.head.weight.copy_(torch.linspace(-1, 1, n_outputs).unsqueeze(1))
        host.head.bias.zero_()
        for head in host.instance_heads:
            head.weight.copy_(torch.tensor([[0.0], [1.0]]))
            head.bias.zero_()
    return host


def bag(tokens, attention_logits, n_outputs=2):
    """An embedded bag as `toy_host` would give it: values are its head on each token."""
    rows = torch.tensor(tokens).unsqueeze(1)
    return AttentionEmbedded(
        rows, torch.tensor(attention_logits), rows * torch.linspace(-1, 1, n_outputs)
    )


def test_attention_weights_follow_the_softmax_of_the_logits():
    output = toy_host().pool(bag([4.0, 8.0], [0.0, log(3)]), None, None, None)
    assert output.bag_feature.tolist() == pytest.approx([1 / 4 * 4 + 3 / 4 * 8])
    assert output.logits.tolist() == pytest.approx([-7, 7])
    assert output.contributions.tolist() == pytest.approx([1, 6])
    assert output.scores.tolist() == pytest.approx([0, log(3)])


def test_instance_loss_is_three_tenths_of_the_two_sides():
    # One patch a side: the attended one has token 2 (target 1), the ignored one token 0 (target 0).
    output = toy_host(n_sampled=1).pool(
        bag([2.0, 5.0, 0.0], [1.0, 0.0, -1.0]), None, None, torch.tensor(1)
    )
    expected = 0.3 * (softplus(1 - 2) + softplus(1 + 0)) / 2
    assert output.losses["instance"].item() == pytest.approx(expected)


def test_subtyping_adds_the_other_heads_as_negatives_and_divides_by_the_classes():
    host = toy_host(n_outputs=3, n_sampled=1, subtyping=True)
    output = host.pool(bag([2.0, 0.0], [1.0, -1.0], n_outputs=3), None, None, torch.tensor(0))
    in_class = (softplus(1 - 2) + softplus(1)) / 2
    assert output.losses["instance"].item() == pytest.approx(
        0.3 * (in_class + 2 * softplus(1 + 2)) / 3
    )


@pytest.mark.parametrize(("n_outputs", "expected"), [(2, False), (3, True), (7, True)])
def test_subtyping_is_on_for_more_than_two_classes_unless_told_otherwise(n_outputs, expected):
    assert ClamSb(8, n_outputs).subtyping is expected
    assert ClamSb(8, n_outputs, subtyping=not expected).subtyping is not expected


def test_cross_entropy_is_the_instance_loss_without_its_margin():
    host = toy_host(n_sampled=1, instance_loss="cross_entropy")
    output = host.pool(bag([2.0, 5.0, 0.0], [1.0, 0.0, -1.0]), None, None, torch.tensor(1))
    assert output.losses["instance"].item() == pytest.approx(0.3 * (softplus(-2) + softplus(0)) / 2)


def test_instance_ranking_follows_attention_logit_plus_log_gate():
    # The most attended patch (token 2) is gated below all others and becomes the negative.
    log_gates = torch.tensor([-9.0, 0.0, 0.0])
    embedded = bag([2.0, 5.0, 0.0], [1.0, 0.0, -1.0])
    output = toy_host(n_sampled=1).pool(embedded, None, log_gates, torch.tensor(1))
    expected = 0.3 * (softplus(1 - 5) + softplus(1 + 2)) / 2
    assert output.losses["instance"].item() == pytest.approx(expected)


def test_a_risk_has_no_instance_branch_and_the_whole_task_loss():
    host = ClamSb(8, 1)
    output = host(torch.randn(30, 8), target=torch.tensor([5.0, 1.0]))
    assert output.losses == {}
    assert len(host.instance_heads) == 0
    assert host.task_weights == {"bag": 1.0}
    assert ClamSb(8, 2).task_weights == {"bag": 0.7}


def test_instance_loss_trains_tokens_and_the_label_head_but_not_the_choice():
    host = ClamSb(8, 3, subtyping=False)
    host(torch.randn(40, 8), target=torch.tensor(1)).losses["instance"].backward()
    assert host.instance_heads[1].weight.grad.any()
    assert host.project[0].weight.grad.any()
    assert host.instance_heads[0].weight.grad is None
    assert host.attention.score.weight.grad is None
