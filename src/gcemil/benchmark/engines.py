"""The order of work, and the two engines: worker processes on this machine, or tasks on a Ray cluster.

An engine takes a key and returns a future. A grid is executed in four stages, each parallel in itself: cohorts, one run
of each host, runs that take over the host of another, folds to diagnose.

Local: processes of joblib's executor, as many as cores, memory and accelerators allow. When one dies, the executor ends
the others too; the keys that were at work are then executed one at a time, and the one that loses its worker again is
recorded as failed. Workers end with the process that started them.

Ray: an existing cluster, or a local one. All nodes see the results folder under the same path. When a node dies, Ray starts
its tasks again elsewhere, where they continue from the last epoch on disk.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from multiprocessing import current_process
from pathlib import Path
from typing import Protocol

import joblib
from joblib.externals.loky import get_reusable_executor

from gcemil.benchmark.grid import (
    CohortKey,
    DiagnosisKey,
    Grid,
    Key,
    Resources,
    RunKey,
    plan_runs,
    plan_work,
    run_settings,
)
from gcemil.benchmark.results import Results, claim, read_cohort_record, read_log
from gcemil.benchmark.runner import Ending, Outcome, execute, is_finished, record_failure
from gcemil.benchmark.summary import write_summary
from gcemil.errors import RunError, UsageError
from gcemil.files import write_text
from gcemil.processes import MAX_RETRIES, ONE_THREAD, connect_ray, end_with_parent
from gcemil.runs.folder import Run
from gcemil.training.run import differences

BUSY_S = 2.0
"""How long to wait before a key is tried again that another process works on."""


class Pool(Protocol):
    """Workers that execute keys."""

    workers: int

    def submit(self, key: Key) -> Future[Outcome]: ...


def run_grid(
    grid: Grid, results: Results, pool: Pool, on_end: Callable[[Key, Outcome], None] | None = None
) -> dict[Key, Outcome]:
    """Everything of the grid that is not finished; how each key ended. The summary is written in any case."""
    enter_grid(grid, results)
    todo = list_unfinished(grid, results)
    outcomes: dict[Key, Outcome] = {}
    try:
        for stage in _split_stages(todo):
            for key, outcome in _execute_keys(results, stage, pool):
                outcomes[key] = outcome
                if on_end:
                    on_end(key, outcome)
        return outcomes
    finally:
        results.remove_empty_failures()
        write_summary(results)


def _split_stages(todo: Sequence[Key]) -> list[list[Key]]:
    """Cohorts, then one run of each host, then the runs that may take over its host, then diagnoses."""
    runs = [key for key in todo if isinstance(key, RunKey)]
    first = {(key.cohort, key.host, key.seed, key.fold): key for key in reversed(runs)}.values()
    return [
        [key for key in todo if isinstance(key, CohortKey)],
        [key for key in runs if key in first],
        [key for key in runs if key not in first],
        [key for key in todo if isinstance(key, DiagnosisKey)],
    ]


def _execute_keys(
    results: Results, keys: Sequence[Key], pool: Pool
) -> Iterator[tuple[Key, Outcome]]:
    """Each key once, as they end."""
    left = dict.fromkeys(keys)
    while left:
        futures = {pool.submit(key): key for key in left}
        lost = []
        for future in as_completed(futures):
            # A run itself never raises: its worker was lost.
            if future.exception():
                lost.append(futures[future])
            elif (outcome := future.result()).ending is not Ending.busy:
                del left[futures[future]]
                yield futures[future], outcome
        for key in _find_begun(results, lost) or lost:
            future = pool.submit(key)
            if error := future.exception():
                reason = "Its worker process died, perhaps for want of memory."
                yield key, record_failure(results, key, reason, detail=str(error))
            elif future.result().ending is not Ending.busy:
                yield key, future.result()
            else:
                continue
            del left[key]
        if left and not lost:
            time.sleep(BUSY_S)


def _find_begun(results: Results, keys: Sequence[Key]) -> list[Key]:
    """The keys whose execution began and did not end."""
    last = {record["key"]: record["event"] for record in read_log(results)}
    return [key for key in keys if last.get(str(key.path)) == "start"]


def enter_grid(grid: Grid, results: Results) -> None:
    """Write the grid into the folder, which must not hold another grid's runs."""
    check_results(grid, results)
    with claim(results.lock("grids"), wait=True):
        write_text(results.folder / "grids" / f"{grid.name}.yaml", grid.to_yaml())


def list_unfinished(grid: Grid, results: Results) -> list[Key]:
    """Work of the grid that is still to be done, in order."""
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
        if not Run(run).is_begun:
            continue
        before = Run(run).card.settings.model_dump(mode="json")
        if changed := differences(before, run_settings(grid, key).model_dump(mode="json")):
            raise RunError(
                f"{run} was trained with other settings ({'; '.join(changed)}). Give another --out."
            )


class LocalPool:
    """Worker processes on this machine; a context manager, which ends them."""

    def __init__(self, grid: Grid, results: Results, *, workers: int | None = None) -> None:
        self.workers = workers or affordable_workers(grid.resources)
        self._work = (grid, results)

    def submit(self, key: Key) -> Future[Outcome]:
        """Execute a key in a worker."""
        grid, results = self._work
        executor = get_reusable_executor(
            self.workers,
            timeout=None,
            env=ONE_THREAD,
            initializer=_prepare_worker,
            initargs=(os.getpid(), self.workers, grid.resources),
        )
        future: Future[Outcome] = executor.submit(execute, grid, results, key)
        return future

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *error: object) -> None:
        get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _prepare_worker(parent: int, workers: int, resources: Resources) -> None:
    """Give the worker its accelerators, and end it when its parent ends, also when that is killed."""
    # LokyProcess-2, or LokyProcess-1:2 where the parent is itself a worker.
    number = int(re.split("[-:]", current_process().name)[-1])
    slot = (number - 1) % workers
    os.environ.update(visible_accelerators(slot, resources))
    end_with_parent(parent)


def affordable_workers(resources: Resources) -> int:
    """As many as cores, memory and accelerators allow, and never less than one."""
    limits = [
        joblib.cpu_count() / resources.cpus,
        available_memory() / (resources.memory_gb * 2**30),
    ]
    if resources.gpus:
        import torch

        if not (count := torch.cuda.device_count()):
            raise UsageError(
                "The grid asks for accelerators (resources.gpus), and this machine has none."
            )
        limits.append(count / resources.gpus)
    return max(1, int(min(limits)))


def available_memory() -> int:
    """Bytes that may be taken without swapping, within the limit of a container."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.is_file():
        # Memory of caches can be taken too.
        lines = dict(
            line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines()
        )
        free = int(lines["MemAvailable"].split()[0]) * 1024
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else "max"
    return min(free, int(text)) if text.isdigit() else free


def visible_accelerators(slot: int, resources: Resources) -> dict[str, str]:
    """Workers share the accelerators in order; without a share they see none."""
    if not resources.gpus:
        return {"CUDA_VISIBLE_DEVICES": ""}
    first, count = int(slot * resources.gpus), max(1, int(resources.gpus))
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(first + index) for index in range(count))}


class RayPool:
    """Tasks on a cluster; a context manager, which closes the connection."""

    def __init__(
        self,
        grid: Grid,
        results: Results,
        *,
        address: str | None = None,
        workers: int | None = None,
    ) -> None:
        resources = grid.resources
        self._ray = connect_ray(
            address or "local", math.ceil(workers * resources.cpus) if workers else None
        )
        self._work = (self._ray.put(grid), Results(results.folder.resolve()))
        self._run = self._ray.remote(execute).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            memory=int(resources.memory_gb * 2**30),
            max_retries=MAX_RETRIES,
            runtime_env={"env_vars": ONE_THREAD},
        )
        available = self._ray.cluster_resources()
        self.workers = max(1, int(available.get("CPU", 0.0) / resources.cpus))

    def submit(self, key: Key) -> Future[Outcome]:
        """Execute a key on a node."""
        future: Future[Outcome] = self._run.remote(*self._work, key).future()
        return future

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()
