"""What a results folder adds up to, from files written by hand; claims, failures and what a folder refuses."""

import json
import subprocess
import sys

import pytest

from builders.grids import cohort_record, events, run_inline, small_grid
from gcemil.benchmark import runner
from gcemil.benchmark.engines import check_results, enter_grid
from gcemil.benchmark.grid import CohortKey, DiagnosisKey, RunKey, plan_runs
from gcemil.benchmark.results import Results, append_log, claim, read_failure, read_log
from gcemil.benchmark.runner import Ending, execute
from gcemil.benchmark.summary import write_summary
from gcemil.errors import RunError
from gcemil.findings import Finding, Row, write_finding

SIMULATED = {"profile": "nsclc", "size": "tiny"}


def write_metrics(results: Results, key: RunKey, f1: float) -> None:
    folder = results.path(key)
    folder.mkdir(parents=True)
    modes = ("full",) if key.is_plain else ("full", "soft", "discrete")
    metrics = {mode: {"macro_f1": f1} for mode in modes} | {
        "details": {"warnings": [], "anchors": None}
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))


def write_snr(results: Results, key: RunKey, **values: float | None) -> None:
    rows = (Row({"rule": "evidence"}, values),)
    write_finding(results.path(DiagnosisKey(key)), Finding("snr", rows))


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


@pytest.fixture
def grid():
    return small_grid(cohorts={"lung": SIMULATED}, folds=[0, 1, 2], diagnostics=["snr"])


def means_of(summary, kind, arm):
    return next(row for row in summary[kind] if row["arm"] == arm)


def test_means_and_deviations_are_over_the_folds_that_are_there(results, grid):
    enter_grid(grid, results)
    for fold, f1 in ((0, 0.2), (2, 0.6)):
        write_metrics(results, RunKey("lung", "abmil", "gce", None, 0, fold), f1)
    summary = write_summary(results)
    assert [row["fold"] for row in summary["runs"]] == [0, 2]
    mean = means_of(summary, "means", "gce")
    assert mean["metrics"]["soft"]["macro_f1"] == {
        "mean": 0.4,
        "std": pytest.approx(0.08**0.5),
        "n": 2,
    }
    assert mean["runs"] == 2
    assert not [row for row in summary["means"] if row["arm"] == "host"]


def test_a_figure_that_a_fold_does_not_have_is_not_counted_as_zero(results, grid):
    enter_grid(grid, results)
    for fold, gap in ((0, 0.1), (1, None), (2, 0.3)):
        key = RunKey("lung", "abmil", "gce", None, 0, fold)
        write_metrics(results, key, 0.5)
        write_snr(results, key, cd_gap=gap, complement_degradation=None)
    values = means_of(write_summary(results), "diagnostic_means", "gce")["values"]
    assert values["cd_gap"] == {"mean": 0.2, "std": pytest.approx(0.02**0.5), "n": 2}
    assert values["complement_degradation"] == {"mean": None, "std": None, "n": 0}


def test_costs_are_kept_out_of_the_summary(results, grid, monkeypatch):
    monkeypatch.setattr("gcemil.benchmark.summary.COSTS", {"cd_gap"})
    enter_grid(grid, results)
    key = RunKey("lung", "abmil", "gce", None, 0, 0)
    write_metrics(results, key, 0.5)
    write_snr(results, key, cd_gap=2.0, evidence_fraction=0.05)
    append_log(results, key, "end", seconds=7.0, whole=True)
    assert write_summary(results)["diagnostics"][0]["values"] == {"evidence_fraction": 0.05}
    timing = json.loads(results.timing.read_text())
    assert timing["diagnostics"][0]["values"] == {"cd_gap": 2.0}
    assert timing["executions"] == [{"key": str(key.path), "seconds": 7.0, "whole": True}]


def test_the_summary_says_what_is_missing_and_why(results, grid):
    enter_grid(grid, results)
    plain = RunKey("lung", "abmil", "host", None, 0, 0)
    runner.record_failure(results, plain, "no memory")
    missing = {row["key"]: row["failure"] for row in write_summary(results)["unfinished"]}
    assert len(missing) == 1 + 6 + 3
    assert missing[str(plain.path)] == "no memory"
    assert missing["cohorts/lung"] is None


def test_the_summary_covers_every_grid_of_the_folder(results, grid):
    enter_grid(grid, results)
    other = small_grid(
        name="other",
        cohorts={"lung": SIMULATED},
        folds=[0],
        variants={"x": {"evidence.budget": 0.1}},
    )
    enter_grid(other, results)
    write_metrics(results, RunKey("lung", "abmil", "gce", "x", 0, 0), 0.7)
    write_metrics(results, RunKey("lung", "abmil", "gce", None, 0, 2), 0.5)
    summary = write_summary(results)
    assert summary["grids"] == ["four", "other"]
    assert {row["variant"] or row["arm"] for row in summary["means"]} == {"gce", "x"}


def test_another_cohort_of_the_same_name_is_refused(results, grid):
    record = cohort_record(small_grid().cohorts["lung"])
    results.cohort_record("lung").parent.mkdir(parents=True)
    results.cohort_record("lung").write_text(json.dumps(record))
    check_results(small_grid(), results)
    with pytest.raises(RunError, match="another cohort 'lung' .slides: 40 then, 30 now"):
        check_results(
            small_grid(cohorts={"lung": {**SIMULATED, "slides": 30, "dials": {"pairs": 64}}}),
            results,
        )


def test_runs_of_other_settings_are_refused(results):
    key = plan_runs(small_grid())[0]
    results.run(key).mkdir(parents=True)
    settings = runner.run_settings(small_grid(settings={"epochs": 9}), key).model_dump(mode="json")
    (results.run(key) / "config.yaml").write_text(
        json.dumps({"cohort": "lung", "settings": settings})
    )
    with pytest.raises(RunError, match="epochs: 9 then, 2 now"):
        check_results(small_grid(), results)


def test_what_somebody_else_is_at_is_left_to_him(results):
    key = CohortKey("lung")
    with claim(results.lock(key.path)) as mine:
        assert mine
        assert execute(small_grid(), results, key).ending is Ending.busy
    assert not read_log(results)


def test_a_claim_dies_with_its_process(results):
    code = (
        "import sys, time; from pathlib import Path; from gcemil.benchmark.results import claim\n"
        "with claim(Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
    )
    path = results.lock("x")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"mine\n"
        with claim(path) as mine:
            assert not mine
        holder.kill()
        holder.wait()
    with claim(path) as mine:
        assert mine


def test_a_line_left_half_written_does_not_swallow_the_next(results):
    for event in ("start", "fail"):
        append_log(results, CohortKey("a"), event, whole=True)
        with results.log.open("a") as file:
            file.write('{"key": "coh')
    append_log(results, CohortKey("a"), "end", seconds=1.0, whole=True)
    assert [record["event"] for record in read_log(results)] == ["start", "fail", "end"]
    assert results.log.read_text().count("\n") == 5


@pytest.fixture
def fake_work(monkeypatch):
    """Work that takes no time; the keys named in `fails` fail."""
    fails: set[str] = set()

    def do(grid, results, key):
        if str(key.path) in fails:
            raise ValueError("three is not two")
        if isinstance(key, CohortKey):
            results.cohort_record(key.cohort).parent.mkdir(parents=True, exist_ok=True)
            record = cohort_record(grid.cohorts[key.cohort])
            results.cohort_record(key.cohort).write_text(json.dumps(record))
        elif isinstance(key, RunKey):
            write_metrics(results, key, 0.5)
        else:
            runner.check_needs(grid, results, key)
            write_snr(results, key.run, cd_gap=0.1)

    monkeypatch.setattr(runner, "do_work", do)
    return fails


def test_everything_is_executed_once_and_never_again(results, grid, fake_work):
    outcomes = run_inline(grid, results.folder)
    assert {outcome.ending for outcome in outcomes.values()} == {Ending.finished}
    assert len(outcomes) == 1 + 6 + 3
    assert run_inline(grid, results.folder) == {}
    assert [event for _, event in events(results.folder)] == ["start", "end"] * 9


def test_a_failed_run_is_recorded_and_the_rest_goes_on(results, grid, fake_work):
    plain = RunKey("lung", "abmil", "host", None, 0, 1)
    fake_work.add(str(plain.path))
    outcomes = run_inline(grid, results.folder)
    bad = {
        str(key.path): outcome.reason
        for key, outcome in outcomes.items()
        if outcome.ending is Ending.failed
    }
    beside = "runs/lung/abmil/gce/seed_0/fold_1/diagnostics"
    assert bad == {
        str(plain.path): "ValueError: three is not two",
        beside: f"{beside} needs {plain.path}, which is not finished: ValueError: three is not two",
    }
    assert sum(outcome.ending is Ending.finished for outcome in outcomes.values()) == 8
    assert "three is not two" in json.loads(results.failure(plain).read_text())["detail"]


def test_running_again_retries_what_failed_and_clears_the_record(results, grid, fake_work):
    plain = RunKey("lung", "abmil", "host", None, 0, 1)
    fake_work.add(str(plain.path))
    run_inline(grid, results.folder)
    fake_work.clear()
    again = run_inline(grid, results.folder)
    assert list(again) == [plain, DiagnosisKey(RunKey("lung", "abmil", "gce", None, 0, 1))]
    assert read_failure(results, plain) is None
    assert not (results.folder / "failures").exists()
    assert write_summary(results)["unfinished"] == []
