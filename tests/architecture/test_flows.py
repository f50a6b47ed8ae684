"""How many files a reader opens to follow one command: those whose functions run, on a tiny cohort, in one process."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gcemil
from builders.results import toy_results
from gcemil.cli.main import app

SOURCE = Path(gcemil.__file__).parent


def files_run(*command: str) -> list[str]:
    """Files of the package with a function that the command runs; what an import runs does not count."""
    for module in pkgutil.walk_packages([str(SOURCE)], "gcemil."):
        importlib.import_module(module.name)
    files: set[str] = set()

    def note(frame, event, argument):
        # Bodies of modules and of classes are not optimised: only functions are.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        result = CliRunner().invoke(app, list(command))
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0, result.output
    return sorted(
        path.relative_to(SOURCE).as_posix()
        for path in map(Path, files)
        if path.is_relative_to(SOURCE)
    )


def check_count(files: list[str], most: int) -> None:
    assert len(files) <= most, f"{len(files)} files, at most {most} wanted:\n" + "\n".join(files)


@pytest.mark.slow
def test_training_one_fold_runs_few_files(classification_runs, tmp_path):
    cohort = str(classification_runs.cohort)
    files = files_run(
        "train", cohort, "--folds", "0", "--epochs", "1", "--jobs", "1", "--out", str(tmp_path)
    )
    assert "training/loop.py" in files
    check_count(files, 51)


@pytest.mark.slow
def test_diagnosing_the_budget_runs_few_files(classification_runs, tmp_path):
    run = shutil.copytree(classification_runs.gce, tmp_path / "run")
    files = files_run("diagnose", str(run), "--only", "budget", "--jobs", "1")
    assert "diagnostics/budget.py" in files
    check_count(files, 45)


@pytest.mark.slow
def test_explaining_one_slide_runs_few_files(classification_runs, tmp_path):
    slide = next((classification_runs.gce / "fold_0" / "evidence").glob("*.h5")).stem
    files = files_run(
        "explain", str(classification_runs.gce), "--slide", slide, "--out", str(tmp_path)
    )
    assert "exports/explain.py" in files
    # Two of them tell regions apart and outline them.
    check_count(files, 46)


def test_printing_one_table_runs_few_files(tmp_path):
    files = files_run("tables", str(toy_results(tmp_path).folder), "--table", "task")
    assert "cli/benchmark.py" in files
    check_count(files, 7)
