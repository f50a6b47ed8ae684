"""Curvature and the greedy bound of every slide, beside what greedy selection reaches."""

import torch

from builders.folds import few_bags
from builders.runs import TrainedRuns
from gcemil.diagnostics.bounds import measure_bounds
from gcemil.diagnostics.diagnose import load_measure
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.recovery.recover import greedy_subset


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


def test_every_slide_has_its_curvature_and_no_rule_beats_the_bound(classification_runs: TrainedRuns):
    found = measure_bounds(few_bags(TrainedFold.open(classification_runs.gce, 0)))
    assert {row.labels["rule"] for row in found.rows} == {"evidence", "attention", "random", "oracle"}
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
