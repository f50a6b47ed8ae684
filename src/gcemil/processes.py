"""Jobs in worker processes of this machine, which end with the process that started them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import TypeVar

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from gcemil.errors import WorkerError

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
) -> Iterator[tuple[Job, Result]]:
    """Yield every job with its result as it ends; the first exception is raised and the other jobs are stopped.

    A script without a `__main__` guard would start all its work again in every worker, so its jobs are done in its own process.
    """
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
