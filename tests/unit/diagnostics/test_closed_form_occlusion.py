"""Leave-one-out and keep-one in closed form are those of the loop over patches."""

import pytest
import torch
from benchmarks.attribution import captum_occlusion

from builders.occlusion_loops import keep_one, leave_one_out
from builders.wrappers import prepared_host, tensor_bag
from gcemil.diagnostics.attribution import (
    has_closed_form,
    occlusion,
    single,
)
from gcemil.diagnostics.trained_fold import predict_bag
from gcemil.errors import UsageError
from gcemil.hosts import attention
from gcemil.hosts.abmil import Abmil
from gcemil.hosts.attention import read_means_without_each
from gcemil.hosts.dtfd import group_of
from gcemil.hosts.table import HOSTS, create_host

POOLING = ["abmil", "clam_sb", "dsmil", "dtfd", "ibmil", "mhim", "hdmil"]
LAST_LAYER = {
    **dict.fromkeys(POOLING, "attention.score"),
    "dsmil": "query.2",
    "ibmil": "attention.2",
    "mhim": "student.attention.2",
}
"""The layer that scales the attention logits."""


def check_equal(host, features, coords, tolerance=1e-5):
    bag = predict_bag(host, features, coords)
    for closed, naive in ((occlusion, leave_one_out), (single, keep_one)):
        torch.testing.assert_close(closed(bag), naive(bag), atol=tolerance, rtol=0)


def test_every_host_but_those_with_context_has_a_closed_form():
    with_context = {"transmil", "camil"}
    assert {name for name in HOSTS if not has_closed_form(prepared_host(name))} == with_context


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("with_coords", [True, False])
@pytest.mark.parametrize("name", POOLING)
def test_the_closed_form_is_the_loop(name, with_coords, n_outputs):
    host = prepared_host(name, n_outputs=n_outputs)
    for n_patches in (1, 2, 3, 60):
        features, coords = tensor_bag(n_patches, seed=n_patches)
        check_equal(host, features, coords if with_coords else None)


@pytest.mark.parametrize("name", POOLING)
def test_the_closed_form_is_the_loop_to_the_last_digits_of_double_precision(name):
    features, coords = tensor_bag(40)
    check_equal(prepared_host(name).double(), features.double(), coords, tolerance=1e-11)


@pytest.mark.parametrize("name", POOLING)
def test_the_closed_form_is_what_captum_measures(name):
    bag = predict_bag(prepared_host(name), *tensor_bag(20))
    torch.testing.assert_close(occlusion(bag), captum_occlusion(bag), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", POOLING)
def test_attention_that_sees_one_patch_changes_nothing(name):
    host = prepared_host(name)
    with torch.no_grad():
        host.get_submodule(LAST_LAYER[name]).weight.mul_(100)
    for seed in range(3):
        check_equal(host, *tensor_bag(30, seed=seed))


def test_a_patch_that_holds_nearly_all_attention_is_left_out_exactly():
    logits, rows = torch.tensor([40.0, 0.0, 0.0]), torch.tensor([[5.0], [1.0], [3.0]])
    means = read_means_without_each(logits, rows, torch.ravel)
    assert means.tolist() == pytest.approx([2, 5, 5])
    # Total minus own divides rounding by rounding here.
    weights = logits.softmax(0)
    assert not torch.isfinite((weights @ rows - weights[0] * rows[0]) / (1 - weights[0])).all()


@pytest.mark.parametrize("name", POOLING)
def test_chunks_do_not_show(name, monkeypatch):
    bag = predict_bag(prepared_host(name), *tensor_bag(23))
    whole = occlusion(bag), single(bag)
    monkeypatch.setattr(attention, "CHUNK", 4)
    parts = occlusion(bag), single(bag)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_hdmil_keeps_its_best_patch_when_the_only_kept_one_leaves(shift):
    host, (features, coords) = prepared_host("hdmil"), tensor_bag(12)
    with torch.no_grad():
        logits = host.embed(features).attention_logits
        highest = logits.topk(2, dim=0).values.mean(dim=0)
        # All branches keep nothing, exactly one patch, or all of them.
        host.attention.score.bias.add_(shift - (highest if shift == 0 else 0))
    n_kept = (host.embed(features).attention_logits > 0).sum(dim=0).tolist()
    assert set(n_kept) == {{-100.0: 0, 0.0: 1, 100.0: 12}[shift]}
    check_equal(host, features, coords)


def test_the_only_patch_of_a_group_takes_its_group_along():
    host = prepared_host("dtfd")
    features, coords = tensor_bag(40)
    groups = group_of(coords, 4)
    chosen = torch.cat(
        [(groups == group).nonzero().flatten()[:size] for group, size in ((0, 1), (1, 3))]
    )
    check_equal(host, features[chosen], coords[chosen])


def test_distillation_by_the_best_patch_is_refused():
    host = create_host("dtfd", in_dim=4, n_outputs=2, options={"distillation": "max"}).eval()
    assert not has_closed_form(host)
    with pytest.raises(UsageError, match="has no closed form"):
        single(predict_bag(host, torch.ones(2, 4), None))


def test_a_subclass_that_may_pool_in_its_own_way_is_refused():
    class Other(Abmil):
        pass

    assert not has_closed_form(Other(2, 2).eval())
