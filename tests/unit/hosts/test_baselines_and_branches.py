"""Hosts beside the paper's nine: what each of them computes."""

import pytest
import torch

from builders.wrappers import prepared_host, tensor_bag
from gcemil.hosts.acmil import masked_at_random, mean_cosine
from gcemil.hosts.table import create_host


@torch.no_grad()
def test_the_linear_probe_reads_the_mean_of_the_features():
    host, (features, _) = prepared_host("linear"), tensor_bag(12)
    torch.testing.assert_close(host(features).logits, host.head(features.mean(dim=0)))


@torch.no_grad()
def test_mean_pooling_weighs_every_patch_by_its_gate():
    host, (features, _) = prepared_host("mean"), tensor_bag(12)
    gates = torch.linspace(0.1, 1, 12)
    pooled = gates @ host.project(features) / gates.sum()
    torch.testing.assert_close(host(features, gates=gates).logits, host.head(pooled))


@torch.no_grad()
def test_max_pooling_answers_with_the_largest_logit_of_a_patch():
    host, (features, _) = prepared_host("max"), tensor_bag(12)
    alone = host.head(host.project(features))
    output = host(features)
    torch.testing.assert_close(output.logits, alone.max(dim=0).values)
    torch.testing.assert_close(output.scores, alone[:, output.logits.argmax()])
    # A gate that is half closed lowers what the patch says by log 2.
    gates = torch.full((12,), 0.5)
    gates[3] = 1.0
    expected = torch.cat(
        [alone[:3], alone[3:4] + torch.log(torch.tensor(2.0)), alone[4:]]
    ) - torch.log(torch.tensor(2.0))
    torch.testing.assert_close(host(features, gates=gates).logits, expected.max(dim=0).values)


@torch.no_grad()
def test_additive_mil_is_a_sum_of_what_the_weighted_patches_say():
    host, (features, _) = prepared_host("additive"), tensor_bag(12)
    embedded = host.project(features)
    attention = host.attention(embedded).squeeze(1).softmax(dim=0)
    said = host.read(attention.unsqueeze(1) * embedded) @ host.head.weight.T
    torch.testing.assert_close(host(features).logits, said.sum(dim=0) + host.head.bias)


def test_aem_adds_the_negative_entropy_of_the_attention():
    torch.manual_seed(0)
    host, (features, _) = (
        create_host("abmil", in_dim=16, n_outputs=2, options={"entropy_weight": 0.1}),
        tensor_bag(9),
    )
    output = host.eval()(features, target=torch.tensor(1))
    attention = output.scores.softmax(dim=0)
    torch.testing.assert_close(output.losses["entropy"], 0.1 * (attention * attention.log()).sum())
    gates = torch.linspace(0.2, 1, 9)
    gated = host(features, gates=gates, target=torch.tensor(1)).losses["entropy"]
    attention = (output.scores + gates.log()).softmax(dim=0)
    torch.testing.assert_close(gated, 0.1 * (attention * attention.log()).sum())
    # Following its gradient spreads the attention.
    for parameter, slope in zip(
        host.parameters(),
        torch.autograd.grad(gated, list(host.parameters()), allow_unused=True),
        strict=True,
    ):
        if slope is not None:
            parameter.data -= 0.5 * slope
    assert host(features, gates=gates, target=torch.tensor(1)).losses["entropy"] < gated


def test_acmil_forgets_a_random_share_of_its_largest_patches():
    torch.manual_seed(0)
    scores = torch.randn(50, 4)
    masked = masked_at_random(scores, 10, 0.6)
    assert masked.sum(dim=0).tolist() == [6] * 4
    for branch in range(4):
        largest = set(scores[:, branch].topk(10).indices.tolist())
        assert set(masked[:, branch].nonzero().flatten().tolist()) <= largest
    assert not torch.equal(masked, masked_at_random(scores, 10, 0.6))
    # A bag is never forgotten as a whole.
    assert not masked_at_random(scores[:1], 10, 0.99).any()


def test_branches_that_look_at_the_same_patches_are_alike():
    same = torch.tensor([[0.7, 0.7], [0.3, 0.3]])
    assert float(mean_cosine(same)) == pytest.approx(1.0)
    assert float(mean_cosine(torch.eye(2))) == pytest.approx(0.0)
    assert float(mean_cosine(torch.ones(3, 1) / 3)) == 0.0
