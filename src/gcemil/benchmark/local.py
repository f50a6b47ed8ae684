"""The local engine: as many worker processes as cores, memory and accelerators carry, each with one run at a time.

A worker that dies takes its run with it and nothing else: the run is on record as failed, a new worker takes the place.
Workers end with the process that started them, so that a killed grid leaves nobody behind.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import TracebackType

from gcemil.benchmark.grid import Grid, Resources
from gcemil.benchmark.plan import Key
from gcemil.benchmark.results import Results
from gcemil.benchmark.runner import Outcome, execute, record_failure
from gcemil.errors import UsageError
from gcemil.processes import Ended, WorkerPool

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Numerical libraries read these when they are loaded; several workers with several threads each would only wait."""


class LocalPool:
    """Worker processes on this machine; a context manager, because they are to be ended."""

    def __init__(self, grid: Grid, results: Results, *, workers: int | None = None) -> None:
        self.workers = workers or affordable_workers(grid.resources)
        self._results = results
        self._pool: WorkerPool[Key, Outcome] = WorkerPool(
            partial(execute, grid, results),
            self.workers,
            variables=lambda slot: {**ONE_THREAD, **visible_accelerators(slot, grid.resources)},
        )

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def has_room(self) -> bool:
        return self._pool.has_room()

    def submit(self, key: Key) -> None:
        self._pool.submit(key)

    def ended(self, timeout: float) -> list[tuple[Key, Outcome]]:
        return [(one.job, self._outcome(one)) for one in self._pool.ended(timeout)]

    def _outcome(self, ended: Ended[Key, Outcome]) -> Outcome:
        if ended.answer is not None:
            return ended.answer
        return record_failure(self._results, ended.job, str(ended.error))


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
