"""How long it will take: the model by hand, its correction, what is left, and how many workers a machine carries."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from builders import make_cohort
from gcemil.benchmark import engines as local
from gcemil.benchmark import progress as estimate
from gcemil.benchmark.engines import affordable_workers, enter_grid, visible_accelerators
from gcemil.benchmark.grid import CohortKey, CohortSettings, DiagnosisKey, Resources, RunKey, plan_work
from gcemil.benchmark.progress import (
    Board,
    Shape,
    board,
    duration,
    estimate_seconds,
    expected_seconds,
    model_seconds,
    simulated_shape,
    taken_seconds,
    training_seconds,
)
from gcemil.benchmark.results import Results, append_log
from gcemil.benchmark.runner import Ending, Outcome
from gcemil.hosts.table import HOSTS, host_cost
from grid_builders import small_grid

PLAIN = RunKey("lung", "abmil", "host", None, 0, 0)
WRAPPED = RunKey("lung", "abmil", "gce", None, 0, 0)


def test_training_time_is_patches_times_cost(monkeypatch):
    monkeypatch.setitem(HOSTS, "abmil", replace(HOSTS["abmil"], cost_us=(100.0, 300.0)))
    grid = small_grid(settings={"epochs": 2, "max_patches": 50})
    # 7 training bags of 50 sampled patches and a third of 100 validation patches, twice; a third of 300 evaluated.
    passes = 2 * (350 + 100 / 3) + 300 / 3
    shape = Shape(bags=10, patches=100, width=128)
    assert training_seconds(grid, PLAIN, shape) == pytest.approx(passes * 100e-6)
    assert training_seconds(grid, WRAPPED, shape) == pytest.approx(passes * 300e-6)


@pytest.mark.parametrize("host", ["transmil", "camil"])
def test_a_narrow_token_host_is_expected_to_cost_as_much_less(host):
    shape = Shape(bags=10, patches=100, width=128)
    runs = [RunKey("lung", host, arm, None, 0, 0) for arm in ("host", "gce")]
    wide = small_grid(hosts=[host], diagnostics=["snr"])
    narrow = small_grid(
        hosts=[host], diagnostics=["snr"], settings_by_host={host: {"host.options": {"width": 64}}}
    )
    for run in runs:
        # 64 of 512.
        assert training_seconds(narrow, run, shape) == pytest.approx(training_seconds(wide, run, shape) / 8)
    key = DiagnosisKey(runs[1])
    before, after = (estimate_seconds(grid, Results(Path("nowhere")))[key] for grid in (wide, narrow))
    assert after == pytest.approx(before / 8)


def test_the_estimate_before_the_first_run_stays_what_it_was(tmp_path):
    results, grid = Results(tmp_path), small_grid(diagnostics=["snr"])
    other = small_grid(name="other", diagnostics=["budget"])
    for one in (grid, other):
        enter_grid(one, results)
    first = model_seconds(grid, results)
    append_log(results, PLAIN, "end", seconds=3 * first[PLAIN], whole=True)
    assert model_seconds(grid, results) == first
    # Runs and cohorts of both grids count once, the diagnostics of each for themselves.
    second = sum(
        seconds for key, seconds in model_seconds(other, results).items() if isinstance(key, DiagnosisKey)
    )
    assert expected_seconds(results) == pytest.approx(sum(first.values()) + second)
    assert taken_seconds(first, results) == pytest.approx(3 * first[PLAIN])


def test_a_tenth_host_is_expected_to_cost_what_the_middle_of_the_nine_does(monkeypatch):
    monkeypatch.setitem(HOSTS, "tenth", replace(HOSTS["abmil"], cost_us=None))
    costs = sorted(spec.cost_us for name, spec in HOSTS.items() if name != "tenth")
    assert host_cost("tenth", wrapped=False) == costs[4][0] == 50
    assert host_cost("tenth", wrapped=True) == 100
    grid = small_grid(hosts=["tenth"], diagnostics=["snr"])
    assert all(seconds > 0 for seconds in estimate_seconds(grid, Results(Path("nowhere"))).values())


def test_the_size_of_a_simulated_cohort_is_known_before_it_is_made():
    shape = simulated_shape(CohortSettings(profile="bracs", size="default"))
    assert (shape.bags, shape.width) == (150, 128)
    assert shape.patches == pytest.approx(2800 / 2.70805, rel=1e-4)
    full = simulated_shape(CohortSettings(profile="bracs", size="full"))
    assert full.gigabytes == pytest.approx(525 * 29500 / 4.0943446 * 1024 * 2 / 1e9)


def test_the_size_of_a_folder_is_counted(tmp_path):
    make_cohort(tmp_path / "c", task="survival", n_cases=6, slides_per_case=2, n_patches=12, dim=8)
    grid = small_grid(cohorts={"real": {"folder": tmp_path / "c"}})
    shape = estimate.cohort_shape(grid, Results(tmp_path / "results"), "real")
    assert (shape.bags, shape.patches, shape.width) == (6, 24.0, 8)


def test_finished_runs_correct_the_model_for_their_own_host_and_others(tmp_path):
    grid = small_grid(hosts=["abmil", "dsmil"], diagnostics=["snr"])
    results = Results(tmp_path)
    before = estimate_seconds(grid, results)
    append_log(results, PLAIN, "end", seconds=3 * before[PLAIN], whole=True)
    append_log(results, WRAPPED, "end", seconds=0.0, whole=False)
    after = estimate_seconds(grid, results)
    other_fold = RunKey("lung", "abmil", "host", None, 0, 1)
    other_host = RunKey("lung", "dsmil", "host", None, 0, 0)
    assert after[other_fold] == pytest.approx(3 * before[other_fold])
    assert after[other_host] == pytest.approx(3 * before[other_host])
    # A resumed execution says nothing, so wrapped runs go by what is known of training at all.
    assert after[WRAPPED] == pytest.approx(3 * before[WRAPPED])
    assert after[DiagnosisKey(WRAPPED)] == before[DiagnosisKey(WRAPPED)]
    assert after[CohortKey("lung")] == before[CohortKey("lung")]


def test_every_key_has_an_estimate(tmp_path):
    grid = small_grid(diagnostics=["snr", "posthoc"], hosts=list(HOSTS))
    expected = estimate_seconds(grid, Results(tmp_path))
    assert set(expected) == set(plan_work(grid))
    assert min(expected.values()) > 0


def make_board(kind=Board, now=(0.0,), workers=2):
    keys = plan_work(small_grid())
    return kind(keys, keys[1:], dict.fromkeys(keys, 10.0), workers, clock=lambda: now[0])


def test_time_left_is_spread_over_the_workers_and_learns():
    shown = make_board()
    assert (shown.done, shown.seconds_left()) == pytest.approx((1, 20.0))
    first = shown.todo[0]
    shown.started(first)
    shown.ended(first, Outcome(Ending.finished, seconds=30.0))
    assert (shown.done, shown.seconds_left()) == pytest.approx((2, 3 * 15.0))


def test_time_left_is_never_less_than_the_longest_at_work():
    now = [0.0]
    shown = make_board(now=now, workers=100)
    shown.started(shown.todo[0])
    now[0] = 4.0
    assert shown.seconds_left() == pytest.approx(6.0)
    now[0] = 40.0
    assert shown.seconds_left() == pytest.approx(30 / 100)


def test_what_is_busy_elsewhere_is_not_done():
    shown = make_board()
    shown.started(shown.todo[0])
    shown.ended(shown.todo[0], Outcome(Ending.busy))
    assert (shown.done, shown.at_work) == (1, {})


def test_without_a_terminal_every_ending_is_a_line(capsys):
    keys = plan_work(small_grid())
    with board(keys, keys, dict.fromkeys(keys, 10.0), 1) as shown:
        for key, outcome in (
            (keys[0], Outcome(Ending.finished, 5.0)),
            (keys[1], Outcome(Ending.failed, 0.0, "no.")),
        ):
            shown.started(key)
            shown.ended(key, outcome)
    assert capsys.readouterr().err.splitlines() == [
        "[1/5] cohorts/lung finished in 5 s · about 20 s left",
        "[2/5] runs/lung/abmil/host/seed_0/fold_0 failed: no. · about 15 s left",
    ]


def test_the_table_counts_by_cohort():
    shown = make_board()
    shown.started(shown.todo[0])
    shown.ended(shown.todo[0], Outcome(Ending.failed, reason="no."))
    shown.started(shown.todo[1])
    text = StringIO()
    Console(width=100, file=text).print(shown.table())
    lines = text.getvalue().splitlines()
    assert lines[0].startswith("2 of 5 done · 1 failed · about 15 s left")
    assert lines[4].replace("│", "").split() == ["lung", "5", "2", "1", "1"]
    assert "lung/abmil/host/seed_0/fold_1" in lines[5]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (99.4, "99 s"), (150, "2 min"), (5940, "99 min"), (7260, "2 h 1 min"), (200_000, "2 d 7 h")],
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
    monkeypatch.setattr(local, "usable_cores", lambda: 8)
    monkeypatch.setattr(local, "available_memory", lambda: 16 * 2**30)
    assert affordable_workers(Resources(**resources)) == workers


def test_accelerators_are_dealt_in_order():
    halves = Resources(gpus=0.5)
    assert [visible_accelerators(slot, halves)["CUDA_VISIBLE_DEVICES"] for slot in range(4)] == [
        "0",
        "0",
        "1",
        "1",
    ]
    assert visible_accelerators(1, Resources(gpus=2)) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert visible_accelerators(1, Resources()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_memory_of_this_machine_is_found():
    assert 2**26 < local.available_memory() < 2**50


def test_parts_that_the_grid_names_are_what_is_trained_and_tested():
    shape = simulated_shape(CohortSettings(profile="bracs", size="tiny", parts=(60, 20, 160)))
    assert shape.bags == 240
    assert shape.parts == pytest.approx((0.25, 1 / 12, 2 / 3))
