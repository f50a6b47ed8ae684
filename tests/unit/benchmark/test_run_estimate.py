"""How long it will take: the times of finished units, what is left, and how many workers a machine carries."""

import os

import pytest

from builders.grids import small_grid
from gcemil.benchmark import engines as local
from gcemil.benchmark.engines import affordable_workers, show_accelerators
from gcemil.benchmark.grid import CohortKey, DiagnosisKey, Resources, RunKey, plan_work
from gcemil.benchmark.progress import UnitTimes, duration, show_board
from gcemil.benchmark.results import Results, append_log
from gcemil.benchmark.runner import Ending, Outcome

PLAIN = RunKey("lung", "abmil", "host", None, 0, 0)
WRAPPED = RunKey("lung", "abmil", "gce", None, 0, 0)


def test_a_unit_takes_as_long_as_the_nearest_finished_ones(tmp_path):
    keys = plan_work(small_grid(hosts=["abmil", "dsmil"], diagnostics=["snr"]))
    results = Results(tmp_path)
    times = UnitTimes(keys, results)
    assert times.expect(PLAIN) is None
    assert times.total(keys) is None
    append_log(results, PLAIN, "end", seconds=3.0, whole=True)
    # A continued execution tells nothing of a whole one.
    append_log(results, WRAPPED, "end", seconds=0.1, whole=False)
    times = UnitTimes(keys, results)
    assert times.expect(RunKey("lung", "abmil", "host", None, 0, 1)) == 3.0
    assert times.expect(RunKey("lung", "dsmil", "gce", None, 0, 1)) == 3.0
    times.add(WRAPPED, 5.0)
    assert times.expect(RunKey("other", "abmil", "gce", None, 0, 1)) == 5.0
    assert times.expect(RunKey("lung", "dsmil", "host", None, 0, 1)) == 4.0
    assert times.expect(DiagnosisKey(WRAPPED)) is None
    times.add(DiagnosisKey(WRAPPED), 1.0)
    times.add(CohortKey("lung"), 2.0)
    # A cohort, four folds of abmil, four of dsmil, four diagnoses.
    assert times.total(keys) == 2 + (3 + 3 + 5 + 5) + 4 * 4 + 4 * 1


def test_without_a_terminal_every_ending_is_a_line(capsys, tmp_path):
    keys = plan_work(small_grid())
    with show_board(keys, keys, UnitTimes(keys, Results(tmp_path)), 2) as board:
        for key, outcome in (
            (keys[0], Outcome(Ending.finished, 5.0)),
            (keys[1], Outcome(Ending.failed, 0.0, "no.")),
            (keys[2], Outcome(Ending.finished, 10.0)),
        ):
            board.end(key, outcome)
    assert board.title() == "3 of 5 done · 1 failed · about 10 s left"
    assert capsys.readouterr().err.splitlines() == [
        "[1/5] cohorts/lung finished in 5 s",
        "[2/5] runs/lung/abmil/host/seed_0/fold_0 failed: no.",
        "[3/5] runs/lung/abmil/host/seed_0/fold_1 finished in 10 s · about 10 s left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (99.4, "99 s"),
        (150, "2 min"),
        (5940, "99 min"),
        (7260, "2 h 1 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("resources", "workers"),
    [
        ({"cpus": 1, "memory_gb": 1}, 8),
        ({"cpus": 3, "memory_gb": 1}, 2),
        ({"cpus": 0.5, "memory_gb": 5}, 3),
        ({"cpus": 100, "memory_gb": 100}, 1),
    ],
)
def test_workers_fit_cores_and_memory(monkeypatch, resources, workers):
    monkeypatch.setattr(local.joblib, "cpu_count", lambda: 8)
    monkeypatch.setattr(local, "available_memory", lambda: 16 * 2**30)
    assert affordable_workers(Resources(**resources)) == workers


@pytest.mark.parametrize(
    ("gpus", "slot", "visible"),
    [(0.5, 0, "0"), (0.5, 1, "0"), (0.5, 2, "1"), (0.5, 3, "1"), (2, 1, "2,3"), (0, 1, "")],
)
def test_workers_share_the_accelerators_in_order(monkeypatch, gpus, slot, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    show_accelerators(Resources(gpus=gpus), slot)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
