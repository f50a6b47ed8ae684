"""What is said of a training: time left from the first bags on, warnings once, and a log in the run."""

import json

import pytest

from gcemil.cli import training_progress
from gcemil.cli.training_progress import show_training, suggest_next
from gcemil.runs.folder import Run
from gcemil.training.epochs import find_failures


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(training_progress.time, "monotonic", lambda: now[0])
    return now


def record(epoch, warnings=()):
    return {
        "stage": "train",
        "epoch": epoch,
        "terms": {"task": 0.5},
        "val": 0.7,
        "warnings": list(warnings),
    }


def test_time_left_is_known_before_the_first_epoch_ends(tmp_path, capsys, clock):
    with show_training([0], 10, tmp_path) as watch:
        clock[0] = 30.0
        # The first bag made the anchors, which says nothing of the others.
        watch.bag(0, 1, 80)
        assert capsys.readouterr().err == ""
        clock[0] = 49.0
        watch.bag(0, 20, 80)
        # 19 bags took 19 s; ten epochs of 80 bags are left but for 20.
        assert "20 of 80 bags of the first epoch · about 13 min left" in capsys.readouterr().err
        clock[0] = 80.0
        watch.epoch(0, record(0))
        assert "about 12 min left" in capsys.readouterr().err


def test_a_run_that_goes_on_counts_what_is_left(tmp_path, capsys, clock):
    fold = tmp_path / "fold_0"
    fold.mkdir()
    (fold / "history.jsonl").write_text(f"{json.dumps(record(0))}\n" * 8)
    with show_training([0], 10, tmp_path) as watch:
        clock[0] = 5.0
        watch.epoch(0, record(8))
    assert "about 5 s left" in capsys.readouterr().err


def test_the_run_keeps_a_log_and_says_a_warning_once(tmp_path, capsys, clock):
    with show_training([0], 2, tmp_path) as watch:
        for epoch in range(2):
            clock[0] += 1
            watch.epoch(0, record(epoch, ["gates are all open"]))
    lines = Run(tmp_path).log.read_text(encoding="utf-8").splitlines()
    assert [line.startswith("fold 0 train epoch") for line in lines] == [True, False, True]
    assert lines[1] == "warning: fold 0, epoch 1: gates are all open"
    assert capsys.readouterr().err.count("gates are all open") == 1


def test_what_comes_next_is_a_command_that_can_be_typed(tmp_path, capsys):
    suggest_next(tmp_path / "my run", is_wrapped=True)
    said = capsys.readouterr().out
    assert f"gcemil diagnose '{tmp_path / 'my run'}' --only snr" in said
    assert f"gcemil view '{tmp_path / 'my run'}'" in said


def test_a_solved_task_is_no_reason_to_lower_a_weight():
    solved = {"task": 0.01, "utility": 0.9, "coverage": 0.001}
    assert find_failures({}, solved) == []
    (said,) = find_failures({}, {**solved, "task": 0.2, "utility": 9.0})
    assert "'utility' is 98% of the loss" in said
    # Terms that train other weights than the task's take nothing from it.
    assert find_failures({}, {**solved, "task": 0.2, "utility": 9.0}, competes=False) == []
