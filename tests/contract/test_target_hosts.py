"""One host of several targets, and the host of two classes by which each target is seen."""

import pytest
import torch

from gcemil.config import HostSettings
from gcemil.errors import UsageError
from gcemil.hosts.table import HOSTS
from gcemil.runs.checkpoint import build_host
from gcemil.runs.weights import check_host_serves_targets, target_host

REFUSED = {"clam_sb", "clam_mb", "hdmil", "dsmil"}
DIM = 12


@pytest.mark.parametrize("n_targets", [2, 3])
@pytest.mark.parametrize("name", sorted(set(HOSTS) - REFUSED))
def test_the_log_odds_of_the_view_are_the_output_of_the_target(name, n_targets):
    settings = HostSettings(name=name)
    torch.manual_seed(1)
    host = build_host(settings, in_dim=DIM, n_outputs=n_targets).eval()
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(25, DIM, generator=generator)
    coords = torch.stack([torch.arange(25) % 5, torch.arange(25) // 5], dim=1) * 512
    for index in range(n_targets):
        view = target_host(settings, host, index)
        assert not view.training
        logits = view(features, coords).logits
        torch.testing.assert_close(
            logits[1] - logits[0], host(features, coords).logits[index], atol=1e-4, rtol=1e-4
        )


def test_a_view_is_symmetric_where_the_host_is_linear_in_its_outputs():
    settings = HostSettings(name="abmil")
    host = build_host(settings, in_dim=DIM, n_outputs=3).eval()
    output = target_host(settings, host, 2)(torch.randn(9, DIM))
    assert float(output.logits.detach().sum()) == pytest.approx(0, abs=1e-6)
    # So a patch that speaks for a target speaks against its absence as much.
    assert float(output.contributions.detach().abs().sum()) > 0


@pytest.mark.parametrize("name", sorted(set(HOSTS)))
def test_hosts_that_cannot_have_several_targets_are_refused_in_one_sentence(name):
    settings = HostSettings(name=name)
    if name not in REFUSED:
        check_host_serves_targets(settings, in_dim=DIM, n_targets=3)
        return
    with pytest.raises(
        UsageError, match=f"Host '{name}' cannot have several targets: its outputs share weights"
    ):
        check_host_serves_targets(settings, in_dim=DIM, n_targets=3)
