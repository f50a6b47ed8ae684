"""Everything a results folder has found, flat, in two files.

summary.json   figures that any machine must find again: metrics and diagnostics of every finished fold, and their
               means over folds and seeds
timing.json    what took how long, and the figures of diagnostics that measure cost

No time, path or machine is in summary.json: equal grids give equal bytes, whatever ran them and however often it was
interrupted. It covers every grid that was run into the folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean, stdev

from gcemil.benchmark.grid import Grid, RunKey, fold_diagnostics, plan_runs, plan_work
from gcemil.benchmark.results import Record, Results, claim, read_cohort_record, read_failure, read_log
from gcemil.benchmark.runner import finding_file, is_finished, is_trained
from gcemil.files import without_nan, write_json
from gcemil.findings import read_finding
from gcemil.metrics import METRICS
from gcemil.runs.folder import RunFold

Rows = list[Record]
GROUP = ("cohort", "dataset", "encoder", "host", "arm", "variant")
"""What a mean is of: everything but seed and fold."""
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
    labels = _run_labels(grids)
    runs = []
    for key, own in labels.items():
        if is_trained(results, key):
            found = RunFold(results.path(key)).read_metrics()
            details = found.details.model_dump(exclude_unset=True)
            runs.append({**own, "metrics": found.modes, "details": details})
    wanted = dict.fromkeys(
        (key, name) for grid in grids for key in plan_runs(grid) for name in fold_diagnostics(grid, key)
    )
    diagnostics = [
        {**labels[key], **row} for key, name in wanted for row in _summary_rows(results, key, name)
    ]
    lasting = [{**row, **_pick_figures(row, cost=False)} for row in diagnostics]
    costs = [row for one in diagnostics if (row := {**one, **_pick_figures(one, cost=True)})["values"]]
    summary = {
        "grids": [grid.name for grid in grids],
        "cohorts": _cohort_cards(results, grids),
        "runs": runs,
        "diagnostics": lasting,
        "means": _mean_metrics(runs),
        "diagnostic_means": _mean_rows(lasting),
        "unfinished": _describe_unfinished(results, grids),
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


def _run_labels(grids: Sequence[Grid]) -> dict[RunKey, Record]:
    """Every fold of every grid once, with what its rows are labelled by."""
    found: dict[RunKey, Record] = {}
    for grid in grids:
        for key in plan_runs(grid):
            cohort = grid.cohorts[key.cohort]
            found[key] = {
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
    return found


def _summary_rows(results: Results, key: RunKey, name: str) -> Rows:
    """The rows of one diagnostic; none when it is not there yet."""
    path = finding_file(results, key, name)
    if not path.is_file():
        return []
    return [
        {"diagnostic": name, "labels": row.labels, "values": row.values, "deviations": row.deviations}
        for row in read_finding(path).rows
    ]


def _pick_figures(row: Record, *, cost: bool) -> Record:
    """The figures of a row that measure cost, or all the others."""

    def chosen(values: Record) -> Record:
        return {name: value for name, value in values.items() if (name in COSTS) is cost}

    return {"values": chosen(row["values"]), "deviations": chosen(row["deviations"])}


def _mean_metrics(runs: Rows) -> Rows:
    """Mean and deviation of every metric over the folds and seeds of an arm or variant."""
    return [
        {
            **group,
            "runs": len(rows),
            "metrics": {
                mode: {
                    name: spread([row["metrics"].get(mode, {}).get(name) for row in rows])
                    for name in rows[0]["metrics"][mode]
                }
                for mode in rows[0]["metrics"]
            },
        }
        for group, rows in _group_rows(runs, GROUP)
    ]


def _mean_rows(rows: Rows) -> Rows:
    """The same for the rows of diagnostics, joined by their labels."""
    means = []
    for group, found in _group_rows(rows, (*GROUP, "diagnostic", "labels")):
        names = dict.fromkeys(name for row in found for name in row["values"])
        values = {name: spread([row["values"].get(name) for row in found]) for name in names}
        means.append({**group, "runs": len(found), "values": values})
    return means


def _group_rows(rows: Rows, names: Sequence[str]) -> list[tuple[Record, Rows]]:
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(json.dumps([row[name] for name in names], sort_keys=True), []).append(row)
    return [({name: found[0][name] for name in names}, found) for found in groups.values()]


def spread(values: Sequence[float | None]) -> Record:
    """None where no fold has the figure; `n` folds have it."""
    found = [value for value in values if value is not None]
    return {
        "mean": fmean(found) if found else None,
        "std": stdev(found) if len(found) > 1 else 0.0 if found else None,
        "n": len(found),
    }


def _cohort_cards(results: Results, grids: Sequence[Grid]) -> Record:
    """What each prepared cohort is; folders are left out, they differ between machines."""
    cards: Record = {}
    for grid in grids:
        for name, cohort in grid.cohorts.items():
            record = read_cohort_record(results, name)
            if record is not None:
                card = {key: value for key, value in record.items() if key != "settings"}
                label = {
                    "dataset": cohort.dataset or cohort.profile or name,
                    "simulated": cohort.folder is None,
                }
                cards[name] = card | label | ({"encoder": cohort.encoder} if cohort.encoder else {})
    return cards


def _describe_unfinished(results: Results, grids: Sequence[Grid]) -> Rows:
    """What is still missing, and why where that is known."""
    missing = {
        str(key.path): read_failure(results, key)
        for grid in grids
        for key in plan_work(grid)
        if not is_finished(grid, results, key)
    }
    return [{"key": path, "failure": reason} for path, reason in missing.items()]
