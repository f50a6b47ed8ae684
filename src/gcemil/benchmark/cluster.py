"""The Ray engine: the same runs on an existing cluster, or on a local one started for the purpose.

All nodes see the results folder under the same path. A run is one task with its share of a node; when a node dies, Ray
starts its tasks again elsewhere, where they go on from the last epoch on disk. A node that is cut off rather than dead
keeps its claim; its task waits for that instead of running twice.
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
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from gcemil.benchmark.grid import Grid
from gcemil.benchmark.local import ONE_THREAD, usable_cores
from gcemil.benchmark.plan import Key
from gcemil.benchmark.results import Results
from gcemil.benchmark.runner import Outcome, execute, record_failure
from gcemil.errors import MissingExtraError, UsageError

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
            use_private_token()
        self._ray = import_ray()
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

    def ended(self, timeout: float) -> list[tuple[Key, Outcome]]:
        if not self._at_work:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(list(self._at_work), num_returns=1, timeout=timeout)
        return [(self._at_work[task], self._outcome(task, self._at_work.pop(task))) for task in ready]

    def _outcome(self, task: Any, key: Key) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            # The run itself never raises: this is a node or worker that was lost too often.
            return record_failure(
                self._results, key, f"Ray gave it up: {type(error).__name__}.", detail=str(error)
            )
        return outcome

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


def import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error


@cache
def use_private_token() -> None:
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
