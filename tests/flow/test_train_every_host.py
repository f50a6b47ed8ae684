"""Every host, every task, with and without the wrapper, through the real training run."""

import itertools
import json

import pytest

from builders import make_cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.hosts.table import HOSTS
from gcemil.metrics import TASKS
from gcemil.training.run import train_run

QUICK = {
    ("abmil", "survival", True),
    ("abmil", "regression", True),
    ("clam_sb", "regression", False),
    ("dtfd", "classification", True),
    ("mhim", "survival", True),
    ("transmil", "classification", False),
    ("ibmil", "classification", False),
    ("camil", "classification", True),
    ("hdmil", "survival", False),
}


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    for task in TASKS:
        made = make_cohort(
            folder / task,
            task=task,
            n_cases=20,
            slides_per_case=2 if task == "survival" else 1,
            n_patches=8,
            dim=12,
        )
        write_folds(made, make_folds(made))
    return folder


def cases():
    for host, task, wrapped in itertools.product(HOSTS, TASKS, (True, False)):
        slow = () if (host, task, wrapped) in QUICK else (pytest.mark.slow,)
        yield pytest.param(
            host, task, wrapped, marks=slow, id=f"{host}-{task}-{'gce' if wrapped else 'plain'}"
        )


@pytest.mark.parametrize(("host", "task", "wrapped"), list(cases()))
def test_trains_evaluates_and_writes_evidence(cohorts, tmp_path, host, task, wrapped):
    chosen = TrainSettings(
        host=HostSettings(name=host),
        evidence=EvidenceSettings() if wrapped else None,
        epochs=1,
        window=8,
    )
    train_run(cohorts / task, tmp_path / "run", chosen, folds=[0], jobs=1)
    metrics = json.loads((tmp_path / "run" / "fold_0" / "metrics.json").read_text())
    modes = ("full", "soft", "discrete") if wrapped else ("full",)
    # R2 has no lower end.
    assert all(metrics[mode][TASKS[task].lead] <= 1 for mode in modes)
    written = len(list((tmp_path / "run" / "fold_0" / "evidence").glob("*.h5")))
    slides = 8 if task == "survival" else 4
    assert written == (slides if wrapped else 0)


def test_the_discrete_time_analysis_trains_another_network_than_cox(cohorts, tmp_path):
    risks = {}
    for loss in ("cox", "discrete_time"):
        chosen = TrainSettings(survival_loss=loss, epochs=1, window=8)
        train_run(cohorts / "survival", tmp_path / loss, chosen, folds=[0], jobs=1)
        risks[loss] = (tmp_path / loss / "fold_0" / "predictions.csv").read_text()
    assert risks["cox"] != risks["discrete_time"]
