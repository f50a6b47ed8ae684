"""The bounds of the paper's appendix on toys known by hand and on trained slides."""

import math
from dataclasses import replace

import pytest
import torch

from builders.folds import few_bags
from builders.runs import TrainedRuns
from gcemil.diagnostics.bounds import (
    Completeness,
    coverage_figures,
    coverage_residual,
    estimate_completeness,
    fit_completeness,
    gate_slope,
    greedy_bound_factor,
    measure_bounds,
    recoverability_figures,
    total_curvature,
)
from gcemil.diagnostics.diagnose import load_measure
from gcemil.diagnostics.snr import BagOutputs, bag_outcome
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.recovery import greedy_subset

GATES = torch.tensor([0.9, 0.6, 0.2, 0.0])
SELECTED = torch.tensor([True, True, False, False])


def test_the_slope_of_a_linear_output_is_its_norm_over_the_gates_that_move():
    weights = torch.tensor([3.0, 4.0, 12.0, 100.0])
    # The last gate is 0 and unselected: it does not move, so its slope is not counted.
    slope = gate_slope(lambda log_gates: weights @ log_gates.exp(), GATES, SELECTED)
    assert slope == pytest.approx(13.0)
    gap = abs(float(weights @ GATES) - float(weights @ SELECTED.float()))
    assert slope * float((GATES - SELECTED.float()).norm()) >= gap


def test_the_slope_is_the_steepest_on_the_way():
    # d/dpi of pi^2 is 2 pi: steepest at the selected patch's own end, one hundredth of the way from
    # 1 to 0.5.
    slope = gate_slope(
        lambda log_gates: (2 * log_gates).exp().sum(), torch.tensor([0.5]), torch.tensor([True])
    )
    assert slope == pytest.approx(2 * 0.995)


def test_an_output_without_a_gradient_has_no_slope():
    assert gate_slope(lambda log_gates: torch.tensor(1.0), GATES, SELECTED) is None
    alien = torch.tensor(1.0, requires_grad=True)
    assert gate_slope(lambda log_gates: 2 * alien, GATES, SELECTED) is None


def test_a_slope_needs_a_point():
    with pytest.raises(UsageError, match="at least one point, got 0"):
        gate_slope(lambda log_gates: log_gates.sum(), GATES, SELECTED, points=0)


def test_the_residual_is_the_weight_of_what_is_missed():
    responses = torch.tensor([[0.5, 0.0], [0.5, 0.0], [1.0, 1.0]])
    weights = torch.tensor([4.0, 1.0])
    assert coverage_residual(
        torch.tensor([True, True, False]), responses, weights
    ) == pytest.approx(2.0)
    assert coverage_residual(torch.tensor([True, True, True]), responses, weights) == pytest.approx(
        0
    )
    assert coverage_residual(
        torch.tensor([False, False, False]), responses, weights
    ) == pytest.approx(5.0)


def test_eta_and_slope_are_the_smallest_that_hold_for_all():
    found = fit_completeness([(0.5, 1.0, 0.2), (0.1, 0.4, 0.02), (0.3, 0.0, 0.0)])
    assert (found.eta, found.output_slope) == pytest.approx((4.0, 0.2))
    # 0.2 * 4 * residual is at least every output change seen.
    assert found.bound(0.5) == pytest.approx(0.4)


def test_a_covered_subset_that_still_moves_the_bag_has_no_finite_eta():
    found = fit_completeness([(0.0, 1.0, 0.1), (1.0, 1.0, 0.1)])
    assert found.eta == math.inf
    assert found.bound(0.5) is None


def test_the_recoverability_bound_holds_on_trained_slides(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    for bag in fold.bags():
        explanation = bag.explanation
        outcome = bag_outcome(
            bag.view.interventions, explanation.recovery.selected, explanation.output.log_gates
        )
        outputs = fold.output_scale("wrapped").read(outcome)
        figures = recoverability_figures(bag, outputs, points=5)
        assert 0 <= figures["gate_margin"] <= 0.5
        assert figures["margin_bound"] == pytest.approx(figures["margin_slack"] + outputs.cd_gap)
        assert not figures["margin_broken"]


def test_an_output_that_moves_beyond_its_bound_breaks_it(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    explanation = next(iter(fold.bags())).explanation
    outputs = BagOutputs(full=1.0, kept=0.5, removed=None, gated=None)
    tight = coverage_figures(
        fold.model, explanation, outputs, Completeness(eta=0.0, output_slope=1.0)
    )
    assert (
        tight["coverage_bound"],
        tight["coverage_slack"],
        tight["coverage_broken"],
    ) == pytest.approx((0, -0.5, True), abs=1e-6)
    unknown = coverage_figures(fold.model, explanation, outputs, None)
    assert (unknown["coverage_bound"], unknown["coverage_broken"]) == (None, None)


def test_eta_comes_from_the_validation_bags_of_a_wrapped_run(survival_runs: TrainedRuns):
    wrapped = TrainedFold.open(survival_runs.gce, 0)
    found = estimate_completeness(wrapped)
    assert 0 < found.eta < math.inf
    assert found.output_slope > 0
    without_validation = replace(wrapped, parts=replace(wrapped.parts, val=[]))
    assert estimate_completeness(without_validation) is None
    assert estimate_completeness(TrainedFold.open(survival_runs.host, 0)) is None


@pytest.mark.parametrize(
    ("responses", "weights", "curvature"),
    [
        # No anchor in common; a certain twin; .25 beside the first and .5 alone.
        ([[0.3, 0.0], [0.0, 0.8]], [1.0, 2.0], 0.0),
        ([[1.0], [1.0]], [1.0], 1.0),
        ([[0.5], [0.5]], [1.0], 0.5),
    ],
)
def test_curvature_is_what_a_patch_loses_beside_the_others(responses, weights, curvature):
    tensors = (torch.tensor(values, dtype=torch.float64) for values in (responses, weights))
    assert total_curvature(*tensors) == pytest.approx(curvature, abs=1e-12)


def test_bound_is_one_without_curvature_and_one_minus_one_over_e_with_all_of_it():
    assert greedy_bound_factor(0.0) == pytest.approx(1.0)
    assert greedy_bound_factor(1.0) == pytest.approx(1 - 1 / math.e)
    assert greedy_bound_factor(0.5) == pytest.approx(0.7869386805747332)


def test_greedy_selection_takes_complementary_patches_and_stops_when_nothing_is_left():
    responses = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.0, 0.5], [0.0, 0.0]], dtype=torch.float64)
    chosen = greedy_subset(responses, torch.ones(2, dtype=torch.float64), 2)
    assert chosen.tolist() == [True, False, True, False]
    assert greedy_subset(responses, torch.ones(2, dtype=torch.float64), 4).tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_every_slide_has_its_curvature_and_no_rule_beats_the_bound(
    classification_runs: TrainedRuns,
):
    found = measure_bounds(few_bags(TrainedFold.open(classification_runs.gce, 0)))
    assert {row.labels["rule"] for row in found.rows} == {
        "evidence",
        "attention",
        "random",
        "oracle",
    }
    assert len(found.slides) == 12
    for slide in found.slides:
        assert 0 <= slide["curvature"] <= 1
        assert 1 - 1 / 2.7182818 - 1e-6 <= slide["greedy_factor"] <= 1
        assert slide["utility_share"] <= slide["greedy_share"] / slide["greedy_factor"] + 1e-9
        assert slide["greedy_share"] <= 1 + 1e-9


def test_a_plain_host_has_no_coverage_to_bound(classification_runs: TrainedRuns):
    found = load_measure("bounds")(TrainedFold.open(classification_runs.host, 0))
    assert found.rows == ()
    assert "no wrapper" in found.notes[0]
