"""Parity with torchmil on copied weights: ABMIL and CLAM-SB's bag path.

torchmil models have one logit, which is the difference of our two: copied as the difference of the head's rows.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchmil.models import ABMIL, CLAM_SB

from gcemil.hosts.abmil import Abmil
from gcemil.hosts.clam import ClamSb, instance_loss

SIZES = [1, 2, 50, 700]
close = {"atol": 1e-6, "rtol": 0}


def make_bag(n):
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 1024, generator=generator)


def twin_of(host, torchmil_class, **options):
    """torchmil's model with the weights of ours."""
    extractor = nn.Sequential(nn.Linear(1024, 512), nn.ReLU())
    twin = torchmil_class(in_shape=(1024,), gated=True, feat_ext=extractor, **options).eval()
    twin.feat_ext[0].load_state_dict(host.project[0].state_dict())
    twin.pool.fc1.module.load_state_dict(host.attention.content.state_dict())
    twin.pool.fc_gated.module.load_state_dict(host.attention.gate.state_dict())
    twin.pool.fc2.weight.data.copy_(host.attention.score.weight)
    single = twin.classifier.module
    single.weight.data.copy_(host.head.weight[1:] - host.head.weight[:1])
    single.bias.data.copy_(host.head.bias[1:] - host.head.bias[:1])
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
