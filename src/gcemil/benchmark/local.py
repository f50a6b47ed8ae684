"""The local engine: as many worker processes as cores, memory and accelerators carry, each with one run at a time.

A worker that dies takes its run with it and nothing else: the run is on record as failed, a new worker takes the place.
Workers end with the process that started them, so that a killed grid leaves nobody behind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType

from gcemil.benchmark.grid import Grid, Resources
from gcemil.benchmark.plan import Key
from gcemil.benchmark.results import Results
from gcemil.benchmark.runner import Outcome, execute, failed
from gcemil.errors import UsageError

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Numerical libraries read these when they are loaded; several workers with several threads each would only wait."""

SPAWN = multiprocessing.get_context("spawn")


class LocalPool:
    """Worker processes on this machine; a context manager, because they are to be ended."""

    def __init__(self, grid: Grid, results: Results, *, workers: int | None = None) -> None:
        self.workers = workers or affordable_workers(grid.resources)
        self._grid, self._results = grid, results
        self._slots = list(range(self.workers))
        """Places without a worker: one is started when there is work for it."""
        self._free: list[Worker] = []
        self._busy: dict[Connection, tuple[Worker, Key]] = {}

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in [*self._free, *(worker for worker, _ in self._busy.values())]:
            worker.end()

    def has_room(self) -> bool:
        return bool(self._free or self._slots)

    def submit(self, key: Key) -> None:
        worker = self._ready_worker()
        worker.link.send(key)
        self._busy[worker.link] = (worker, key)

    def ended(self, timeout: float) -> list[tuple[Key, Outcome]]:
        links: list[Connection] = [
            link for link in wait(list(self._busy), timeout) if isinstance(link, Connection)
        ]
        return [self._received(link) for link in links]

    def _ready_worker(self) -> Worker:
        """One that waits for work, or a new one; a waiting one may have died meanwhile."""
        while self._free:
            worker = self._free.pop()
            if worker.is_alive():
                return worker
            worker.end()
            self._slots.append(worker.slot)
        return Worker(self._slots.pop(0), self._grid, self._results)

    def _received(self, link: Connection) -> tuple[Key, Outcome]:
        worker, key = self._busy.pop(link)
        try:
            outcome: Outcome = link.recv()
            self._free.append(worker)
        except (EOFError, OSError):
            code = worker.end()
            self._slots.append(worker.slot)
            outcome = failed(self._results, key, f"Its worker process ended {described_exit(code)}.")
        return key, outcome


class Worker:
    """One process, and the line to it."""

    def __init__(self, slot: int, grid: Grid, results: Results) -> None:
        self.slot = slot
        self.link, theirs = SPAWN.Pipe()
        self._process: SpawnProcess = SPAWN.Process(
            target=serve, args=(theirs, grid, results), daemon=True, name=f"gcemil-worker-{slot}"
        )
        with environment({**ONE_THREAD, **visible_accelerators(slot, grid.resources)}):
            self._process.start()
        # With our copy closed, the line breaks when the worker dies.
        theirs.close()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> int | None:
        """Stop the process if it still runs; its exit code."""
        self.link.close()
        self._process.terminate()
        self._process.join()
        return self._process.exitcode


def serve(link: Connection, grid: Grid, results: Results) -> None:
    """The life of a worker: a key in, its outcome back, until the line breaks."""
    # Ctrl-C reaches the whole group; the parent decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    while True:
        try:
            key: Key = link.recv()
        except EOFError:
            return
        link.send(execute(grid, results, key))


def end_with_parent() -> None:
    """A worker whose parent was killed would go on unseen, holding its claim."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


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


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Variables that a process started inside inherits."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def described_exit(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"by signal {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    return f"with exit code {code}"
