"""Parity with torchmil on copied weights: ABMIL, CLAM-SB's bag path, DSMIL with one output, DTFD's two tiers.

torchmil models have one logit, which is the difference of our two: copied as the difference of the head's rows.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchmil.models import ABMIL, CLAM_SB, DSMIL
from torchmil.nn import AttentionPool

from gcemil.hosts.abmil import Abmil
from gcemil.hosts.clam import ClamSb, instance_loss
from gcemil.hosts.dsmil import Dsmil
from gcemil.hosts.dtfd import Dtfd, group_of

SIZES = [1, 2, 50, 700]
close = {"atol": 1e-6, "rtol": 0}


def make_bag(n):
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 1024, generator=generator)


def copy_attention(pool, attention):
    pool.fc1.module.load_state_dict(attention.content.state_dict())
    pool.fc_gated.module.load_state_dict(attention.gate.state_dict())
    pool.fc2.weight.data.copy_(attention.score.weight)


def copy_row_difference(single, pair):
    single.weight.data.copy_(pair.weight[1:] - pair.weight[:1])
    single.bias.data.copy_(pair.bias[1:] - pair.bias[:1])


def twin_of(host, torchmil_class, **options):
    """torchmil's model with the weights of ours."""
    extractor = nn.Sequential(nn.Linear(1024, 512), nn.ReLU())
    twin = torchmil_class(in_shape=(1024,), gated=True, feat_ext=extractor, **options).eval()
    twin.feat_ext[0].load_state_dict(host.project[0].state_dict())
    copy_attention(twin.pool, host.attention)
    copy_row_difference(twin.classifier.module, host.head)
    return twin


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("host_class", "torchmil_class", "hidden"), [(Abmil, ABMIL, 128), (ClamSb, CLAM_SB, 256)]
)
@torch.no_grad()
def test_attention_hosts_agree_with_torchmil(host_class, torchmil_class, hidden, n):
    host, features = host_class(1024, 2).eval(), make_bag(n)
    twin = twin_of(host, torchmil_class, att_dim=hidden)
    output = host(features)
    logit, attention = twin(features.unsqueeze(0), return_att=True)
    torch.testing.assert_close(output.logits[1] - output.logits[0], logit[0], **close)
    # torchmil's last attention layer has no bias; ours shifts every raw score alike.
    torch.testing.assert_close(output.scores - host.attention.score.bias, attention[0], **close)


@pytest.mark.parametrize("n", SIZES)
@torch.no_grad()
def test_dsmil_with_one_output_agrees_with_torchmil(n):
    host, features = Dsmil(1024, 1).eval(), make_bag(n)
    twin = DSMIL(in_shape=(1024,), att_dim=128, nonlinear_q=True, nonlinear_v=False).eval()
    twin.inst_classifier.load_state_dict(host.instance_head.state_dict())
    twin.q_nn.load_state_dict(host.query.state_dict())
    twin.bag_classifier.load_state_dict(host.head.state_dict())
    output = host(features)
    logit, attention, instance_logits = twin(
        features.unsqueeze(0), return_att=True, return_inst_pred=True
    )
    torch.testing.assert_close(output.logits, logit, **close)
    torch.testing.assert_close(output.scores.softmax(dim=0), attention[0, :, 0], **close)
    torch.testing.assert_close(
        host.embed(features).instance_logits[:, 0], instance_logits[0], **close
    )
    torch.testing.assert_close(output.auxiliary_logits["max"][0], instance_logits.max(), **close)


@pytest.mark.parametrize("n", SIZES)
@torch.no_grad()
def test_dtfd_tiers_agree_with_two_torchmil_attention_pools(n):
    host, features = Dtfd(1024, 2).eval(), make_bag(n)
    coords = 256 * torch.stack([torch.arange(n) % 30, torch.arange(n) // 30], dim=1)
    first, second = (AttentionPool(in_dim=512, att_dim=128, gated=True) for _ in range(2))
    copy_attention(first, host.attention)
    copy_attention(second, host.bag_attention)
    output, tokens, groups = (
        host(features, coords),
        host.embed(features).tokens,
        group_of(coords, 4),
    )
    pooled = torch.cat([first(tokens[groups == g].unsqueeze(0)) for g in groups.unique()])
    tier_one = torch.stack(
        [output.auxiliary_logits[f"tier1_{g}"] for g in groups.unique().tolist()]
    )
    torch.testing.assert_close(tier_one, host.group_head(pooled), **close)
    torch.testing.assert_close(output.bag_feature, second(pooled.unsqueeze(0))[0], **close)


def test_smooth_svm_is_the_log_partition_of_augmented_margins():
    # torchmil's own version spreads targets over the wrong axis, so the authority is the formula.
    # Berrada et al. 2018 with k = 1, tau = alpha = 1: log sum_j exp(1[j != y] + x_j) - x_y.
    logits, targets = (
        3 * torch.randn(16, 2, generator=torch.Generator().manual_seed(1)),
        torch.arange(16) % 2,
    )
    margin = 1 - F.one_hot(targets, 2)
    expected = (logits + margin).logsumexp(dim=1) - logits.gather(1, targets.unsqueeze(1)).squeeze(
        1
    )
    torch.testing.assert_close(instance_loss(logits, targets == 1).mean(), expected.mean(), **close)
