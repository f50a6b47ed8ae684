"""The figures of a results folder as one long table, and its means and intervals.

`read_figures` has a line per figure: cohort, host, label (arm or variant), seed, fold (-1: the
whole run), source (`task` or a diagnostic), the labels of the finding's row (`by_mode`, `by_rule`,
...), metric and value. A value that was measured and is not defined is NaN.
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
    """The task metrics of one run: mean ± standard deviation over its folds and the interval."""
    rows = [
        {"fold": fold, "by_mode": row.labels["mode"], "metric": metric, "value": value}
        for fold, row in _read_rows(run, TASK)
        for metric, value in row.values.items()
        if metric != "task_metric"
    ]
    if not rows:
        raise RunError(f"{run} has no finished fold. Train it with 'gcemil train'.")
    frame = pd.DataFrame(rows)
    known, n_folds = list(frame.metric.unique()), frame.fold.nunique()
    if unknown := [name for name in metrics if name not in known]:
        raise UsageError(f"{run} has no metric '{unknown[0]}'. Choose one of: {', '.join(known)}.")
    frame["value"] = frame.value.astype(float)
    frame["prediction"] = [f"{mode}: {MODE_WORDS[mode]}" for mode in frame.by_mode]
    note = "One fold: no deviation and no interval."
    if n_folds > 1:
        note = (
            f"Mean ± standard deviation over folds; in brackets Student's {INTERVAL:.0%} interval "
            "of the mean. Folds share training bags, so the interval is rather too narrow; that of "
            "few folds can reach beyond 0 and 1."
        )
    title = f"{run.name}, test bags of {n_folds} fold{'s' * (n_folds != 1)}"
    names = list(metrics) or known
    return _pivot("folds", title, frame, ["prediction"], names, spread=True, notes=(note,))


def summary_tables(
    figures: pd.DataFrame, sources: Sequence[str] = (), metrics: Sequence[str] = ()
) -> list[Table]:
    """One table per source: cohort, host, arm and row labels against means of the metrics.

    Args:
        figures: Figures of `read_figures`.
        sources: The sources to show; all where none is named.
        metrics: The metrics to show; all where none is named.

    Returns:
        The tables in the order of the sources. A cell has the mean, its 95 % interval and the
        number of values.

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
    tables = []
    for source in shown:
        rows = chosen[chosen.source == source]
        by = [name for name in rows if name.startswith("by_") and rows[name].notna().any()]
        rows = rows.fillna(dict.fromkeys(by, "")).rename(columns={"label": "arm"})
        index = ["cohort", "host", "arm", *by]
        title = f"means over folds and seeds, {INTERVAL:.0%} interval in brackets"
        tables.append(_pivot(source, title, rows, index, list(rows.metric.unique())))
    return tables


def _pivot(
    name: str,
    title: str,
    rows: pd.DataFrame,
    index: list[str],
    metrics: Sequence[str],
    *,
    spread: bool = False,
    notes: tuple[str, ...] = (),
) -> Table:
    """Means and intervals of the metrics, a line for every combination of the index."""
    groups = rows.groupby([*index, "metric"], sort=False).value
    wide = groups.agg(["mean", "std", "count"]).unstack("metric", sort=False)
    lines = []
    for labels, values in wide.iterrows():
        names = labels if isinstance(labels, tuple) else (labels,)
        cells = (_summary_cell(one, values.xs(one, level=1), spread=spread) for one in metrics)
        lines.append(Line(tuple(map(str, names)), "ours", tuple(cells)))
    columns = (Column(one, METRICS[one].label if one in METRICS else one, one) for one in metrics)
    labels = tuple(one.removeprefix("by_") for one in index)
    label = f"tab:{name}"
    return Table(name, title, label, labels, tuple(columns), tuple(lines), notes=notes)


def _summary_cell(metric: str, summary: pd.Series, *, spread: bool) -> Cell:
    """The mean, with its deviation on request, and Student's interval of two values or more."""
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
