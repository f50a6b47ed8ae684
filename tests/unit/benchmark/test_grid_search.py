"""The sweep of a grid: which trials it trains, and that the validation part alone chooses, fold by fold."""

import json

import pytest
from pydantic import ValidationError

from builders.grids import cohort_record, small_grid
from gcemil.benchmark.engines import enter_grid
from gcemil.benchmark.grid import plan_runs, plan_work, run_settings
from gcemil.benchmark.results import Results
from gcemil.benchmark.summary import summarise

SEARCH = {"learning_rate": [1e-4, 1e-3], "evidence.budget": [0.05, 0.1]}


def test_every_combination_is_trained_as_the_wrapped_arm_and_not_diagnosed():
    grid = small_grid(arms=["host"], search={"learning_rate": [1e-4, 1e-3]}, diagnostics=["snr"])
    assert grid.searched_arm == "host"
    grid = small_grid(arms=["gce"], search=SEARCH, diagnostics=["snr"], folds=[0])
    trials = [run for run in plan_runs(grid) if run.variant is not None]
    assert [run.label for run in trials] == ["search_00", "search_01", "search_02", "search_03"]
    found = [run_settings(grid, run) for run in trials]
    assert [(one.learning_rate, one.evidence.budget) for one in found] == [
        (1e-4, 0.05), (1e-4, 0.1), (1e-3, 0.05), (1e-3, 0.1)
    ]  # fmt: skip
    diagnosed = [str(key.path) for key in plan_work(grid) if key.path.name == "diagnostics"]
    assert diagnosed == ["runs/lung/abmil/gce/seed_0/fold_0/diagnostics"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": {"learning_rate": []}}, "search lists no value for 'learning_rate'"),
        ({"search": {"epochs": list(range(1, 66))}}, "65 combinations, and at most 64 are tried"),
        ({"search": {"seed": [1, 2]}}, "'seed' follows from the grid itself"),
        ({"variants": {"search_00": {}}}, "'search_00' is kept for the sweep"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        small_grid(**changes)


def write_trial(results, grid, trial, fold, *, validation, test):
    folder = results.folder / "runs" / "lung" / "abmil" / trial / "seed_0" / f"fold_{fold}"
    folder.mkdir(parents=True)
    modes = {mode: {"macro_f1": test} for mode in ("full", "gce")}
    (folder / "metrics.json").write_text(
        json.dumps({**modes, "details": {"validation": validation}})
    )


def test_the_validation_part_of_each_fold_chooses_its_trial(tmp_path):
    results = Results(tmp_path)
    grid = small_grid(arms=[], search={"learning_rate": [1e-4, 1e-3]})
    enter_grid(grid, results)
    results.cohort_record("lung").parent.mkdir(parents=True, exist_ok=True)
    results.cohort_record("lung").write_text(json.dumps(cohort_record(grid.cohorts["lung"])))
    # The trial that is best on test is worse on validation in fold 0, and better in fold 1.
    write_trial(results, grid, "search_00", 0, validation=0.8, test=0.5)
    write_trial(results, grid, "search_01", 0, validation=0.7, test=0.9)
    write_trial(results, grid, "search_00", 1, validation=0.6, test=0.4)
    assert [row["chosen"] for row in summarise(results)[0]["search"]] == ["search_00"]
    write_trial(results, grid, "search_01", 1, validation=0.9, test=0.7)
    summary, _ = summarise(results)
    assert [(row["fold"], row["chosen"]) for row in summary["search"]] == [
        (0, "search_00"),
        (1, "search_01"),
    ]
    assert summary["search"][1]["settings"] == {"learning_rate": 1e-3}
    chosen = next(row for row in summary["means"] if row["variant"] == "search")
    assert chosen["metrics"]["gce"]["macro_f1"]["mean"] == pytest.approx(0.6)
