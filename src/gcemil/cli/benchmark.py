"""Grids of runs: gcemil benchmark runs and resumes them, gcemil tables prints results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_records, say

if TYPE_CHECKING:
    from gcemil.benchmark.grid import Grid, Key
    from gcemil.benchmark.progress import UnitTimes
    from gcemil.benchmark.results import Results
    from gcemil.benchmark.runner import Outcome
    from gcemil.tables import Table


def benchmark(
    grid_file: Path = typer.Argument(
        metavar="GRID.yaml", help="A grid file; see docs/benchmark.md."
    ),
    out: Path = typer.Option(
        ..., help="The results folder; results that it already holds are kept."
    ),
    engine: options.Engine = "local",
    jobs: int | None = options.jobs("runs", otherwise="as cores and memory allow", old="--workers"),
    address: options.Address = None,
    seed: int | None = options.seed("one training seed, in place of the grid's", None),
    dry_run: bool = options.flag("--dry-run", "Show the plan and an estimate, and run nothing."),
    as_json: options.Json = False,
) -> None:
    """Train and diagnose every fold of a grid; run it again to continue.

    Example: gcemil benchmark grids/smoke.yaml --out results/smoke
    """
    from gcemil.benchmark.engines import (
        affordable_workers,
        check_results,
        enter_grid,
        list_unfinished,
        run_grid,
    )
    from gcemil.benchmark.grid import Grid, plan_work
    from gcemil.benchmark.progress import UnitTimes, show_board
    from gcemil.benchmark.results import Results
    from gcemil.benchmark.runner import check_diagnostics, check_own_hosts
    from gcemil.benchmark.summary import write_summary

    cluster = options.find_cluster(engine, address)
    grid = Grid.load(grid_file)
    if seed is not None:
        grid = grid.model_copy(update={"seeds": (seed,)})
    results = Results(out.resolve())
    check_diagnostics(grid)
    check_own_hosts(grid)
    check_results(grid, results)
    plan, todo = plan_work(grid), list_unfinished(grid, results)
    times = UnitTimes(plan, results)
    if dry_run:
        _print_plan(grid, results, times, todo, jobs, as_json)
        return
    outcomes: dict[Key, Outcome] = {}
    if todo:
        workers = jobs or affordable_workers(grid.resources, cluster)
        with show_board(plan, todo, times, workers) as board:
            outcomes = run_grid(grid, results, workers, cluster=cluster, on_end=board.end)
    else:
        enter_grid(grid, results)
    summary = write_summary(results)
    if as_json:
        print_json(summary)
    else:
        _print_results(grid, results, summary, outcomes)
    if any(outcome.ending == "failed" for outcome in outcomes.values()):
        raise typer.Exit(1)


def _print_plan(
    grid: Grid,
    results: Results,
    times: UnitTimes,
    todo: list[Key],
    workers: int | None,
    as_json: bool,
) -> None:
    """What would run, and how long it would take."""
    from gcemil.benchmark.engines import affordable_workers
    from gcemil.benchmark.grid import RunKey, plan_work
    from gcemil.benchmark.progress import duration

    plan, left = plan_work(grid), set(todo)
    if as_json:
        print_json(
            [
                {"key": str(k.path), "seconds": times.expect(k), "finished": k not in left}
                for k in plan
            ]
        )
        return
    rows = []
    for name, settings in grid.cohorts.items():
        folds = [key for key in plan if isinstance(key, RunKey) and key.cohort == name]
        seconds = times.total([key for key in todo if key.cohort == name])
        rows.append(
            {
                "cohort": name,
                "from": settings.folder or f"simulated '{settings.profile}', {settings.size}",
                "folds": len(folds),
                "to train": sum(key in left for key in folds),
                "one worker": "-" if seconds is None else duration(seconds),
            }
        )
    print_records(f"Grid '{grid.name}' into {results.folder}", rows)
    say(
        f"hosts {', '.join(grid.hosts)} · arms "
        f"{', '.join((*grid.arms, *grid.variants, *grid.trials))} · seeds "
        f"{', '.join(map(str, grid.seeds))} · diagnostics {', '.join(grid.diagnostics) or 'none'}"
    )
    seconds, workers = times.total(todo), workers or affordable_workers(grid.resources)
    expected = (
        "how long they take is known once one of each kind has finished"
        if seconds is None
        else f"about {duration(seconds)} for one worker, {duration(seconds / workers)} for "
        f"{workers}"
    )
    say(f"{len(todo)} of {len(plan)} steps left: {expected}.")


def _print_results(
    grid: Grid, results: Results, summary: dict[str, Any], outcomes: dict[Key, Outcome]
) -> None:
    """The task metric of every arm by cohort and host, then what failed."""
    from gcemil.metrics import TASKS
    from gcemil.tables import format_spread

    def is_of_grid(row: dict[str, Any]) -> bool:
        return row["cohort"] in grid.cohorts and row["host"] in grid.hosts

    rows = []
    for row in filter(is_of_grid, summary["means"]):
        # Test figures of single trials would tempt to choose by them.
        if row["variant"] in grid.trials:
            continue
        mode = next(one for one in ("gce", "soft", "full") if one in row["metrics"])
        name = next(task.lead for task in TASKS.values() if task.lead in row["metrics"][mode])
        value = row["metrics"][mode][name]
        rows.append(
            {
                "cohort": row["cohort"],
                "host": row["host"],
                "arm": row["variant"] or row["arm"],
                "folds": row["runs"],
                "metric": name,
                "mean ± std": format_spread(value["mean"], value["std"], row["runs"]),
            }
        )
    if rows:
        print_records(str(results.summary), rows)
    searched = [
        {
            **{name: row[name] for name in ("cohort", "host", "seed", "fold")},
            "chosen on validation": ", ".join(f"{k}={v}" for k, v in row["settings"].items()),
            "validation": f"{row['validation']:.3f}",
            "run": row["run"],
        }
        for row in filter(is_of_grid, summary["search"] if grid.search else ())
    ]
    if searched:
        print_records("Search", searched)
    for key, outcome in outcomes.items():
        if outcome.ending == "failed":
            say(f"failed: {key.path}: {outcome.reason}")


FOLDS, REVIEW = "folds", "review"
"""The tables about one run: its folds, and the marks of its reviewers."""


Format = Literal["markdown", "latex", "csv"]
"""Names of tables.FORMATS."""


def tables(
    results: Path = typer.Argument(help="A results folder of 'gcemil benchmark', or a run folder."),
    table: list[str] = typer.Option([], help="task or a diagnostic; of a run folds or review."),
    metric: list[str] = typer.Option([], help="A metric; all by default."),
    form: Format = typer.Option("markdown", "--format", help="csv has one line per cell."),
) -> None:
    """Print means and intervals of a grid, or of a run over its folds.

    Example: gcemil tables results/smoke --table task --metric macro_f1 --format latex
    """
    from gcemil.files import is_file
    from gcemil.tables import render_tables

    chosen: list[Table] = []
    is_run = is_file(results / "config.yaml")
    if FOLDS in table or (not table and is_run):
        from gcemil.benchmark.figures import fold_table

        chosen = [fold_table(results, metric)]
    if REVIEW in table or (
        not table and is_run and is_file(results / "diagnostics" / "review.json")
    ):
        from gcemil.diagnostics.agreement import review_tables

        chosen += review_tables(results)
    table = [name for name in table if name not in (FOLDS, REVIEW)]
    if table or not chosen:
        from gcemil.benchmark.figures import read_figures, summary_tables

        chosen = summary_tables(read_figures(results), table, metric) + chosen
    typer.echo(render_tables(chosen, form).rstrip("\n"))
