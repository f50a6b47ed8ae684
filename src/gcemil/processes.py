"""Parallel jobs: in worker processes of this machine, or as tasks on a Ray cluster.

Worker processes end with the process that started them. On a cluster all nodes see the files under
the same paths; Ray starts the tasks of a worker or a node that dies again elsewhere.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from multiprocessing import current_process
from pathlib import Path
from typing import Any, TypeVar

import joblib
from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from gcemil.errors import MissingExtraError, UsageError, WorkerError

Job = TypeVar("Job")
Result = TypeVar("Result")

POLL_S = 0.5
SHUTDOWN_TIMEOUT_S = 10.0
"""How long the workers of a killed process may take to end."""
MAX_RETRIES = 5
"""How many deaths of its worker or node a job on a cluster survives."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Numerical libraries read these when they are loaded; workers use one core each."""


def run_jobs(
    work: Callable[[Job], Result],
    jobs: Sequence[Job],
    workers: int,
    *,
    on_poll: Callable[[], None] | None = None,
    prepare: Callable[[int], None] | None = None,
    cluster: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    memory: int | None = None,
) -> Iterator[tuple[Job, Result]]:
    """Yield every job with its result as it ends; an exception stops the other jobs.

    `prepare` is called with the number of each local worker before its first job. `cluster` is the
    address of a Ray cluster, or "local" for one on this machine; each job then takes `cpus`,
    `memory`, and `gpus` where the cluster has any. Without workers, and in a script without a
    `__main__` guard, which would start again in every worker, jobs are done in this process.
    """
    if cluster is not None:
        needs = {"num_cpus": cpus, "num_gpus": gpus, "memory": memory}
        yield from _run_on_cluster(work, jobs, workers, cluster, needs, on_poll)
        return
    if workers < 1 or not _can_start_workers():
        for job in jobs:
            yield job, work(job)
            if on_poll:
                on_poll()
        return
    executor = ProcessPoolExecutor(
        min(workers, len(jobs)),
        initializer=_begin_worker,
        initargs=(os.getpid(), workers, prepare),
        env=ONE_THREAD,
    )
    running: dict[Future[Result], Job] = {executor.submit(work, job): job for job in jobs}
    try:
        while running:
            done, _ = wait(running, POLL_S, FIRST_COMPLETED)
            if on_poll:
                on_poll()
            for future in done:
                yield running.pop(future), future.result()
    except TerminatedWorkerError as error:
        raise WorkerError(
            "A worker process died, perhaps because the memory was full. What is finished is kept: "
            "run the same command again, with fewer --jobs if memory is short."
        ) from error
    finally:
        executor.shutdown(kill_workers=True)


def _run_on_cluster(
    work: Callable[[Job], Result],
    jobs: Sequence[Job],
    workers: int,
    address: str,
    needs: dict[str, Any],
    on_poll: Callable[[], None] | None,
) -> Iterator[tuple[Job, Result]]:
    ray = connect_ray(address, math.ceil(workers * needs["num_cpus"]))
    try:
        if not ray.cluster_resources().get("GPU"):
            needs = {**needs, "num_gpus": 0}
        task = ray.remote(_do_job).options(
            **needs, max_retries=MAX_RETRIES, runtime_env={"env_vars": ONE_THREAD}
        )
        given = ray.put(work)
        running = {task.remote(given, job): job for job in jobs}
        while running:
            done, _ = ray.wait(list(running), timeout=POLL_S)
            if on_poll:
                on_poll()
            for future in done:
                yield running.pop(future), ray.get(future)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"The Ray cluster lost a job {MAX_RETRIES + 1} times, perhaps for want of memory "
            f"({type(error).__name__}). What is finished is kept: run the same command again."
        ) from error
    finally:
        ray.shutdown()


def _do_job(work: Callable[[Job], Result], job: Job) -> Result:
    """A job as Ray's task, which must be a function."""
    return work(job)


def connect_ray(address: str, cores: int | None) -> Any:
    """Ray, connected to the cluster at this address, or to a new one of so many cores ("local")."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error
    options = (
        {"include_dashboard": False, "num_cpus": cores or joblib.cpu_count()}
        if address == "local"
        else {}
    )
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"There is no Ray cluster to use at '{address}' ({error}). "
            "Give the address that 'ray start --head' printed, and the token of its cluster."
        ) from error
    return ray


def _can_start_workers() -> bool:
    """Whether workers may import the running script: it has a guard, or there is none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not str(path).endswith(".py"):
        # The console script has a guard; a notebook or an interactive session has no file.
        return True
    try:
        return "__name__" in Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


def _begin_worker(parent: int, workers: int, prepare: Callable[[int], None] | None) -> None:
    """Prepare a worker, and end it soon after its parent ends, also when that is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        os._exit(1)

    if prepare is not None:
        # LokyProcess-2, or LokyProcess-1:2 where the parent is itself a worker.
        prepare((int(re.split("[-:]", current_process().name)[-1]) - 1) % workers)
    threading.Thread(target=watch, daemon=True).start()
