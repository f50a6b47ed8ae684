"""A results folder written by hand: grids, cohort records, run folders and findings with figures a test can add up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gcemil.benchmark.grid import Grid
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.findings import Finding, Row, write_finding
from gcemil.tables import Table

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class ResultsFolder:
    folder: Path

    def grid(self, name: str = "toy", **cohorts: dict[str, Any]) -> None:
        """The grid file, which says what each cohort stands for."""
        grid = Grid.model_validate({"name": name, "cohorts": cohorts, "hosts": ["abmil"]})
        path = self.folder / "grids" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(grid.to_yaml(), encoding="utf-8")

    def cohort(
        self, name: str, *, task: str = "classification", simulated: bool = True, **facts: Any
    ) -> None:
        """What the benchmark writes of a cohort it prepared."""
        provenance = (
            {"simulator": {"generation": 1}, "profile": name, "size": "tiny", "seed": 0}
            if simulated
            else {}
        )
        record = {
            "task": task, "encoder": "toy", "feature_dim": 48, "slides": 24, "cases": 20, "bags": 24,
            "patches": {"total": 4800, "fewest": 120, "most": 300}, "provenance": provenance,
            **({"classes": {"a": 14, "b": 10}} if task == "classification" else {"events": 9}), **facts,
        }  # fmt: skip
        path = self.folder / "cohorts" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record), encoding="utf-8")

    def run(
        self,
        cohort: str,
        host: str,
        label: str,
        folds: Sequence[Mapping[str, Metrics]],
        *,
        seed: int = 0,
    ) -> Path:
        """A run folder with metrics.json per fold; `folds` gives the metrics of each mode."""
        evidence = None if label.startswith("host") else EvidenceSettings()
        settings = TrainSettings(host=HostSettings(name=host), evidence=evidence, seed=seed)
        run = self.folder / "runs" / cohort / host / label / f"seed_{seed}"
        for number, modes in enumerate(folds):
            (run / f"fold_{number}").mkdir(parents=True)
            (run / f"fold_{number}" / "metrics.json").write_text(
                json.dumps({**modes, "details": {}}), encoding="utf-8"
            )
        config = {"cohort": cohort, "settings": settings.model_dump(mode="json")}
        (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        return run


def diagnose(run: Path, name: str, *folds: Sequence[Row]) -> None:
    """A finding per fold."""
    for number, rows in enumerate(folds):
        write_finding(run / f"fold_{number}" / "diagnostics", Finding(name, tuple(rows)))


def host_folds(*values: float, metric: str = "macro_f1") -> list[dict[str, Metrics]]:
    """Folds of a plain host; every other metric is the same number."""
    return [{"full": task_metrics(value, metric)} for value in values]


def gce_folds(*values: float, metric: str = "macro_f1") -> list[dict[str, Metrics]]:
    """Folds of a wrapped host: gce and soft as given, full and discrete a tenth below."""
    return [
        {
            "full": task_metrics(value - 0.1, metric),
            "gce": task_metrics(value, metric),
            "soft": task_metrics(value, metric),
            "discrete": task_metrics(value - 0.1, metric),
        }
        for value in values
    ]


def task_metrics(value: float, metric: str) -> Metrics:
    names = ("accuracy", "macro_f1", "auc") if metric != "c_index" else ("c_index",)
    return dict.fromkeys(names, value)


def toy_results(folder: Path) -> ResultsFolder:
    """BRACS and KIRC, ABMIL, two folds: the host, and +GCE a tenth better in the first fold and two in the second."""
    results = ResultsFolder(folder)
    results.grid(bracs={"profile": "bracs"}, kirc={"profile": "kirc"})
    results.cohort("bracs")
    results.cohort("kirc", task="survival")
    results.run("bracs", "abmil", "host", host_folds(0.5, 0.6))
    results.run("bracs", "abmil", "gce", gce_folds(0.6, 0.8))
    results.run("kirc", "abmil", "host", host_folds(0.6, 0.6, metric="c_index"))
    results.run("kirc", "abmil", "gce", gce_folds(0.7, 0.6, metric="c_index"))
    return results


def gce_run(results: ResultsFolder, cohort: str = "bracs") -> Path:
    return results.folder / "runs" / cohort / "abmil" / "gce" / "seed_0"


def made_table(results: ResultsFolder, name: str) -> Table:
    from paper.comparison import paper_figures
    from paper.measured import read_measured
    from paper.tables import TABLES

    return TABLES[name](read_measured(results.folder), paper_figures())


def texts(made: Table, *row_labels: str, origin: str = "ours") -> list[str]:
    """The cells of the line whose row_labels starts so."""
    line = next(
        line
        for line in made.lines
        if line.row_labels[: len(row_labels)] == row_labels and line.origin == origin
    )
    return [cell.text for cell in line.cells]


def column(made: Table, key: str) -> int:
    return [column.key for column in made.columns].index(key)


def snr_rows(evidence: dict[str, float | None], *, cd_gap: float = 0.01) -> list[Row]:
    """The evidence over all classes, one class alone, and the gates."""
    labels = {"rule": "evidence", "network": "wrapped"}
    return [
        Row({**labels, "class": "all", "comparison": "full-kept"}, evidence),
        Row({**labels, "class": "a", "comparison": "full-kept"}, {"evidence_sufficiency": 0.0}),
        Row({**labels, "class": "all", "comparison": "soft-kept"}, {"cd_gap": cd_gap}),
    ]
