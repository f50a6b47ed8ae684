"""The order of work of a grid, on worker processes of this machine or on a Ray cluster.

A grid is executed in four stages, each parallel in itself: cohorts, one run of each host, runs that
take over the host of another, folds to diagnose. When a worker dies, the keys that were at work are
executed one at a time, and the one that loses its worker again is recorded as failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import joblib

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
from gcemil.errors import RunError, UsageError, WorkerError
from gcemil.files import write_text
from gcemil.processes import connect_ray, run_jobs
from gcemil.runs.folder import Run
from gcemil.training.run import differences

BUSY_S = 2.0
"""How long to wait before a key is tried again that another process works on."""
RunKeys = Callable[[Sequence[Key]], Iterator[tuple[Key, Outcome]]]


def run_grid(
    grid: Grid,
    results: Results,
    workers: int,
    *,
    cluster: str | None = None,
    on_end: Callable[[Key, Outcome], None] | None = None,
) -> dict[Key, Outcome]:
    """Execute everything of the grid that is not finished; the summary is written in any case.

    `cluster` is the address of a Ray cluster, whose nodes see the results under the same path.
    Without workers the grid is executed in this process.
    """
    enter_grid(grid, results)
    results, needs = Results(results.folder.resolve()), grid.resources
    run_keys: RunKeys = partial(
        run_jobs,
        partial(execute, grid, results),
        workers=workers,
        prepare=partial(show_accelerators, needs),
        cluster=cluster,
        cpus=needs.cpus,
        gpus=needs.gpus,
        memory=int(needs.memory_gb * 2**30),
    )
    todo = list_unfinished(grid, results)
    runs = [key for key in todo if isinstance(key, RunKey)]
    first = {(key.cohort, key.host, key.seed, key.fold): key for key in reversed(runs)}.values()
    stages: list[list[Key]] = [
        [key for key in todo if isinstance(key, CohortKey)],
        [key for key in runs if key in first],
        [key for key in runs if key not in first],
        [key for key in todo if isinstance(key, DiagnosisKey)],
    ]
    outcomes: dict[Key, Outcome] = {}
    try:
        for stage in stages:
            for key, outcome in _execute_keys(results, stage, run_keys):
                outcomes[key] = outcome
                if on_end:
                    on_end(key, outcome)
        return outcomes
    finally:
        results.remove_empty_failures()
        write_summary(results)


def _execute_keys(
    results: Results, keys: Sequence[Key], run_keys: RunKeys
) -> Iterator[tuple[Key, Outcome]]:
    """Each key once, as they end."""
    left = dict.fromkeys(keys)
    while left:
        try:
            for key, outcome in run_keys(list(left)):
                if outcome.ending is not Ending.busy:
                    del left[key]
                    yield key, outcome
        except WorkerError:
            last = {record["key"]: record["event"] for record in read_log(results)}
            begun = [key for key in left if last.get(str(key.path)) == "start"]
            for key in begun or list(left):
                try:
                    ((_, outcome),) = run_keys([key])
                except WorkerError as error:
                    reason = "Its worker process died, perhaps because memory ran out."
                    outcome = record_failure(results, key, reason, detail=str(error))
                if outcome.ending is not Ending.busy:
                    del left[key]
                    yield key, outcome
        else:
            if left:
                time.sleep(BUSY_S)


def enter_grid(grid: Grid, results: Results) -> None:
    """Write the grid into the folder, which must not hold another grid's runs."""
    check_results(grid, results)
    with claim(results.lock("grids"), wait=True):
        write_text(results.folder / "grids" / f"{grid.name}.yaml", grid.to_yaml())


def list_unfinished(grid: Grid, results: Results) -> list[Key]:
    """Work of the grid that is still to be done, in order."""
    return [key for key in plan_work(grid) if not is_finished(grid, results, key)]


def check_results(grid: Grid, results: Results) -> None:
    """Cohorts and runs that exist must be those of the grid, or its tables would mix two."""
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
        run = Run(results.run(key))
        if not run.is_begun:
            continue
        before = run.card.settings.model_dump(mode="json")
        if changed := differences(before, run_settings(grid, key).model_dump(mode="json")):
            raise RunError(
                f"{run.path} was trained with other settings ({'; '.join(changed)}). Give another "
                "--out."
            )


def affordable_workers(resources: Resources, cluster: str | None = None) -> int:
    """As many as cores, memory and accelerators allow, and never less than one."""
    if cluster not in (None, "local"):
        ray = connect_ray(cluster, None)
        cores = ray.cluster_resources().get("CPU", 0.0)
        ray.shutdown()
        return max(1, int(cores / resources.cpus))
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
        lines = (line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
        free = int(dict(lines)["MemAvailable"].split()[0]) * 1024
    text = limit.read_text("ascii").strip() if limit.is_file() else "max"
    return min(free, int(text)) if text.isdigit() else free


def show_accelerators(resources: Resources, slot: int) -> None:
    """Make its accelerators visible to a worker; workers share them in order, or have none."""
    first, count = int(slot * resources.gpus), max(1, int(resources.gpus))
    visible = range(first, first + count) if resources.gpus else ()
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible))
