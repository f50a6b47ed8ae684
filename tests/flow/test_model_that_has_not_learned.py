"""A model at chance is announced before its evidence, by every command that shows evidence; one that has learned is not."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import make_cohort
from builders.commands import answer, succeeded
from gcemil.bags.folds import make_parts, write_folds
from gcemil.records import NOT_CERTIFIED
from gcemil.runs.folder import Run

PARTS = (24, 8, 24)
AT_CHANCE = "no better than chance"


def run_command(*arguments: object) -> str:
    return " ".join(succeeded(*arguments).split())


def make_split_cohort(folder: Path, *, shuffles: bool) -> Path:
    """A class that every patch shows, and perhaps labels that have nothing to do with it."""
    cohort = make_cohort(folder, n_cases=sum(PARTS), n_patches=20, dim=8)
    if shuffles:
        labels = np.random.default_rng(1).permutation([str(row.label) for row in cohort.slides])
        rows = tuple(
            replace(row, label=str(label)) for row, label in zip(cohort.slides, labels, strict=True)
        )
        cohort = replace(cohort, slides=rows)
        cohort.save()
    write_folds(
        cohort, [make_parts(cohort, PARTS, generator=np.random.default_rng(0))], kind="official"
    )
    return folder


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on shuffled labels, and what its training printed."""
    folder = tmp_path_factory.mktemp("shuffled")
    cohort = make_split_cohort(folder / "cohort", shuffles=True)
    said = run_command("train", cohort, "--epochs", 3, "--out", folder / "run")
    return folder / "run", said


def test_training_on_shuffled_labels_says_so_and_what_to_try(shuffled):
    run, said = shuffled
    assert AT_CHANCE in said
    assert "--set min_steps=" in said
    assert json.loads((run / "summary.json").read_text())["model_warning"] == Run(run).model_warning


def test_diagnose_and_report_say_it_before_the_evidence(shuffled):
    run, _ = shuffled
    said = run_command("diagnose", run, "--only", "snr")
    assert said.index(AT_CHANCE) < said.index("does the evidence hold?")
    run_command("report", run)
    page = (run / "report.html").read_text()
    body = page[page.index("<main>") :]
    order = [AT_CHANCE, "<h2>How good is the model?", "<h2>Does the evidence hold?"]
    assert order == sorted(order, key=body.index)


def test_evidence_of_a_model_at_chance_gets_no_certificate(shuffled):
    run, _ = shuffled
    slide = next((run / "fold_0" / "evidence").glob("*.h5")).stem
    said = answer("explain", run, "--slide", slide)["certificate"]
    assert said["verdict"] == NOT_CERTIFIED
    assert said["headline"].startswith(NOT_CERTIFIED)
    assert AT_CHANCE in said["notes"][0]
    features = next((run.parent / "cohort" / "features").glob("*.h5"))
    predicted = run_command("predict", run, features)
    assert AT_CHANCE in predicted
    assert "not certified" in predicted


def test_a_model_that_has_learned_is_not_warned_of(tmp_path):
    cohort = make_split_cohort(tmp_path / "cohort", shuffles=False)
    said = run_command("train", cohort, "--epochs", 15, "--no-gce", "--out", tmp_path / "run")
    assert "has not learned" not in said
    assert AT_CHANCE not in said
    assert Run(tmp_path / "run").model_warning is None
