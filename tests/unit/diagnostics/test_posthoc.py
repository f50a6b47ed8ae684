"""Explanations made after training: their time and size, and flipping curves drawn by hand."""

from itertools import count

import pytest
import torch

from builders.folds import few_bags
from builders.planted_folds import planted_fold
from builders.runs import TrainedRuns
from builders.wrappers import prepared_host, tensor_bag
from gcemil.diagnostics import posthoc
from gcemil.diagnostics.posthoc import curve_figures, flipping_curves
from gcemil.diagnostics.snr import OutputScale, RiskScale
from gcemil.diagnostics.trained_fold import TrainedFold, predict_bag
from gcemil.hosts.adapters import CallableHost

TRUTH = ("precision", "recall", "average_precision", "region_coverage")
ABMIL = {
    "attention", "contribution", "saliency", "gradient_x_input", "integrated_gradients",
    "occlusion", "single", "lrp",
}  # fmt: skip


def by_rule(finding, network="wrapped", comparison="full-kept"):
    wanted = {"network": network, "comparison": comparison}
    return {
        row.labels["rule"]: row.values
        for row in finding.rows
        if wanted.items() <= row.labels.items()
    }


def ticking():
    """A clock that moves by one each time it is read, so that everything timed takes one."""
    return count().__next__


def test_times_are_in_passes_of_the_host(classification_runs: TrainedRuns):
    fold = few_bags(
        TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host), 2
    )
    finding = posthoc.measure_posthoc(fold, clock=ticking())
    for network in fold.networks:
        found = by_rule(finding, network)
        assert {rule: found[rule]["runtime_ratio"] for rule in ABMIL} == dict.fromkeys(ABMIL, 1)
        assert found["random"]["runtime_ratio"] is None
        assert found["oracle"]["runtime_ratio"] is None
    # The wrapper's pass, and the recovery after it.
    assert by_rule(finding)["gce_soft"]["runtime_ratio"] == pytest.approx(1)
    assert by_rule(finding)["gce_discrete"]["runtime_ratio"] == pytest.approx(2)


def test_one_interrupted_bag_does_not_speak_for_all(tmp_path):
    fold = planted_fold(tmp_path, n_slides=3)
    reads = count()
    now = 0.0

    def clock():
        nonlocal now
        # Bag one: the fourth reading, the end of the first method, comes 99 late.
        now += 100.0 if next(reads) == 3 else 1.0
        return now

    finding = posthoc.measure_posthoc(fold, attributions=("single",), clock=clock)
    assert by_rule(finding)["attention"]["runtime_ratio"] == pytest.approx(1)
    assert max(
        slide["runtime_ratio"] for slide in finding.slides if slide["rule"] == "attention"
    ) == pytest.approx(100)


def test_the_planted_oracle_has_the_curves_drawn_by_hand(tmp_path):
    found = by_rule(
        posthoc.measure_posthoc(planted_fold(tmp_path), attributions=("lrp",), clock=ticking())
    )
    oracle, chance = found["oracle"], found["random"]
    # Both patches are needed to be gone: after one, the other still decides; then the slide is a
    # tie.
    tokens, background = torch.exp(4 * torch.tanh(torch.tensor(3.0))), 1.0

    def phi(n_evidence, n_background):
        share = n_evidence * tokens / (n_evidence * tokens + n_background * background)
        return float(torch.sigmoid(3 * share))

    removed = [0, 1, 2, 5, 10, 15, 18, 19]
    most = [phi(max(0, 2 - k), 18 - max(0, k - 2)) for k in removed]
    least = [phi(min(2, 20 - k), max(0, 18 - k)) for k in removed]
    axis = torch.tensor(removed) / 20
    expected = [float(torch.trapezoid(torch.tensor(curve), axis)) / 0.95 for curve in (most, least)]
    assert oracle["most_first_area"] == pytest.approx(expected[0], abs=1e-6)
    assert oracle["least_first_area"] == pytest.approx(expected[1], abs=1e-6)
    assert oracle["srg"] == pytest.approx(expected[1] - expected[0], abs=1e-6)
    assert oracle["srg"] > chance["srg"]
    assert oracle["full_kept_gap"] < chance["full_kept_gap"]
    assert oracle["removal_effect"] > chance["removal_effect"]


def test_a_budget_may_be_named(tmp_path):
    finding = posthoc.measure_posthoc(
        planted_fold(tmp_path, n_slides=4), budget=1.0, attributions=("lrp",), clock=ticking()
    )
    assert {row.labels["budget"] for row in finding.rows} == {"1"}
    assert all(row.values["complement_degradation"] is None for row in finding.rows)


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
    assert curve_figures(*found)["most_first_area"] == pytest.approx(
        (0.5 * SURE + 2.5 * UNSURE) / 3
    )
    assert curve_figures(*found)["srg"] == pytest.approx((2.5 * SURE - 2.5 * UNSURE) / 3)


def test_a_risk_is_read_in_units_of_the_training_risks():
    view = toy(1, 3, 8, model=lambda features: features.mean().unsqueeze(0), n_outputs=1)
    found = curves(view, 2, 1, 0, output_scale=OutputScale(1, RiskScale(mean=1.0, deviation=2.0)))
    assert found[1].tolist() == pytest.approx([1.5, 0.5, 0])
    assert found[2].tolist() == pytest.approx([1.5, 2.25, 3.5])
    assert curve_figures(*found)["srg"] == pytest.approx(
        (0.5 * 1.5 + 2.25 + 0.5 * 3.5 - 0.5 * 1.5 - 0.5) / 2
    )


def test_one_patch_is_a_curve_of_one_point():
    found = curves(toy(1), 0)
    assert found[0].tolist() == pytest.approx([0])
    assert curve_figures(*found)["most_first_area"] == pytest.approx(SURE)
    assert curve_figures(*found)["srg"] == pytest.approx(0, abs=1e-6)


def test_a_curve_ends_with_the_last_patch_whatever_the_shares():
    found = curves(toy(1, -1, -1, -1), 0, 1, 2, 3, removed_shares=(0.5, 1.0))
    assert found[0].tolist() == pytest.approx([0, 0.5, 0.75])


@pytest.mark.parametrize("name", ["abmil", "ibmil", "dsmil"])
def test_points_of_a_curve_are_real_removals(name):
    view = view_of(prepared_host(name), *tensor_bag(12))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    found = flipping_curves(view, order, OutputScale(3, RiskScale()))
    for position, share in enumerate(found[0].tolist()):
        gone = torch.zeros(12, dtype=torch.bool)
        gone[order[: round(share * 12)]] = True
        left = view.interventions.kept(~gone).logits.double().softmax(0)[view.full.logits.argmax()]
        assert float(found[1][position]) == pytest.approx(float(left), abs=1e-5)
