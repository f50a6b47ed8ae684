"""Jobs side by side: in worker processes of this machine, or as tasks on a Ray cluster.

Worker processes end with the process that started them. On a cluster all nodes see the files under the same paths; Ray starts
the tasks of a worker or a node that dies again elsewhere.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
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


def run_jobs(
    work: Callable[[Job], Result],
    jobs: Sequence[Job],
    workers: int,
    *,
    on_poll: Callable[[], None] | None = None,
    cluster: str | None = None,
    gpus: float = 0,
) -> Iterator[tuple[Job, Result]]:
    """Yield every job with its result as it ends; the first exception is raised and the other jobs are stopped.

    `cluster` is the address of a Ray cluster, or "local" for one on this machine; each job then takes a core, and `gpus` where
    the cluster has any. A script without a `__main__` guard would start all its work again in every worker, so its jobs are done in its own process.
    """
    if cluster is not None:
        yield from _run_on_cluster(work, jobs, workers, cluster, gpus, on_poll)
        return
    if not _can_start_workers():
        for job in jobs:
            yield job, work(job)
            if on_poll:
                on_poll()
        return
    executor = ProcessPoolExecutor(
        min(workers, len(jobs)), initializer=end_with_parent, initargs=(os.getpid(),)
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
    workers: int | None,
    address: str,
    gpus: float,
    on_poll: Callable[[], None] | None,
) -> Iterator[tuple[Job, Result]]:
    """The same as tasks of Ray, which does a task again whose worker or node has died."""
    ray = connect_ray(address, workers)
    try:
        share = gpus if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(_do_job).options(
            num_cpus=1,
            num_gpus=share,
            max_retries=MAX_RETRIES,
            runtime_env={"env_vars": ONE_THREAD},
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
            f"The Ray cluster lost a job {MAX_RETRIES + 1} times, perhaps for want of memory ({type(error).__name__}). "
            "What is finished is kept: run the same command again."
        ) from error
    finally:
        ray.shutdown()


def _do_job(work: Callable[[Job], Result], job: Job) -> Result:
    """A job as Ray's task, which must be a function."""
    return work(job)


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Numerical libraries read these when they are loaded; several workers with several threads each would only wait."""
MAX_RETRIES = 5
"""How many deaths of its worker or node one job survives."""


def connect_ray(address: str, cores: int | None) -> Any:
    """Ray, connected to the cluster at this address, or to a new one of this machine ("local") with so many cores."""
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
    """Whether workers may import the script that is running: it has a guard, or there is no script."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not str(path).endswith(".py"):
        # The console script has a guard; a notebook or an interactive session has no file.
        return True
    try:
        return "__name__" in Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


def end_with_parent(parent: int) -> None:
    """End this process soon after its parent ends, also when that is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
