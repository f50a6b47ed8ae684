"""Flipping curves that can be drawn by hand: a host that says 'tumour' while it sees a patch above 0."""

import pytest
import torch

from builders.wrappers import prepared_host, tensor_bag
from gcemil.diagnostics.posthoc import area, curve_figures, flipping_curves
from gcemil.diagnostics.snr import OutputScale, RiskScale
from gcemil.diagnostics.trained_fold import predict_bag
from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost

CLASSES = OutputScale(2, RiskScale())
SURE, UNSURE = float(torch.tensor(8.0).sigmoid()), float(torch.tensor(-8.0).sigmoid())


def any_positive(features):
    return torch.tensor([-4.0, 4.0] if bool((features > 0).any()) else [4.0, -4.0])


def view_of(host, features, coords=None):
    return predict_bag(host, features, coords)


def toy(*values, model=any_positive, n_outputs=2):
    host = CallableHost(model, in_dim=1, n_outputs=n_outputs, scores="keep-one").eval()
    return view_of(host, torch.tensor(values, dtype=torch.float32).unsqueeze(1))


def curves(view, *order, output_scale=CLASSES, **options):
    return flipping_curves(view, torch.tensor(order), output_scale, **options)


def test_a_ranking_that_finds_the_one_patch_falls_at_once_and_stays_up_to_the_end():
    found = curves(toy(1, -1, -1, -1), 0, 1, 2, 3)
    assert found[0].tolist() == pytest.approx([0, 0.25, 0.5, 0.75])
    assert found[1].tolist() == pytest.approx([SURE, UNSURE, UNSURE, UNSURE])
    assert found[2].tolist() == pytest.approx([SURE, SURE, SURE, SURE])
    assert curve_figures(*found)["least_first_area"] == pytest.approx(SURE)
    assert curve_figures(*found)["most_first_area"] == pytest.approx((0.5 * SURE + 2.5 * UNSURE) / 3)
    assert curve_figures(*found)["srg"] == pytest.approx((2.5 * SURE - 2.5 * UNSURE) / 3)


def test_a_risk_is_read_in_units_of_the_training_risks():
    view = toy(1, 3, 8, model=lambda features: features.mean().unsqueeze(0), n_outputs=1)
    found = curves(view, 2, 1, 0, output_scale=OutputScale(1, RiskScale(mean=1.0, deviation=2.0)))
    assert found[1].tolist() == pytest.approx([1.5, 0.5, 0])
    assert found[2].tolist() == pytest.approx([1.5, 2.25, 3.5])
    assert curve_figures(*found)["srg"] == pytest.approx((0.5 * 1.5 + 2.25 + 0.5 * 3.5 - 0.5 * 1.5 - 0.5) / 2)


def test_one_patch_is_a_curve_of_one_point():
    found = curves(toy(1), 0)
    assert found[0].tolist() == pytest.approx([0])
    assert curve_figures(*found)["most_first_area"] == pytest.approx(SURE)
    assert curve_figures(*found)["srg"] == pytest.approx(0, abs=1e-6)


def test_a_curve_ends_with_the_last_patch_whatever_the_shares():
    found = curves(toy(1, -1, -1, -1), 0, 1, 2, 3, removed_shares=(0.5, 1.0))
    assert found[0].tolist() == pytest.approx([0, 0.5, 0.75])


def test_the_area_is_the_mean_height_on_an_uneven_axis():
    assert area(torch.tensor([0.0, 0.1, 0.5]), torch.tensor([1.0, 1.0, 0.0])) == pytest.approx(0.3 / 0.5)


@pytest.mark.parametrize("name", ["abmil", "ibmil", "dsmil"])
def test_points_of_a_curve_are_real_removals(name):
    view = view_of(prepared_host(name), *tensor_bag(12))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    found = flipping_curves(view, order, OutputScale(3, RiskScale()))
    for position, share in enumerate(found[0].tolist()):
        gone = torch.zeros(12, dtype=torch.bool)
        gone[order[: round(share * 12)]] = True
        left = view.asked.kept(~gone).logits.double().softmax(0)[view.full.logits.argmax()]
        assert float(found[1][position]) == pytest.approx(float(left), abs=1e-5)


def test_a_share_beyond_the_bag_is_refused():
    with pytest.raises(UsageError, match=r"lies in \[0, 1\], got 1.5"):
        curves(toy(1, 2), 0, 1, removed_shares=(1.5,))
