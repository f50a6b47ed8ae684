"""Two runs compared: on folders written by hand, and on trained ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from builders import make_cohort
from builders.runs import TrainedRuns
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.diagnostics.significance import (
    BagPredictions,
    bag_intervals,
    compare_runs,
    draw_rows,
)
from gcemil.errors import RunError
from gcemil.findings import read_finding, write_finding
from gcemil.tasks.task import ClassificationTask, SurvivalTask

TASK = ClassificationTask(("benign", "malignant"))


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return make_cohort(tmp_path_factory.mktemp("compared") / "cohort", n_cases=4)


def made_run(
    folder: Path, cohort, folds, *, wrapped=False, fingerprint="same", first_fold=0
) -> Path:
    """A run folder with the Macro-F1 of every fold, and nothing else."""
    folder.mkdir(parents=True)
    settings = TrainSettings(
        host=HostSettings(name="abmil"), evidence=EvidenceSettings() if wrapped else None
    ).model_dump(mode="json")
    config = {"cohort": str(cohort.folder), "cohort_fingerprint": fingerprint, "settings": settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for index, value in enumerate(folds, start=first_fold):
        modes = (
            {"full": value, "soft": value + 0.01 * index, "discrete": value - 0.1}
            if wrapped
            else {"full": value}
        )
        metrics = {mode: {"macro_f1": found} for mode, found in modes.items()} | {
            "details": {"best_epoch": 3}
        }
        (folder / f"fold_{index}").mkdir()
        (folder / f"fold_{index}" / "metrics.json").write_text(json.dumps(metrics))
    return folder


def values(finding, mode, metric="macro_f1"):
    return next(
        row.values for row in finding.rows if row.labels == {"mode": mode, "metric": metric}
    )


def test_every_mode_is_compared_with_the_full_bag_of_the_other_run(tmp_path, cohort):
    ours = made_run(tmp_path / "gce", cohort, [0.62, 0.65, 0.60, 0.70, 0.66], wrapped=True)
    theirs = made_run(tmp_path / "host", cohort, [0.60, 0.61, 0.57, 0.69, 0.61])
    finding = compare_runs(ours, theirs)
    assert [row.labels["mode"] for row in finding.rows] == ["full", "soft", "discrete"]
    full = values(finding, "full")
    assert full["difference"] == pytest.approx((0.02 + 0.04 + 0.03 + 0.01 + 0.05) / 5)
    # Standard deviation of 1 ... 5 hundredths: sqrt(2.5) hundredths.
    assert finding.rows[0].deviations["difference"] == pytest.approx(0.01 * np.sqrt(2.5))
    assert full["cohens_dz"] == pytest.approx(3 / np.sqrt(2.5))
    assert full["p_wilcoxon"] == pytest.approx(0.0625)
    assert full["rank_biserial"] == pytest.approx(1)
    # Three rows are one family: soft has the smallest t-test p but all three Wilcoxon p are equal.
    assert full["p_wilcoxon_holm"] == pytest.approx(3 * 0.0625)
    assert full["difference_low"] <= full["difference"] <= full["difference_high"]
    assert values(finding, "discrete")["rank_biserial"] == pytest.approx(-1)
    assert "smallest possible two-sided p of the Wilcoxon test is 0.0625" in finding.notes[0]
    assert finding.notes[-1] == "No interval over bags: fold_0/predictions.csv does not exist."
    assert full["bag_difference_low"] is None
    assert finding.slides[0] == {
        "fold": 0,
        "mode": "full",
        "metric": "macro_f1",
        "value": 0.62,
        "against": 0.60,
    }
    assert read_finding(write_finding(tmp_path, finding)) == finding


def test_one_fold_gives_a_difference_and_no_test(tmp_path, cohort):
    finding = compare_runs(
        made_run(tmp_path / "a", cohort, [0.7]), made_run(tmp_path / "b", cohort, [0.5])
    )
    found = values(finding, "full")
    assert found["difference"] == pytest.approx(0.2)
    assert found["p_paired_t"] is found["p_wilcoxon"] is found["difference_low"] is None
    assert finding.notes[0] == "One fold gives one difference: no test over folds is possible."
    assert finding.rows[0].deviations == {}


def test_runs_that_are_no_pairs_are_refused(tmp_path, cohort):
    ours = made_run(tmp_path / "ours", cohort, [0.6, 0.7])
    with pytest.raises(RunError, match=r"fold 2 has no partner"):
        compare_runs(ours, made_run(tmp_path / "three", cohort, [0.6, 0.7, 0.8]))
    with pytest.raises(RunError, match=r"fold 0 has no partner"):
        compare_runs(ours, made_run(tmp_path / "later", cohort, [0.6, 0.7], first_fold=1))
    with pytest.raises(RunError, match="changed between the training"):
        compare_runs(ours, made_run(tmp_path / "changed", cohort, [0.6, 0.7], fingerprint="other"))
    elsewhere = make_cohort(tmp_path / "elsewhere", n_cases=4)
    with pytest.raises(RunError, match="their folds are not pairs. Compare runs of one cohort"):
        compare_runs(ours, made_run(tmp_path / "foreign", elsewhere, [0.6, 0.7]))
    with pytest.raises(RunError, match="has no finished fold"):
        compare_runs(ours, made_run(tmp_path / "empty", cohort, []))


def predictions(right, cases=None):
    """Six bags of two classes; `right` says which are predicted right."""
    targets = torch.tensor([0, 0, 0, 1, 1, 1])
    wins = torch.where(torch.tensor(right), targets, 1 - targets)
    names = tuple(f"s{index}" for index in range(6))
    return BagPredictions(
        names, cases or names, targets, torch.eye(2, dtype=torch.float64)[wins] * 0.8 + 0.1
    )


def test_draws_keep_every_class_and_every_case_whole():
    bags = predictions([True] * 6, cases=("a", "a", "b", "c", "d", "d"))
    for rows in draw_rows(bags, 50, np.random.default_rng(0)):
        assert {row // 3 for row in rows.tolist()} == {0, 1}
        counts = np.bincount(rows, minlength=6)
        assert counts[0] == counts[1]
        assert counts[4] == counts[5]


def test_the_interval_over_bags_holds_the_difference_and_is_zero_between_equals():
    better, worse = predictions([True] * 6), predictions([True, True, False, True, True, False])
    intervals, undefined = bag_intervals(
        [({"full": better, "same": worse}, worse)],
        TASK,
        generator=np.random.default_rng(0),
        resamples=100,
    )
    low, high = intervals["full", "accuracy"]
    assert 0 <= low < 1 / 3 < high <= 1
    assert intervals["same", "accuracy"] == (0, 0)
    assert undefined == 0


def test_draws_on_which_no_pair_can_be_compared_do_not_count():
    task = SurvivalTask()
    bags = BagPredictions(
        ("a", "b"), ("a", "b"), torch.tensor([[1.0, 1], [2.0, 1]]), torch.tensor([2.0, 1.0])
    )
    _, undefined = bag_intervals(
        [({"full": bags}, bags)], task, generator=np.random.default_rng(0), resamples=200
    )
    # Half of the draws take one case twice.
    assert 60 < undefined < 140
    censored = BagPredictions(
        ("a", "b"), ("a", "b"), torch.tensor([[1.0, 0], [2.0, 0]]), torch.tensor([2.0, 1.0])
    )
    none = bag_intervals(
        [({"full": bags}, bags), ({"full": censored}, censored)],
        task,
        generator=np.random.default_rng(0),
        resamples=20,
    )
    assert none == ({}, 20)


def test_trained_runs_are_compared_on_the_bags_they_both_tested(classification_runs: TrainedRuns):
    finding = compare_runs(classification_runs.gce, classification_runs.host, resamples=50)
    assert {row.labels["metric"] for row in finding.rows} == {"accuracy", "macro_f1", "auc"}
    assert {row.labels["mode"] for row in finding.rows} == {
        "full",
        "head",
        "gce",
        "soft",
        "discrete",
    }
    for row in finding.rows:
        assert row.values["p_wilcoxon"] is None
        assert row.values["bag_difference_low"] <= row.values["bag_difference_high"]
    alone = compare_runs(classification_runs.host, classification_runs.host, resamples=20)
    assert {row.values["bag_difference_high"] for row in alone.rows} == {0.0}


def test_folds_made_anew_between_two_runs_are_refused(classification_runs: TrainedRuns, tmp_path):
    other = tmp_path / "host"
    shutil.copytree(classification_runs.host, other)
    path = other / "fold_0" / "predictions.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if line != lines[-1]) + "\n")
    with pytest.raises(RunError, match="test different bags"):
        compare_runs(classification_runs.gce, other, resamples=10)
