"""Throughput of the local engine: two workers against one, on the same folds.

  python benchmarks/grid_workers.py [--slides 60] [--epochs 4] [--repeats 3] [--workers 2] [--json]
Fifteen wrapped folds of one simulated cohort, all of the same length, each on one thread. Throughput is the sum over
workers of folds per second between a worker's first end and its last, so that starting Python and loading libraries is
in neither. Runs are interleaved; the figure is the ratio of the medians. It wants as many idle cores as workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from gcemil.benchmark.engines import LocalPool, run_grid, usable_cores
from gcemil.benchmark.grid import CohortKey, Grid, plan_runs
from gcemil.benchmark.results import Results, read_log
from gcemil.benchmark.runner import execute


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slides", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        grid = folds_of_one_cohort(Path(folder), arguments.slides, arguments.epochs)
        speeds: dict[int, list[float]] = {1: [], arguments.workers: []}
        for repeat in range(arguments.repeats):
            for workers, found in speeds.items():
                found.append(folds_per_second(grid, Results(Path(folder) / f"{workers}_{repeat}"), workers))
    medians = {workers: statistics.median(found) for workers, found in speeds.items()}
    result = {
        "cores": usable_cores(),
        "folds": len(plan_runs(grid)),
        "folds_per_second": medians,
        "ratio": medians[arguments.workers] / medians[1],
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"1 worker {medians[1]:.3f} folds/s   {arguments.workers} workers {medians[arguments.workers]:.3f} folds/s   "
            f"ratio {result['ratio']:.2f} on {result['cores']} cores"
        )


def folds_of_one_cohort(folder: Path, slides: int, epochs: int) -> Grid:
    """Five folds from three seeds; the cohort is made before the clock starts."""
    values = {
        "name": "workers",
        "hosts": ["abmil"],
        "arms": ["gce"],
        "seeds": [0, 1, 2],
        "settings": {"epochs": epochs},
    }
    simulated = Grid.model_validate(values | {"cohorts": {"c": {"profile": "bracs", "slides": slides}}})
    results = Results(folder / "cohort")
    execute(simulated, results, CohortKey("c"))
    return Grid.model_validate(values | {"cohorts": {"c": {"folder": results.path(CohortKey("c"))}}})


def folds_per_second(grid: Grid, results: Results, workers: int) -> float:
    with LocalPool(grid, results, workers=workers) as pool:
        run_grid(grid, results, pool)
    ends: dict[int, list[float]] = defaultdict(list)
    for record in read_log(results):
        if record["event"] == "end" and record["key"].startswith("runs/"):
            ends[record["pid"]].append(record["time"])
    return sum((len(times) - 1) / (times[-1] - times[0]) for times in ends.values() if len(times) > 1)


if __name__ == "__main__":
    main()
