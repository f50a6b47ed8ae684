"""Bad input to any entry of HOSTS is a GcemilError that says what and where."""

import pytest
import torch

from builders.wrappers import prepared_host as make_host
from builders.wrappers import tensor_bag as make_bag
from gcemil.errors import BagError, GcemilError, UsageError
from gcemil.hosts.table import HOSTS, create_host

every_host = pytest.mark.parametrize("name", list(HOSTS))


@every_host
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"features": torch.zeros(5, 9)}, "width 16, got 9"),
        ({"features": torch.zeros(0, 16)}, "at least one patch"),
        ({"features": torch.zeros(16)}, "at least one patch"),
        ({"features": torch.full((5, 16), torch.nan)}, "5 of 5 patches have NaN"),
        ({"coords": torch.zeros(4, 2, dtype=torch.int64)}, r"coords of shape \(5, 2\)"),
        ({"gates": torch.ones(4)}, "5 patches need 5 gates"),
        ({"gates": torch.tensor([1, 1, 1.5, 1, 1])}, "patch 2 has gate 1.5"),
        ({"gates": torch.tensor([1, -0.5, 1, 1, 1])}, "patch 1 has gate -0.5"),
        ({"gates": torch.tensor([1, 1, 1, torch.nan, 1])}, "patch 3 has gate nan"),
    ],
)
def test_bad_input_says_what_and_where(name, change, match):
    bag = {
        "features": torch.ones(5, 16),
        "coords": 256 * torch.arange(10).reshape(5, 2),
        "gates": None,
    }
    with pytest.raises(BagError, match=match):
        make_host(name)(**(bag | change))


@every_host
def test_one_nan_patch_among_many_is_named(name):
    host, (features, coords) = make_host(name), make_bag(40)
    features[23, 5] = torch.nan
    with pytest.raises(BagError, match="the first is patch 23"):
        host(features, coords)


@every_host
def test_a_bag_without_an_open_gate_is_refused(name):
    host, (features, coords) = make_host(name, mode="deletion"), make_bag(5)
    with pytest.raises(BagError, match="All 5 gates are 0"):
        host(features, coords, gates=torch.zeros(5))


@every_host
def test_an_unknown_option_is_refused_with_the_accepted_ones(name):
    with pytest.raises(UsageError, match=f"Host '{name}' has no option 'colour'"):
        create_host(name, in_dim=16, n_outputs=2, options={"colour": 1})


@every_host
def test_a_host_without_outputs_is_refused(name):
    with pytest.raises(UsageError, match="n_outputs >= 1"):
        create_host(name, in_dim=16, n_outputs=0)


def test_an_unknown_host_is_refused_with_the_known_ones():
    with pytest.raises(GcemilError, match=r"Unknown host 'resnet'.*abmil"):
        create_host("resnet", in_dim=16, n_outputs=2)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("camil", {"width": 40}, "multiple of twice its 8 heads, got 40"),
        ("abmil", {"entropy_weight": -1.0}, "entropy_weight >= 0, got -1.0"),
        ("acmil", {"n_branches": 0}, "n_branches >= 1"),
        ("acmil", {"masked_share": 1.0}, r"masked_share in \[0, 1\), got 5, 10 and 1.0"),
        ("clam_mb", {"instance_loss": "hinge"}, "one of svm, cross_entropy, got 'hinge'"),
        ("clam_sb", {"instance_loss": "hinge"}, "one of svm, cross_entropy, got 'hinge'"),
        ("dtfd", {"distillation": "mean"}, "got 'mean'"),
        ("dtfd", {"n_groups": 0}, "got 'afs' and 0"),
        ("hdmil", {"kept_rate": 1.2}, "degree >= 1 and kept_rate in"),
        ("hdmil", {"normalisation": "patch"}, "one of branch, joint, got 'patch'"),
        ("ibmil", {"n_confounders": 0}, "n_confounders >= 1, got 0"),
        ("mhim", {"random_ratio": 1.5}, r"random_ratio in \[0, 1\], got 1.5"),
        ("mhim", {"high_share": 0.0}, r"high_share in \(0, 1\], got 0.0"),
        ("transmil", {"width": 100}, "multiple of its 8 heads, got 100"),
    ],
)
def test_an_option_out_of_range_is_refused(name, options, match):
    with pytest.raises(UsageError, match=match):
        create_host(name, in_dim=16, n_outputs=2, options=options)
