"""The order of work, and the two engines that do it: worker processes on this machine, or tasks on a Ray cluster.

What is ready goes to a free worker, what ended is written down, what is left waits. One loop for every engine; an engine is
a pool: it takes keys, and says which ended and how.

Local: as many worker processes as cores, memory and accelerators carry, each with one run at a time. A worker that dies
takes its run with it and nothing else: the run is on record as failed, a new worker takes the place. Workers end with the
process that started them, so that a killed grid leaves none behind.

Ray: an existing cluster, or a local one started for the purpose. All nodes see the results folder under the same path. A run
is one task with its share of a node; when a node dies, Ray starts its tasks again elsewhere, where they go on from the last
epoch on disk. A node that is cut off rather than dead keeps its claim; its task waits for that instead of running twice.
"""

from __future__ import annotations

import atexit
import importlib
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gcemil.benchmark.grid import Grid, Key, Resources, list_needs, plan_runs, plan_work, run_settings
from gcemil.benchmark.progress import Board
from gcemil.benchmark.results import Results, claim, read_cohort_record
from gcemil.benchmark.runner import Ending, Outcome, execute, is_finished, record_failure
from gcemil.benchmark.summary import write_summary
from gcemil.errors import MissingExtraError, RunError, UsageError, WorkerError
from gcemil.files import remove_leftovers, write_text
from gcemil.processes import Ended, WorkerPool
from gcemil.runs.folder import RunFolder, read_run
from gcemil.training.run import differences

POLL_S = 0.5
BUSY_S = 2.0
"""How long to leave a key alone that another process is at."""


class Pool(Protocol):
    """Workers that execute keys."""

    workers: int

    def has_room(self) -> bool: ...

    def submit(self, key: Key) -> None: ...

    def ended(self, timeout: float) -> Sequence[Ended[Key, Outcome]]:
        """What ended since the last call; waits up to `timeout` seconds for something to end."""
        ...


def run_grid(grid: Grid, results: Results, pool: Pool, watch: Board | None = None) -> dict[Key, Outcome]:
    """Everything of the grid that is not finished; how each key ended. The summary is written in any case."""
    enter_grid(grid, results)
    todo = list_unfinished(grid, results)
    try:
        return dict(_execute_keys(grid, results, todo, pool, watch))
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
        if not RunFolder(run).is_begun:
            continue
        before = read_run(run).settings.model_dump(mode="json")
        if changed := differences(before, run_settings(grid, key).model_dump(mode="json")):
            raise RunError(
                f"{run} was trained with other settings ({'; '.join(changed)}). Give another --out."
            )


def _execute_keys(
    grid: Grid, results: Results, todo: Sequence[Key], pool: Pool, watch: Board | None
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
        for one in pool.ended(POLL_S):
            key, lost = one.job, one.error
            # A run itself never raises: its worker was lost.
            outcome = one.answer or record_failure(
                results, key, str(lost), detail=str(getattr(lost, "__cause__", None) or "")
            )
            at_work.remove(key)
            if watch:
                watch.ended(key, outcome)
            if outcome.ending is Ending.busy:
                waiting[key] = time.monotonic() + BUSY_S
            else:
                yield key, outcome
        if watch:
            watch.tick()


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Numerical libraries read these when they are loaded; several workers with several threads each would only wait."""


class LocalPool(WorkerPool[Key, Outcome]):
    """Worker processes on this machine; a context manager, because they are to be ended."""

    def __init__(self, grid: Grid, results: Results, *, workers: int | None = None) -> None:
        super().__init__(
            partial(execute, grid, results),
            workers or affordable_workers(grid.resources),
            variables=lambda slot: {**ONE_THREAD, **visible_accelerators(slot, grid.resources)},
        )


def affordable_workers(resources: Resources) -> int:
    """What cores, memory and accelerators carry, and never less than one."""
    limits = [usable_cores() / resources.cpus, available_memory() / (resources.memory_gb * 2**30)]
    if resources.gpus:
        limits.append(accelerators() / resources.gpus)
    return max(1, int(min(limits)))


def usable_cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that may be taken without swapping; all memory where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text(encoding="ascii").strip()).isdigit():
        found.append(int(text))
    return min(found)


def accelerators() -> int:
    import torch

    if not (count := torch.cuda.device_count()):
        raise UsageError("The grid asks for accelerators (resources.gpus), and this machine has none.")
    return count


def visible_accelerators(slot: int, resources: Resources) -> dict[str, str]:
    """Workers share the accelerators in order; without a share they see none."""
    if not resources.gpus:
        return {"CUDA_VISIBLE_DEVICES": ""}
    first, count = int(slot * resources.gpus), max(1, int(resources.gpus))
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(first + index) for index in range(count))}


MAX_RETRIES = 5
"""How many node deaths one run survives."""
COUNT_S = 5.0
"""How often the nodes are counted."""


class RayPool:
    """Tasks on a cluster; a context manager, because the connection is to be closed."""

    def __init__(
        self, grid: Grid, results: Results, *, address: str | None = None, workers: int | None = None
    ) -> None:
        self._results = Results(results.folder.resolve())
        self._resources = grid.resources
        if address is None:
            _use_private_token()
        self._ray = _import_ray()
        self._connect(address, workers)
        self._grid = self._ray.put(grid)
        self._run = self._ray.remote(execute).options(
            num_cpus=grid.resources.cpus,
            num_gpus=grid.resources.gpus,
            memory=int(grid.resources.memory_gb * 2**30),
            max_retries=MAX_RETRIES,
            runtime_env={"env_vars": ONE_THREAD},
        )
        self._at_work: dict[Any, Key] = {}
        self._counted = -COUNT_S
        self.workers = 1
        self._count()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._at_work:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()

    def has_room(self) -> bool:
        """One task more than fits, so that a cluster that can grow sees the demand."""
        self._count()
        return len(self._at_work) <= self.workers

    def submit(self, key: Key) -> None:
        self._at_work[self._run.remote(self._grid, self._results, key)] = key

    def ended(self, timeout: float) -> list[Ended[Key, Outcome]]:
        if not self._at_work:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(list(self._at_work), num_returns=1, timeout=timeout)
        return [self._receive_outcome(task, self._at_work.pop(task)) for task in ready]

    def _receive_outcome(self, task: Any, key: Key) -> Ended[Key, Outcome]:
        try:
            return Ended(key, self._ray.get(task), None)
        except self._ray.exceptions.RayError as error:
            lost = WorkerError(f"Ray gave it up: {type(error).__name__}.")
            lost.__cause__ = error
            return Ended(key, None, lost)

    def _connect(self, address: str | None, workers: int | None) -> None:
        cores = usable_cores() if workers is None else math.ceil(workers * self._resources.cpus)
        own = {"include_dashboard": False, "num_cpus": cores} if address is None else {}
        try:
            self._ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"There is no Ray cluster to use at '{address or 'local'}' ({error}). "
                "Give the address that 'ray start --head' printed, and the token of its cluster."
            ) from error

    def _count(self) -> None:
        if time.monotonic() - self._counted < COUNT_S:
            return
        self._counted = time.monotonic()
        there, wanted = self._ray.cluster_resources(), self._resources
        fits = [there.get("CPU", 0.0) / wanted.cpus, there.get("memory", 0.0) / (wanted.memory_gb * 2**30)]
        if wanted.gpus:
            fits.append(there.get("GPU", 0.0) / wanted.gpus)
        self.workers = max(1, int(min(fits)))


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error


@cache
def _use_private_token() -> None:
    """A token for clusters of our own, kept out of the home folder; the user's settings stand where there are any."""
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="gcemil-ray-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32), encoding="ascii")
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
