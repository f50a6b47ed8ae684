"""The figures of a results folder as one long table, and its summary: means and intervals by cohort, host and arm.

`read_figures` has a line per figure: cohort, host, label (arm or variant), seed, fold (-1: the whole run), source (`task` or
a diagnostic), the labels of the finding's row (`by_mode`, `by_rule`, ...), metric and value. A value that was measured and
is not defined is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scipy.special import stdtrit

from gcemil.errors import RunError, UsageError
from gcemil.findings import Row, read_finding
from gcemil.metrics import METRICS, TASKS
from gcemil.records import MODE_WORDS
from gcemil.runs.folder import Run
from gcemil.tables import MISSING, UNDEFINED, Cell, Column, Line, Table, format_metric

TASK = "task"
WHOLE_RUN = -1
RUN = ["cohort", "host", "label", "seed"]
FoldRow = tuple[int, Row]
INTERVAL = 0.95


@dataclass(frozen=True)
class MeasuredRun:
    """A run folder of the results."""

    cohort: str
    host: str
    label: str
    """The arm, or the name of the variant."""
    seed: int
    folder: Path
    host_is_unchanged: bool
    """Whether its host is trained as if there were no wrapper."""


def list_runs(folder: Path) -> list[MeasuredRun]:
    """The runs of a results folder, by cohort, host, label and seed."""
    configs = sorted((folder / "runs").glob("*/*/*/seed_*/config.yaml"))
    if not configs and not folder.exists():
        raise RunError(f"{folder} does not exist. Give the results folder of 'gcemil benchmark'.")
    if not configs:
        raise RunError(
            f"{folder} holds no run. Make some with 'gcemil benchmark GRID.yaml --out {folder}'."
        )
    runs = []
    for path in configs:
        run = path.parent
        cohort, _, label, seed = run.relative_to(folder / "runs").parts
        settings = Run(run).card.settings
        number = int(seed.removeprefix("seed_"))
        runs.append(
            MeasuredRun(cohort, settings.host.name, label, number, run, settings.host_is_unchanged)
        )
    return runs


def read_figures(folder: Path) -> pd.DataFrame:
    """All figures of a results folder."""
    return pd.DataFrame(
        [
            {
                **{name: getattr(run, name) for name in RUN},
                "fold": fold,
                "source": source,
                **{f"by_{name}": value for name, value in row.labels.items()},
                "metric": metric,
                "value": float("nan") if value is None else value,
            }
            for run in list_runs(folder)
            for source in _list_sources(run.folder)
            for fold, row in _read_rows(run.folder, source)
            for metric, value in row.values.items()
        ]
    )


def _list_sources(run: Path) -> list[str]:
    """The task, and every diagnostic that the run or a fold of it has."""
    paths = [*run.glob("fold_*/diagnostics/*.json"), *run.glob("diagnostics/*.json")]
    return [TASK, *sorted({path.stem for path in paths})]


def _read_rows(run: Path, source: str) -> Iterator[FoldRow]:
    """The rows of every fold; those of the whole run where no fold has any."""
    if source == TASK:
        for fold in Run(run).finished_folds():
            for mode, values in fold.read_metrics().modes.items():
                main = next((task.lead for task in TASKS.values() if task.lead in values), "")
                yield fold.number, Row({"mode": mode}, {**values, "task_metric": values.get(main)})
        return
    folds = Run(run).folds_with(f"diagnostics/{source}.json")
    for fold in folds:
        yield from ((fold.number, row) for row in read_finding(fold.finding(source)).rows)
    if not folds:
        yield from ((WHOLE_RUN, row) for row in read_finding(Run(run).finding(source)).rows)


def fold_table(run: Path, metrics: Sequence[str] = ()) -> Table:
    """The task metrics of one run: mean ± standard deviation over its folds and the interval, a line per mode."""
    found = [(fold, row) for fold, row in _read_rows(run, TASK)]
    if not found:
        raise RunError(f"{run} has no finished fold. Train it with 'gcemil train'.")
    known = [name for name in found[0][1].values if name != "task_metric"]
    if unknown := [name for name in metrics if name not in known]:
        raise UsageError(f"{run} has no metric '{unknown[0]}'. Choose one of: {', '.join(known)}.")
    names, n_folds = list(metrics) or known, len({fold for fold, _ in found})
    frame = pd.DataFrame([{"mode": row.labels["mode"], **row.values} for _, row in found])
    lines = []
    for mode, rows in frame.groupby("mode", sort=False):
        summaries = (rows[name].astype(float).agg(["mean", "std", "count"]) for name in names)
        cells = tuple(
            _summary_cell(name, one, spread=True)
            for name, one in zip(names, summaries, strict=True)
        )
        lines.append(Line((f"{mode}: {MODE_WORDS[str(mode)]}",), "ours", cells))
    return Table(
        "folds",
        f"{run.name}, test bags of {n_folds} fold{'s' * (n_folds != 1)}",
        "tab:folds",
        ("prediction",),
        tuple(
            Column(name, METRICS[name].label if name in METRICS else name, name) for name in names
        ),
        tuple(lines),
        notes=(
            f"Mean ± standard deviation over folds; in brackets Student's {INTERVAL:.0%} interval of the mean. "
            "Folds share training bags, so the interval is rather too narrow; that of few folds can reach beyond 0 and 1.",
        )
        if n_folds > 1
        else ("One fold: no deviation and no interval.",),
    )


def summary_tables(
    figures: pd.DataFrame, sources: Sequence[str] = (), metrics: Sequence[str] = ()
) -> list[Table]:
    """One table per source: cohort, host, arm and row labels against metrics, as means over folds and seeds.

    Args:
        figures: Figures of `read_figures`.
        sources: The sources to show; all where none is named.
        metrics: The metrics to show; all where none is named.

    Returns:
        The tables in the order of the sources. A cell has the mean, its 95 % interval and the number of values.

    Raises:
        UsageError: A source or metric is not among the figures.
    """
    for column, names in (("source", sources), ("metric", metrics)):
        known = list(figures[column].unique())
        if unknown := [name for name in names if name not in known]:
            raise UsageError(
                f"The results have no {column} '{unknown[0]}'. Choose one of: {', '.join(known)}."
            )
    chosen = figures[figures.metric.isin(metrics)] if metrics else figures
    shown = sources or chosen.source.unique()
    return [_summary_table(source, chosen[chosen.source == source]) for source in shown]


def _summary_table(source: str, rows: pd.DataFrame) -> Table:
    """Means and intervals of one source."""
    by = [name for name in rows if name.startswith("by_") and rows[name].notna().any()]
    index = ["cohort", "host", "label", *by]
    groups = rows.fillna(dict.fromkeys(by, "")).groupby([*index, "metric"], sort=False).value
    wide = groups.agg(["mean", "std", "count"]).unstack("metric", sort=False)
    names = list(rows.metric.unique())
    return Table(
        source,
        f"means over folds and seeds, {INTERVAL:.0%} interval in brackets",
        f"tab:{source}",
        ("cohort", "host", "arm", *(name.removeprefix("by_") for name in by)),
        tuple(
            Column(name, METRICS[name].label if name in METRICS else name, name) for name in names
        ),
        tuple(
            Line(
                tuple(map(str, labels)),
                "ours",
                tuple(_summary_cell(name, values.xs(name, level=1)) for name in names),
            )
            for labels, values in wide.iterrows()
        ),
    )


def _summary_cell(metric: str, summary: pd.Series, *, spread: bool = False) -> Cell:
    """The mean, with its deviation on request, and Student's interval where there are two values or more."""
    mean, deviation, n = summary["mean"], summary["std"], summary["count"]
    if pd.isna(n):
        return MISSING
    if n == 0:
        return UNDEFINED
    text = format_metric(metric, mean)
    if n == 1:
        return Cell(text, float(mean), n=1)
    half = stdtrit(n - 1, (1 + INTERVAL) / 2) * deviation / n**0.5
    ends = ", ".join(format_metric(metric, end) for end in (mean - half, mean + half))
    if spread:
        text += f" ± {format_metric(metric, deviation)}"
    return Cell(f"{text} [{ends}]", float(mean), float(deviation), int(n))
