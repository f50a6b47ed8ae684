"""Small grids for tests of the benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcemil.benchmark.engines import run_grid
from gcemil.benchmark.grid import CohortSettings, Grid, Key
from gcemil.benchmark.results import Results, read_log
from gcemil.benchmark.runner import Outcome


def small_grid(**changes: Any) -> Grid:
    """Four folds: one host, plain and wrapped, two folds of a cohort that is simulated in a second."""
    values = {
        "name": "four",
        "cohorts": {
            "lung": {"profile": "nsclc", "size": "tiny", "slides": 40, "dials": {"pairs": 64}}
        },
        "hosts": ["abmil"],
        "folds": [0, 1],
        "settings": {"epochs": 2},
    }
    return Grid.model_validate(values | changes)


def cohort_record(settings: CohortSettings) -> dict[str, Any]:
    """What the benchmark writes of a cohort once it is prepared."""
    return {
        "task": "classification", "encoder": "toy", "feature_dim": 48, "slides": 40, "cases": 40, "bags": 40, "bag_unit": "slide",
        "patches": {"total": 4800, "fewest": 120, "most": 300}, "provenance": {}, "classes": {"a": 20, "b": 20}, "warnings": [],
        "settings": settings.model_dump(mode="json"),
    }  # fmt: skip


def run_inline(grid: Grid, folder: Path) -> dict[Key, Outcome]:
    """The grid in this process, without workers."""
    return run_grid(grid, Results(folder), 0)


def events(folder: Path, key: str = "runs/") -> list[tuple[str, str]]:
    """(key, event) of every line of the log whose key begins so."""
    return [
        (record["key"], record["event"])
        for record in read_log(Results(folder))
        if record["key"].startswith(key)
    ]


def executed_twice(folder: Path) -> list[str]:
    """Keys that started again after they had ended."""
    ended: set[str] = set()
    again = []
    for key, event in events(folder, ""):
        if event == "start" and key in ended:
            again.append(key)
        if event == "end":
            ended.add(key)
    return again
