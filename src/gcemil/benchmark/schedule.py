"""The order of work: what is ready goes to a free worker, what ended is written down, what is left waits.

One loop for every engine. An engine is a pool: it takes keys, and says which ended and how.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import yaml

from gcemil.benchmark.cohorts import read_cohort_record
from gcemil.benchmark.grid import Grid
from gcemil.benchmark.plan import Key, list_needs, plan_runs, plan_work, run_settings
from gcemil.benchmark.results import Results, claim
from gcemil.benchmark.runner import Ending, Outcome, is_finished
from gcemil.benchmark.summary import write_summary
from gcemil.errors import RunError
from gcemil.files import remove_leftovers, write_text
from gcemil.runs.folder import read_run
from gcemil.training.run import differences

POLL_S = 0.5
BUSY_S = 2.0
"""How long to leave a key alone that another process is at."""


class Pool(Protocol):
    """Workers that execute keys."""

    workers: int

    def has_room(self) -> bool: ...

    def submit(self, key: Key) -> None: ...

    def ended(self, timeout: float) -> Sequence[tuple[Key, Outcome]]:
        """What ended since the last call; waits up to `timeout` seconds for something to end."""
        ...


class Watch(Protocol):
    """Somebody who wants to see it."""

    def started(self, key: Key) -> None: ...

    def ended(self, key: Key, outcome: Outcome) -> None: ...

    def tick(self) -> None: ...


def run_grid(grid: Grid, results: Results, pool: Pool, watch: Watch | None = None) -> dict[Key, Outcome]:
    """Everything of the grid that is not finished; how each key ended. The summary is written in any case."""
    enter_grid(grid, results)
    todo = list_unfinished(grid, results)
    try:
        return dict(execute_keys(grid, todo, pool, watch))
    finally:
        # Workers that died or were stopped may have been writing.
        remove_leftovers(results.folder)
        results.remove_empty_failures()
        write_summary(results)


def enter_grid(grid: Grid, results: Results) -> None:
    """Write the grid into the folder, which must not contradict it and is freed of what killed processes left."""
    check_results(grid, results)
    remove_leftovers(results.folder)
    with claim(results.lock("grids"), wait=True):
        write_text(results.folder / "grids" / f"{grid.name}.yaml", grid.to_yaml())


def list_unfinished(grid: Grid, results: Results) -> list[Key]:
    return [key for key in plan_work(grid) if not is_finished(grid, results, key)]


def check_results(grid: Grid, results: Results) -> None:
    """Cohorts and runs that exist must be those of the grid, because a table that mixes them would be no result."""
    for name, settings in grid.cohorts.items():
        record = read_cohort_record(results, name)
        # A label may change; what the cohort is may not.
        labels = {"dataset": None, "encoder": None}
        now = settings.model_dump(mode="json") | labels
        if record and (changed := differences(record["settings"] | labels, now)):
            raise RunError(
                f"{results.folder} holds another cohort '{name}' ({'; '.join(changed)}). "
                "Name the cohort otherwise, or give another --out."
            )
    for key in {key.run_path: key for key in plan_runs(grid)}.values():
        run = results.run(key)
        if not (run / "config.yaml").is_file():
            continue
        before = yaml.safe_load(read_run(run).settings.to_yaml())
        if changed := differences(before, yaml.safe_load(run_settings(grid, key).to_yaml())):
            raise RunError(
                f"{run} was trained with other settings ({'; '.join(changed)}). Give another --out."
            )


def execute_keys(
    grid: Grid, todo: Sequence[Key], pool: Pool, watch: Watch | None
) -> Iterator[tuple[Key, Outcome]]:
    """Each key once, in the order of the plan as far as needs and workers allow."""
    waiting: dict[Key, float] = dict.fromkeys(todo, 0.0)
    """Keys not yet with a worker, and the moment before which they are left alone."""
    at_work: set[Key] = set()
    while waiting or at_work:
        for key in [key for key, moment in waiting.items() if moment <= time.monotonic()]:
            if not pool.has_room():
                break
            if any(need in waiting or need in at_work for need in list_needs(grid, key)):
                continue
            del waiting[key]
            at_work.add(key)
            pool.submit(key)
            if watch:
                watch.started(key)
        for key, outcome in pool.ended(POLL_S):
            at_work.remove(key)
            if watch:
                watch.ended(key, outcome)
            if outcome.ending is Ending.busy:
                waiting[key] = time.monotonic() + BUSY_S
            else:
                yield key, outcome
        if watch:
            watch.tick()
