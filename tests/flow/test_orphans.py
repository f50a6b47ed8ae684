"""Commands that start workers take them along when they are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import make_cohort
from gcemil.bags.folds import make_folds, write_folds

COMMAND = "from gcemil.cli.main import main; main()"


def children(pid: int) -> list[int]:
    """Living processes that this one started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def waited(is_true, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    "kind",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_folds_in_training_end_with_the_command(tmp_path, kind):
    made = make_cohort(tmp_path / "cohort", n_cases=30, n_patches=12, dim=8)
    write_folds(made, make_folds(made))
    run = tmp_path / "run"
    arguments = ["train", str(made.folder), "--out", str(run), "--no-gce", "--folds", "0,1", "--jobs", "2"]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, "--epochs", "100000"],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        histories = [run / f"fold_{index}" / "history.jsonl" for index in (0, 1)]
        assert waited(lambda: all(path.is_file() for path in histories), 120)
        workers = children(command.pid)
        assert len(workers) >= 2
        command.send_signal(kind)
        command.wait(20)
        assert waited(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 10)
    finally:
        command.kill()
        command.wait()
    assert (run / "config.yaml").is_file()
