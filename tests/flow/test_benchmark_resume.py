"""A grid killed at any moment goes on and ends with the summary of an undisturbed one, nothing done twice."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from builders.grids import events, executed_twice, run_inline, small_grid
from gcemil.benchmark.grid import Grid
from gcemil.benchmark.results import Results, read_log
from gcemil.benchmark.runner import Ending
from gcemil.cli.benchmark import benchmark

CHILD = """
import sys
from pathlib import Path
from gcemil.benchmark.grid import Grid
from gcemil.benchmark.engines import run_grid
from gcemil.benchmark.results import Results

if __name__ == "__main__":
    grid, results = Grid.model_validate_json(sys.argv[1]), Results(Path(sys.argv[2]))
    run_grid(grid, results, 2)
"""

GRID = small_grid(
    cohorts={"lung": {"profile": "nsclc", "size": "tiny", "slides": 24, "dials": {"pairs": 64}}},
    settings={"epochs": 1},
    diagnostics=["snr"],
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The results of a grid that ran here, in one go and without workers."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_inline(GRID, folder)
    return folder


@pytest.fixture
def undisturbed(finished):
    return (finished / "summary.json").read_bytes()


@pytest.fixture
def script(tmp_path):
    """Spawned workers import the main module of their parent, so it is a file."""
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    return path


def start(script: Path, grid: Grid, folder: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, str(script), grid.model_dump_json(), str(folder)])


def kill_after(child: subprocess.Popen, folder: Path, lines: int, delay: float) -> None:
    """SIGKILL once the log has so many lines, and a random moment later; its workers are not touched."""
    while child.poll() is None and len(read_log(Results(folder))) < lines:
        time.sleep(0.01)
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()


def check_killed(
    script: Path, grid: Grid, folder: Path, expected: bytes, seed: int, last_line: int
) -> None:
    moment = random.Random(seed)
    child = start(script, grid, folder)
    kill_after(child, folder, moment.randrange(0, last_line), moment.uniform(0, 0.5))
    assert start(script, grid, folder).wait() == 0
    assert (folder / "summary.json").read_bytes() == expected
    assert executed_twice(folder) == []
    ended = [key for key, event in events(folder) if event == "end"]
    assert len(ended) == len(set(ended))
    assert not (folder / "failures").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_grid_ends_with_the_summary_of_an_undisturbed_one(
    script, tmp_path, undisturbed, seed
):
    check_killed(script, GRID, tmp_path / "results", undisturbed, seed=seed, last_line=13)


def test_a_real_folder_is_used_where_it_lies_and_its_faults_are_named(tmp_path):
    from builders import make_cohort

    make_cohort(tmp_path / "cohort", n_cases=20, n_patches=12, dim=8)
    grid = small_grid(cohorts={"real": {"folder": tmp_path / "cohort"}}, arms=["host"], folds=[0])
    outcomes = run_inline(grid, tmp_path / "results")
    reasons = {str(key.path): outcome.reason for key, outcome in outcomes.items()}
    assert "has no fold 0. Make the folds with 'gcemil split" in reasons["cohorts/real"]
    assert "Cohort 'real' is not there" in reasons["runs/real/abmil/host/seed_0/fold_0"]

    from gcemil.bags.cohort import Cohort
    from gcemil.bags.folds import make_folds, write_folds

    cohort = Cohort.load(tmp_path / "cohort")
    write_folds(cohort, make_folds(cohort))
    again = run_inline(grid, tmp_path / "results")
    assert {outcome.ending for outcome in again.values()} == {Ending.finished}
    assert not (tmp_path / "results" / "cohorts" / "real").exists()
    run = tmp_path / "results" / "runs" / "real" / "abmil" / "host" / "seed_0"
    assert {path.name for path in run.iterdir()} == {
        "cohort.json", "config.yaml", "environment.json", "fold_0", "summary.json", "warnings.json",
    }  # fmt: skip

    # A fold that is left to do is not trained on another state of the cohort.
    write_folds(cohort, make_folds(cohort, seed=5))
    grid = small_grid(
        cohorts={"real": {"folder": tmp_path / "cohort"}}, arms=["host"], folds=[0, 1]
    )
    (outcome,) = run_inline(grid, tmp_path / "results").values()
    assert outcome.ending is Ending.failed
    assert "changed since 'real' was prepared" in outcome.reason


@pytest.fixture
def gcemil(tmp_path):
    """The command alone, on the four-run grid; returns exit code, output and error."""
    app = typer.Typer()
    app.command()(benchmark)
    file = tmp_path / "four.yaml"
    file.write_text(GRID.to_yaml())

    def run(*arguments):
        result = CliRunner().invoke(app, [str(file), *map(str, arguments)])
        return result.exit_code, result.output, result.exception

    return run


def test_a_dry_run_shows_plan_and_estimate_and_writes_nothing(gcemil, tmp_path):
    code, output, _ = gcemil("--out", tmp_path / "none", "--dry-run", "--workers", 2)
    assert code == 0
    assert (
        "7 of 7 steps left: how long they take is known once one of each kind has finished"
        in " ".join(output.split())
    )
    assert "arms host, gce" in output
    assert not (tmp_path / "none").exists()
    code, output, _ = gcemil("--out", tmp_path / "none", "--dry-run", "--json")
    assert [step["key"] for step in json.loads(output)][:2] == [
        "cohorts/lung",
        "runs/lung/abmil/host/seed_0/fold_0",
    ]
