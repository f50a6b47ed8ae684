"""CLAM: what its instance branch ranks, reaches and leaves alone (its values: reference/test_published_parity.py)."""

from math import exp, log1p

import pytest
import torch

from builders.wrappers import prepared_host, tensor_bag
from gcemil.hosts.attention import AttentionEmbedded
from gcemil.hosts.clam import ClamMb, ClamSb, extremes, instance_loss
from gcemil.hosts.hdmil import Hdmil


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


@pytest.mark.parametrize("host", [ClamSb, ClamMb, Hdmil])
@pytest.mark.parametrize(("n_outputs", "expected"), [(2, False), (3, True)])
def test_subtyping_is_on_for_more_than_two_classes_unless_it_is_given(host, n_outputs, expected):
    assert host(8, n_outputs).subtyping is expected
    assert host(8, n_outputs, subtyping=not expected).subtyping is not expected


@pytest.mark.parametrize("subtyping", [False, True])
@torch.no_grad()
def test_clam_mb_clusters_the_patches_of_each_class_by_its_own_branch(subtyping):
    host, (features, _) = prepared_host("clam_mb"), tensor_bag(40)
    host.subtyping = subtyping
    found = host(features, target=torch.tensor(2)).losses["instance"]
    tokens, scores = host.project(features), host.embed(features).attention_logits
    terms = []
    for c, head in enumerate(host.instance_heads):
        top, bottom = extremes(scores[:, c], 8)
        if c == 2:
            rows = head(tokens[torch.cat([top, bottom])])
            terms.append(instance_loss(rows, torch.arange(16) < 8).mean())
        elif subtyping:
            terms.append(instance_loss(head(tokens[top]), torch.zeros(8, dtype=torch.bool)).mean())
    torch.testing.assert_close(found, 0.3 * torch.stack(terms).sum() / (3 if subtyping else 1))
