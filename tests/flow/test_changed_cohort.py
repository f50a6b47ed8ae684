"""A run knows its cohort: whatever of it changes is noticed, at every command that reads both, and while training."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from builders import make_cohort
from builders.runs import TrainedRuns
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import HostSettings, TrainSettings
from gcemil.diagnostics.diagnose import Comparison, diagnose_run
from gcemil.errors import BusyError, CohortError, RunError
from gcemil.exports.explain_cohort import explain_cohort_slide
from gcemil.files import LOCK_NAME, lock_folder
from gcemil.prefilter.slide_files import read_run_origin
from gcemil.report.run_report import write_report
from gcemil.training.run import evaluate_run, train_run

COMMANDS = {
    "train": lambda run, cohort: train_run(cohort, run, read_settings(run), folds=[0], jobs=1),
    "evaluate": lambda run, cohort: evaluate_run(run),
    "diagnose": lambda run, cohort: diagnose_run(Comparison(run), names=["snr"], folds=[0], jobs=1),
    "report": lambda run, cohort: write_report(run, run / "report.html"),
    "explain": lambda run, cohort: explain_cohort_slide(
        run, Cohort.load(cohort).slides[0].slide_id
    ),
    "predict": lambda run, cohort: read_run_origin(run),
}


def read_settings(run: Path) -> TrainSettings:
    return TrainSettings.model_validate(
        yaml.safe_load((run / "config.yaml").read_text())["settings"]
    )


def plain(epochs=3) -> TrainSettings:
    return TrainSettings(host=HostSettings(name="abmil"), evidence=None, epochs=epochs)


def swap_label(cohort: Path) -> None:
    """The first two slides of different classes change labels."""
    path = cohort / "slides.csv"
    header, *lines = path.read_text().splitlines()
    rows = [line.split(",") for line in lines]
    place = header.split(",").index("label")
    other = next(row for row in rows if row[place] != rows[0][place])
    rows[0][place], other[place] = other[place], rows[0][place]
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")


def resplit(cohort: Path) -> None:
    loaded = Cohort.load(cohort)
    write_folds(loaded, make_folds(loaded, seed=5))


def replace_features(cohort: Path) -> None:
    loaded = Cohort.load(cohort)
    path = loaded.feature_file(loaded.slides[0].slide_id)
    columns = {name: store.read(path, name).copy() for name in store.describe(path)}
    columns["features"][len(columns["features"]) // 2] += 1
    path.unlink()
    store.write(path, columns)


def replace_anchors(cohort: Path) -> None:
    shutil.copy(cohort / "anchors_generic.h5", cohort / "anchors.h5")


CHANGES = {
    "the labels": swap_label,
    "the splits": resplit,
    "the anchors .anchors.h5.": replace_anchors,
    "the anchor pairs": lambda cohort: (cohort / "anchor_pairs.h5").unlink(),
    "the features of slide 'nsclc-": replace_features,
}


@pytest.fixture
def copied(classification_runs, tmp_path) -> TrainedRuns:
    """The runs and their cohort, to be changed."""
    cohort = tmp_path / "cohort"
    shutil.copytree(classification_runs.cohort, cohort)
    for name in ("host", "gce"):
        shutil.copytree(getattr(classification_runs, name), tmp_path / name)
        path = tmp_path / name / "config.yaml"
        path.write_text(path.read_text().replace(str(classification_runs.cohort), str(cohort)))
    return TrainedRuns(cohort, tmp_path / "host", tmp_path / "gce")


@pytest.fixture
def cohort(tmp_path) -> Path:
    made = make_cohort(tmp_path / "cohort", n_cases=20, n_patches=8, dim=8)
    write_folds(made, make_folds(made))
    return made.folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_whose_folds_changed_is_refused(copied, command):
    resplit(copied.cohort)
    with pytest.raises(
        RunError,
        match=r"trained on other data: the splits \(fold_0\.csv and 4 more\) in .* changed",
    ):
        COMMANDS[command](copied.gce, copied.cohort)


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changed_is_named(copied, what):
    CHANGES[what](copied.cohort)
    with pytest.raises(RunError, match=f"trained on other data: {what}"):
        evaluate_run(copied.gce)


def test_a_run_stopped_after_an_epoch_does_not_go_on_with_other_folds(cohort, tmp_path):
    def stop(fold, record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(cohort, tmp_path / "run", plain(), folds=[0], jobs=1, on_epoch=stop)
    assert (tmp_path / "run" / "fold_0" / "resume.safetensors").is_file()
    resplit(cohort)
    with pytest.raises(RunError, match="the splits .*Put back what was there, or train again"):
        train_run(cohort, tmp_path / "run", plain(), folds=[0], jobs=1)


def test_features_replaced_while_training_are_noticed_and_the_fold_is_not_kept(cohort, tmp_path):
    path = Cohort.load(cohort).feature_file("s003_0")
    whole = path.read_bytes()
    seen = []

    def replace(fold, record):
        seen.append(record["epoch"])
        if len(seen) == 2:
            columns = {name: store.read(path, name).copy() for name in ("features", "coords")}
            store.write(path, {**columns, "features": np.zeros_like(columns["features"]) + 1})

    with pytest.raises(RunError, match="the features of slide 's003_0' in"):
        train_run(cohort, tmp_path / "run", plain(), folds=[0], jobs=1, on_epoch=replace)
    assert not (tmp_path / "run" / "fold_0" / "checkpoint.safetensors").exists()
    path.write_bytes(whole)
    train_run(cohort, tmp_path / "run", plain(), folds=[0], jobs=1)
    train_run(cohort, tmp_path / "undisturbed", plain(), folds=[0], jobs=1)
    results = ("checkpoint.safetensors", "predictions.csv", "metrics.json")
    for name in results:
        first, second = (tmp_path / run / "fold_0" / name for run in ("run", "undisturbed"))
        assert first.read_bytes() == second.read_bytes()


def test_a_run_without_the_record_of_its_cohort_is_refused(copied):
    (copied.host / "cohort.json").unlink()
    with pytest.raises(RunError, match=r"has no cohort\.json.*Train the run again"):
        evaluate_run(copied.host)


def test_a_run_killed_while_it_began_begins_again(cohort, tmp_path):
    train_run(cohort, tmp_path / "whole", plain(1), folds=[0], jobs=1)
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in (LOCK_NAME, "environment.json", "cohort.json"):
        shutil.copy(tmp_path / "whole" / name, begun / name)
    (begun / "environment.json").write_text("{")
    train_run(cohort, begun, plain(1), folds=[0], jobs=1)
    assert (begun / "config.yaml").read_bytes() == (tmp_path / "whole" / "config.yaml").read_bytes()
    assert json.loads((begun / "environment.json").read_text())["seed"] == 0


def test_faults_of_a_cohort_are_told_before_the_run_begins(cohort, tmp_path):
    path = Cohort.load(cohort).feature_file("s003_0")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(CohortError, match="has 1 error: s003_0"):
        train_run(cohort, tmp_path / "run", plain(1), folds=[0], jobs=1)
    path.write_bytes(whole)
    train_run(cohort, tmp_path / "run", plain(1), folds=[0], jobs=1)


@pytest.mark.parametrize("command", ["train", "evaluate", "diagnose"])
def test_a_run_that_another_process_works_on_is_left_to_it(copied, command):
    # A second lock in this process is as foreign as one of another.
    with (
        lock_folder(copied.gce),
        pytest.raises(BusyError, match="is being written by another process"),
    ):
        COMMANDS[command](copied.gce, copied.cohort)
