"""A run killed at any moment resumes to the bit-identical result of an undisturbed one."""

import errno
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import make_cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.training.run import train_run

CHILD = """
import sys
from pathlib import Path
from gcemil.config import TrainSettings
from gcemil.training.run import train_run
train_run(Path(sys.argv[1]), Path(sys.argv[2]), TrainSettings.model_validate_json(sys.argv[3]), folds=[0], jobs=1)
"""

EPOCHS = 3
RESULTS = ("checkpoint.safetensors", "history.jsonl", "metrics.json", "predictions.csv")


def settings(host="abmil", **changes):
    return TrainSettings(
        host=HostSettings(name=host), evidence=EvidenceSettings(), epochs=EPOCHS, **changes
    )


def results(run: Path) -> dict[str, bytes]:
    return {name: (run / "fold_0" / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    made = make_cohort(
        tmp_path_factory.mktemp("resume") / "cohort", n_cases=20, n_patches=12, dim=8
    )
    write_folds(made, make_folds(made))
    return made.folder


@pytest.fixture(scope="module")
def undisturbed(cohort, tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train_run(cohort, run, settings(), folds=[0], jobs=1)
    return results(run)


def start(cohort: Path, run: Path, chosen: TrainSettings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(cohort), str(run), chosen.model_dump_json()]
    )


def kill_after_epoch(cohort: Path, run: Path, epochs: int, delay: float) -> None:
    """SIGKILL once the history shows so many epochs, and a random moment later."""
    child = start(cohort, run, settings())
    history = run / "fold_0" / "history.jsonl"
    while child.poll() is None:
        if history.is_file() and len(history.read_text().splitlines()) >= epochs:
            time.sleep(delay)
            break
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()


@pytest.mark.parametrize(
    "kill", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_a_killed_run_ends_like_an_undisturbed_one(cohort, undisturbed, tmp_path, kill):
    moment = random.Random(kill)
    kill_after_epoch(cohort, tmp_path / "run", moment.randrange(0, EPOCHS), moment.uniform(0, 0.2))
    train_run(cohort, tmp_path / "run", settings(), folds=[0], jobs=1)
    assert results(tmp_path / "run") == undisturbed


@pytest.mark.parametrize("fails", ["write_history", "_save_state"])
def test_a_disk_that_fails_at_the_last_epoch_costs_no_line_of_the_history(
    cohort, undisturbed, tmp_path, monkeypatch, fails
):
    from gcemil.training import loop

    original, calls = getattr(loop, fails), []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == settings().epochs:
            raise OSError(errno.EROFS, "Read-only file system")
        return original(*arguments)

    monkeypatch.setattr(loop, fails, failing)
    with pytest.raises(OSError, match="Read-only"):
        train_run(cohort, tmp_path / "run", settings(), folds=[0], jobs=1)
    monkeypatch.undo()
    train_run(cohort, tmp_path / "run", settings(), folds=[0], jobs=1)
    assert results(tmp_path / "run") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "stopped_in"), [("ibmil", 5), ("mhim", 3), ("mhim", 5), ("dtfd", 2), ("hdmil", 2)]
)
def test_a_run_stopped_in_any_stage_of_a_host_that_draws_resumes(
    cohort, tmp_path, host, stopped_in, monkeypatch
):
    chosen = settings(host)
    train_run(cohort, tmp_path / "whole", chosen, folds=[0], jobs=1)
    from gcemil.training import loop

    original, calls = loop.train_epoch, []

    def stopping(*arguments, **options):
        calls.append(1)
        if len(calls) == stopped_in:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(loop, "train_epoch", stopping)
    with pytest.raises(KeyboardInterrupt):
        train_run(cohort, tmp_path / "broken", chosen, folds=[0], jobs=1)
    monkeypatch.setattr(loop, "train_epoch", original)
    train_run(cohort, tmp_path / "broken", chosen, folds=[0], jobs=1)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")


def test_what_a_dead_worker_said_of_its_progress_is_taken_back(cohort, tmp_path):
    run = tmp_path / "run"
    train_run(cohort, run, settings().model_copy(update={"epochs": 1}), folds=[0], jobs=1)
    left = run / "fold_0" / "progress.json"
    left.write_text("[3, 9]")
    train_run(cohort, run, settings().model_copy(update={"epochs": 1}), folds=[0], jobs=1)
    assert not left.exists()
