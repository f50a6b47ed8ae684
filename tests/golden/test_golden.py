"""The golden run: every host, both tasks, on one tiny cohort, against figures that are kept as files.

What a change of structure must not change: predictions of host, head, mixture, gated and kept bags, the patches that are
selected, and what the diagnostics measure. After a change that is meant to change them, `make golden` records them again;
the difference then shows in the commit.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.diagnostics.diagnose import Comparison, diagnose_run
from gcemil.hosts.table import HOSTS
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run

FIGURES = Path(__file__).parent / "figures"
PROFILES = {"classification": "camelyon16", "survival": "kirc"}
FILES = {
    "gce": "predictions.csv",
    "host": "predictions_full.csv",
    "head": "predictions_head.csv",
    "gated": "predictions_soft.csv",
    "kept": "predictions_discrete.csv",
}
DIAGNOSTICS = ("snr", "budget", "localisation")
QUICK = {("abmil", "classification"), ("abmil", "survival"), ("dsmil", "classification")}
CLOSE = 2e-3
"""What other CPUs may change in a probability after a short training."""


def cases():
    for host in HOSTS:
        for task in PROFILES:
            marks = () if (host, task) in QUICK else (pytest.mark.slow,)
            yield pytest.param(host, task, marks=marks, id=f"{host}-{task}")


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    for task, profile in PROFILES.items():
        cohort = simulate(profile, folder / task, size="tiny", slides=40, seed=0)
        write_folds(cohort, make_folds(cohort, seed=0))
    return folder


@pytest.mark.parametrize(("host", "task"), list(cases()))
def test_the_golden_run_is_as_it_was(cohorts, tmp_path, host, task):
    measured = measure(cohorts / task, tmp_path / "run", host)
    file = FIGURES / f"{host}_{task}.json"
    if os.environ.get("GCEMIL_RECORD_GOLDEN"):
        FIGURES.mkdir(exist_ok=True)
        file.write_text(json.dumps(measured) + "\n")
    expected = json.loads(file.read_text())
    assert measured["predictions"].keys() == expected["predictions"].keys()
    for name, rows in expected["predictions"].items():
        assert measured["predictions"][name].keys() == rows.keys()
        for slide, values in rows.items():
            np.testing.assert_allclose(
                measured["predictions"][name][slide],
                values,
                rtol=CLOSE,
                atol=CLOSE,
                err_msg=f"{name} {slide}",
            )
    for slide, rows in expected["selected"].items():
        found = measured["selected"][slide]
        shared = len(set(found) & set(rows)) / len(set(found) | set(rows))
        assert shared >= 0.9, (slide, found, rows)
    assert measured["findings"].keys() == expected["findings"].keys()
    for name, value in expected["findings"].items():
        assert measured["findings"][name] == pytest.approx(value, abs=0.02), name


def measure(cohort: Path, out: Path, host: str) -> dict[str, dict]:
    """Predictions by mode and slide, selected patches by slide, and the figures of the diagnostics."""
    settings = TrainSettings(
        host=HostSettings(name=host), evidence=EvidenceSettings(), epochs=6, seed=0
    )
    train_run(cohort, out, settings, folds=[0], jobs=1)
    fold = out / "fold_0"
    findings = {}
    if host == "abmil":
        for finding in diagnose_run(Comparison(out), names=DIAGNOSTICS, jobs=1):
            for row in finding.rows:
                name = f"{finding.name} {' '.join(map(str, row.labels.values()))}"
                findings |= {
                    f"{name} {key}": round(value, 5)
                    for key, value in row.values.items()
                    if value is not None and np.isfinite(value)
                }
    return {
        "predictions": {name: read_predictions(fold / file) for name, file in FILES.items()},
        "selected": {
            path.stem: read_selected(path) for path in sorted((fold / "evidence").glob("*.h5"))
        },
        "findings": findings,
    }


def read_predictions(path: Path) -> dict[str, list[float]]:
    with path.open() as file:
        return {
            row["slide_id"]: [
                round(float(value), 5)
                for name, value in row.items()
                if name.startswith(("prob_", "risk"))
            ]
            for row in csv.DictReader(file)
            if row["split"] == "test"
        }


def read_selected(path: Path) -> list[int]:
    with h5py.File(path) as file:
        return file["selected"][:].tolist()
