"""All figures of a results folder, flat, in two files.

summary.json   metrics and diagnostics of every finished fold, and their means over folds and seeds
timing.json    what took how long, and the figures of diagnostics that measure cost

No time, path or machine is in summary.json: equal grids give equal bytes, whatever ran them and
however often it was interrupted. It covers every grid that was run into the folder.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gcemil.benchmark.grid import Grid, RunKey, fold_diagnostics, plan_runs, plan_work
from gcemil.benchmark.results import (
    Record,
    Results,
    claim,
    read_cohort_record,
    read_failure,
    read_log,
)
from gcemil.benchmark.runner import is_finished
from gcemil.files import without_nan, write_json
from gcemil.findings import mean_and_deviation, read_finding
from gcemil.metrics import METRICS
from gcemil.runs.folder import RunFold

Rows = list[Record]
GROUP = ("cohort", "dataset", "encoder", "host", "arm", "variant")
"""What a mean is of: everything but seed and fold."""
SEARCH = "search"
"""The variant that stands for the best trial of every fold."""
SEARCHED = ("cohort", "host", "arm", "seed", "fold")
"""What a choice of a sweep is made for."""
COSTS = {name for name, metric in METRICS.items() if metric.criterion == "cost"}


def write_summary(results: Results) -> Record:
    """Both files, from what is on disk now."""
    with claim(results.lock("summary"), wait=True):
        summary, timing = summarise(results)
        write_json(results.summary, summary)
        write_json(results.timing, timing)
    return summary


def summarise(results: Results) -> tuple[Record, Record]:
    """summary.json and timing.json as values."""
    grids = results.grids()
    labels = {key: _label_run(grid, key) for grid in grids for key in plan_runs(grid)}
    runs = []
    for key, label in labels.items():
        if RunFold(results.path(key)).is_finished:
            metrics = RunFold(results.path(key)).read_metrics()
            details = metrics.details.model_dump(exclude_unset=True)
            runs.append({**label, "metrics": metrics.modes, "details": details})
    chosen = _choose_trials(grids, runs)
    diagnoses = dict.fromkeys(
        (key, name)
        for grid in grids
        for key in plan_runs(grid)
        for name in fold_diagnostics(grid, key)
    )
    rows = [
        {**labels[key], "diagnostic": name, **vars(row)}
        for key, name in diagnoses
        if (path := results.finding(key, name)).is_file()
        for row in read_finding(path).rows
    ]
    lasting = [_pick_figures(row, costs=False) for row in rows]
    costs = [row for row in (_pick_figures(row, costs=True) for row in rows) if row["values"]]
    unfinished = {
        str(key.path): read_failure(results, key)
        for grid in grids
        for key in plan_work(grid)
        if not is_finished(grid, results, key)
    }
    columns = (*SEARCHED, "chosen", "settings", "validation", "run")
    summary = {
        "grids": [grid.name for grid in grids],
        "cohorts": _cohort_cards(results, grids),
        "runs": runs,
        "diagnostics": lasting,
        "means": _mean_metrics([*runs, *chosen]),
        "search": [{name: row[name] for name in columns} for row in chosen],
        "diagnostic_means": _mean_rows(lasting),
        "unfinished": [{"key": key, "failure": why} for key, why in unfinished.items()],
    }
    timing = {
        "executions": [
            {name: record[name] for name in ("key", "seconds", "whole")}
            for record in read_log(results)
            if record["event"] == "end"
        ],
        "diagnostics": costs,
        "diagnostic_means": _mean_rows(costs),
    }
    return without_nan(summary), without_nan(timing)


def _choose_trials(grids: Sequence[Grid], runs: Rows) -> Rows:
    """The trial of every sweep that is best on the validation part, as a variant named search.

    A fold's own validation part decides: over folds, the validation parts are other folds' test
    parts. A fold whose trials are not all trained has no choice yet.
    """
    chosen = []
    for grid in grids:
        tried = [
            row
            for row in runs
            if row["variant"] in grid.trials
            and row["cohort"] in grid.cohorts
            and row["host"] in grid.hosts
            and row["details"].get("validation") is not None
        ]
        for _, rows in _group_rows(tried, SEARCHED):
            if len(rows) == len(grid.trials):
                # Ties go to the first of the grid.
                best = max(rows, key=lambda row: row["details"]["validation"])
                trial = {
                    "variant": SEARCH,
                    "chosen": best["variant"],
                    "settings": grid.trials[best["variant"]],
                    "validation": best["details"]["validation"],
                }
                chosen.append({**best, **trial})
    return chosen


def _label_run(grid: Grid, key: RunKey) -> Record:
    """What the rows of a fold are labelled by."""
    cohort = grid.cohorts[key.cohort]
    return {
        "cohort": key.cohort,
        "dataset": cohort.dataset or cohort.profile or key.cohort,
        "encoder": cohort.encoder,
        "host": key.host,
        "arm": key.arm,
        "variant": key.variant,
        "seed": key.seed,
        "fold": key.fold,
        "run": str(key.run_path),
    }


def _pick_figures(row: Record, *, costs: bool) -> Record:
    """The row with its figures that measure cost, or with the others."""
    figures = {
        part: {name: value for name, value in row[part].items() if (name in COSTS) == costs}
        for part in ("values", "deviations")
    }
    return {**row, **figures}


def _mean_metrics(runs: Rows) -> Rows:
    """Mean and deviation of every metric over the folds and seeds of an arm or variant."""
    means = []
    for group, rows in _group_rows(runs, GROUP):
        metrics = {
            mode: _spread([row["metrics"].get(mode, {}) for row in rows], figures)
            for mode, figures in rows[0]["metrics"].items()
        }
        means.append({**group, "runs": len(rows), "metrics": metrics})
    return means


def _mean_rows(rows: Rows) -> Rows:
    """The same for the rows of diagnostics, joined by their labels."""
    means = []
    for group, members in _group_rows(rows, (*GROUP, "diagnostic", "labels")):
        values = [row["values"] for row in members]
        names = dict.fromkeys(name for figures in values for name in figures)
        means.append({**group, "runs": len(members), "values": _spread(values, names)})
    return means


def _group_rows(rows: Rows, names: Sequence[str]) -> list[tuple[Record, Rows]]:
    groups: dict[str, Rows] = defaultdict(list)
    for row in rows:
        groups[json.dumps([row[name] for name in names], sort_keys=True)].append(row)
    return [({name: members[0][name] for name in names}, members) for members in groups.values()]


def _spread(figures: Sequence[Mapping[str, float | None]], names: Iterable[str]) -> Record:
    """Mean and deviation of every figure; None where no fold has it, `n` folds have it."""
    spread = {}
    for name in names:
        known = [value for one in figures if (value := one.get(name)) is not None]
        mean, deviation = mean_and_deviation(known)
        spread[name] = {"mean": mean, "std": deviation, "n": len(known)}
    return spread


def _cohort_cards(results: Results, grids: Sequence[Grid]) -> Record:
    """What each prepared cohort is; folders are left out, they differ between machines."""
    cards: Record = {}
    for name, cohort in {k: one for grid in grids for k, one in grid.cohorts.items()}.items():
        if (record := read_cohort_record(results, name)) is not None:
            card = {key: value for key, value in record.items() if key != "settings"}
            card["dataset"] = cohort.dataset or cohort.profile or name
            card["simulated"] = cohort.folder is None
            cards[name] = card | ({"encoder": cohort.encoder} if cohort.encoder else {})
    return cards
