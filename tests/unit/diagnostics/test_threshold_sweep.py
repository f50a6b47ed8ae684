"""Cells of threshold x coverage target: what recovery would have done, and nothing pooled twice."""

import pytest

from builders.folds import few_bags
from builders.runs import TrainedRuns
from gcemil.diagnostics import sweep
from gcemil.diagnostics.sweep import recover_at
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.explanation import recover_evidence


def values(finding, metric, **labels):
    return [row.values[metric] for row in finding.rows if labels.items() <= row.labels.items()]


@pytest.fixture
def first_bag(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    return fold, next(iter(fold.bags()))


def test_the_runs_own_settings_give_its_evidence_with_repair_and_free_riders(first_bag):
    fold, bag = first_bag
    own = fold.model.settings.recovery
    found = recover_at(
        fold.model, bag.explanation, threshold=own.threshold, coverage_target=own.coverage_target
    )
    repaired = own.model_copy(update={"repair": True, "drop_free_riders": False})
    fold.model.settings = fold.model.settings.model_copy(update={"recovery": repaired})
    expected = recover_evidence(fold.model, bag.explanation.output, bag.coords)
    assert found.selected.equal(expected.selected)


def test_without_a_target_nothing_is_repaired(first_bag):
    fold, bag = first_bag
    found = recover_at(fold.model, bag.explanation, threshold=0.5, coverage_target=None)
    assert len(found.added) == 0
    assert found.selected.equal(bag.explanation.output.gates > 0.5)


def test_a_higher_threshold_opens_fewer_gates_and_repair_only_adds(
    classification_runs: TrainedRuns,
):
    fold = few_bags(TrainedFold.open(classification_runs.gce, 0), 5)
    found = sweep.measure_sweep(fold, thresholds=(0.3, 0.7), coverage_targets=(None, 0.95))
    assert len(found.rows) == 3 * 4
    low, high = (
        values(found, "evidence_fraction", rule="evidence", threshold=t)[0] for t in ("0.3", "0.7")
    )
    assert low >= high
    assert values(
        found, "repaired_patches", rule="evidence", coverage_target="none"
    ) == pytest.approx([0, 0])
    for row in found.rows:
        assert ("cd_gap" in row.values) == (row.labels["rule"] == "evidence")
        assert ("full_kept_gap" in row.values) == (row.labels["rule"] != "evidence")
    assert found.to_json()["metrics"]["repaired_patches"]["criterion"] == "size"


def test_a_run_without_gates_has_nothing_to_sweep(classification_runs: TrainedRuns):
    found = sweep.measure_sweep(TrainedFold.open(classification_runs.host, 0))
    assert found.rows == ()
    assert "no gates" in found.notes[0]


def test_an_empty_sweep_is_an_error(classification_runs: TrainedRuns):
    with pytest.raises(UsageError, match="at least one threshold"):
        sweep.measure_sweep(TrainedFold.open(classification_runs.gce, 0), thresholds=())
