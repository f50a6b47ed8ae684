"""The pattern most tables follow: the paper's line, and under it ours, read from the results cell by cell.

A `Query` names one figure: which runs, which rows of which source, which metric. `find_values` gives its values by the
`Unit` they were measured on, `estimate` their mean, `cell` the printed figure. An example, the gain of GCE on BRACS:

  soft = find_values(measured, Query("macro_f1", labels={"mode": "soft"}, dataset="bracs"))
  host = find_values(measured, Query("macro_f1", labels={"mode": "full"}, dataset="bracs", label="host"))
  cell(subtract_paired(soft, host), signed=True)

A table is rows times columns of such queries: `TableRow` says what the row is about, `TableColumn` how the column narrows
the row's query, and `build_comparison` puts the paper's printed line above ours. What the paper prints is `PaperFigures`.

Where several folds or seeds of one cohort and host have a value, the figure is their mean, plus or minus their standard
deviation. Where several cohorts or hosts have one, each counts once: the mean of their means, plus or minus the deviation
between these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

from gcemil.benchmark.results import MeasuredResults, Run
from gcemil.errors import UsageError
from gcemil.files import checked, read_yaml
from gcemil.findings import Labels, Row
from gcemil.resources import HERE as RESOURCES
from gcemil.tables import MISSING, UNDEFINED, Cell, Column, Line, Origin, Table

ANY_ENCODER = "*"
WantedLabels = Mapping[str, str | tuple[str, ...]]


class Unit(NamedTuple):
    """What a value was measured on; values of two arms are paired by it."""

    cohort: str
    host: str
    seed: int
    fold: int | None


@dataclass(frozen=True)
class Query:
    """None asks for any; `labels` gives for each label the value wanted, or several that mean the same."""

    metric: str = "task_metric"
    source: str = "task"
    labels: WantedLabels = field(default_factory=dict)
    label: str | tuple[str, ...] | None = "gce"
    """The arm or ablation; several names mean the same."""
    dataset: str | None = None
    task: str | None = None
    host: str | None = None
    encoder: str | None = None
    """None asks about the main encoder of each dataset."""

    def where(self, **changes: Any) -> Query:
        """The same question about less; labels are added to those there."""
        labels = {**self.labels, **changes.pop("labels", {})}
        return replace(self, labels=labels, **changes)


def find_values(measured: MeasuredResults, query: Query) -> dict[Unit, float]:
    """Every value that answers, by what it was measured on."""
    found = {unit: _first_value(rows, query.metric) for unit, rows in _matching_rows(measured, query)}
    return {unit: value for unit, value in found.items() if value is not None}


def _is_undefined(measured: MeasuredResults, query: Query) -> bool:
    """Whether the figure was asked for and does not exist, which is not the same as never measured."""
    return any(query.metric in row.values for _, rows in _matching_rows(measured, query) for row in rows)


Answer = list[tuple[Unit, list[Row]]]


def _matching_rows(measured: MeasuredResults, query: Query) -> Answer:
    """The rows that fit, run by run and fold by fold. Columns of a table differ in their metric alone: rows are found once."""
    asked = (query.source, query.label, query.dataset, query.task, query.host, query.encoder)
    key = (*asked, *sorted(query.labels.items()))
    if key not in measured.answers:
        measured.answers[key] = list(_search_rows(measured, query))
    return measured.answers[key]


def _search_rows(measured: MeasuredResults, query: Query) -> Iterator[tuple[Unit, list[Row]]]:
    wanted = {name: _accepted(options) for name, options in query.labels.items()}
    for run in measured.runs:
        if not _is_about(run, query, measured):
            continue
        folds: dict[int | None, list[Row]] = {}
        for fold, row in run.rows(query.source):
            if _has_labels(row.labels, wanted):
                folds.setdefault(fold, []).append(row)
        for fold, rows in folds.items():
            yield Unit(run.cohort.name, run.host, run.seed, fold), rows


def _is_about(run: Run, query: Query, measured: MeasuredResults) -> bool:
    """Whether the question is about this run."""
    cohort = run.cohort
    if not (
        _is_same_label(run.label, query.label)
        and _is_same_label(run.host, query.host)
        and _is_same_label(cohort.dataset, query.dataset)
        and _is_same_label(cohort.task, query.task)
    ):
        return False
    encoder = query.encoder or measured.main_encoders[cohort.dataset]
    return encoder in (ANY_ENCODER, cohort.encoder)


def _has_labels(labels: Labels, wanted: Mapping[str, frozenset[str | float]]) -> bool:
    """Whether a row is the one asked for: each label wanted is there with one of its values, written in any case."""
    return all(key in labels and normalise(labels[key]) in accepted for key, accepted in wanted.items())


def _is_same_label(own: str | None, wanted: str | tuple[str, ...] | None) -> bool:
    return wanted is None or (own is not None and normalise(own) in _accepted(wanted))


@cache
def _accepted(options: str | tuple[str, ...]) -> frozenset[str | float]:
    return frozenset(map(normalise, (options,) if isinstance(options, str) else options))


@cache
def normalise(text: str) -> str | float:
    """0.05 and 0.050 are the same budget; Top-k and top_k the same rule."""
    try:
        return float(text)
    except ValueError:
        return text.lower().replace("-", "_").replace(" ", "_")


def _first_value(rows: Sequence[Row], metric: str) -> float | None:
    """Of several rows that fit, the one with the fewest labels speaks for all."""
    there = [row for row in rows if row.values.get(metric) is not None]
    return min(there, key=lambda row: len(row.labels)).values[metric] if there else None


def subtract_paired(ours: Mapping[Unit, float], baseline: Mapping[Unit, float]) -> dict[Unit, float]:
    """Paired: same cohort, host, seed and fold."""
    return {unit: value - baseline[unit] for unit, value in ours.items() if unit in baseline}


@dataclass(frozen=True)
class _Estimate:
    mean: float
    deviation: float | None
    """None for a single value."""
    n: int


def estimate(found: Mapping[Unit, float]) -> _Estimate | None:
    """Mean and deviation by the rule of this module."""
    if not found:
        return None
    groups: dict[tuple[str, str], list[float]] = {}
    for unit, value in found.items():
        groups.setdefault((unit.cohort, unit.host), []).append(value)
    pool = list(found.values()) if len(groups) == 1 else [fmean(group) for group in groups.values()]
    return _Estimate(fmean(pool), stdev(pool) if len(pool) > 1 else None, len(found))


def cell(
    found: Mapping[Unit, float],
    *,
    decimals: int = 3,
    signed: bool = False,
    scale: float = 1.0,
    unit: str = "",
) -> Cell:
    """The figure as it is printed."""
    summary = estimate(found)
    if summary is None:
        return MISSING
    mean = summary.mean * scale
    deviation = None if summary.deviation is None else summary.deviation * abs(scale)
    # Minus zero would be printed as a loss.
    rounded = round(mean, decimals) + 0.0
    text = f"{rounded:{'+' if signed else ''}.{decimals}f}{unit}"
    if deviation is not None:
        text += f"±{deviation:.{decimals}f}"
    return Cell(text, mean, deviation, summary.n)


Values = dict[Unit, float] | None
PAPER_LEGEND = "the GCE-MIL paper, real cohorts"
PAPER_MARK = "paper (real cohorts)"
NOT_RUN = "no run of the results has them"
"""Why most cells that are missing are missing."""


@dataclass(frozen=True)
class TableRow:
    """One row: its key in the paper, what it is called, and what is asked of the results."""

    key: str
    row_labels: tuple[str, ...]
    query: Query
    baseline: Query | None = None
    """Given, the row is the paired difference from it."""
    comparison: str | None = "all"
    undefined: frozenset[str] = frozenset()
    """Columns that cannot exist for this row."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Columns for which this row has another metric than the others."""


@dataclass(frozen=True)
class TableColumn:
    """One column: its metric, how it narrows the row's question further, and how its figures are written."""

    column: Column
    changes: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None
    """The paper's key for it; the column's own by default, empty for a column of ours alone."""
    decimals: int = 3
    scale: float = 1.0
    unit: str = ""
    signed: bool = False

    @property
    def paper_key(self) -> str:
        """The column of the paper."""
        return self.column.key if self.paper is None else self.paper


def diagnose_remedy(name: str) -> str:
    """The command that adds a diagnostic."""
    return f"gcemil diagnose RUN --against HOST_RUN --only {name}"


def benchmark_remedy(grid: str) -> str:
    """The command that adds the runs of a grid."""
    return f"gcemil benchmark grids/{grid}.yaml --out RESULTS"


def build_comparison(
    name: str,
    title: str,
    measured: MeasuredResults,
    paper: PaperTable,
    *,
    row_labels: Sequence[str],
    rows: Sequence[TableRow],
    columns: Sequence[TableColumn],
    remedy: str,
    reason: str = NOT_RUN,
    notes: Sequence[str] = (),
) -> Table:
    """Both lines of every row; rows and columns that the paper does not have are shown where they have a figure."""
    asked = [(row, [_read_values(measured, row, ask) for ask in columns]) for row in rows]
    asked = [(row, answers) for row, answers in asked if paper.row(row.key) or any(answers)]
    shown = [
        position
        for position, ask in enumerate(columns)
        if ask.paper_key in paper.columns or any(answers[position] for _, answers in asked)
    ]
    columns = [columns[position] for position in shown]
    lines, used = [], set()
    for row, found in asked:
        answers = [found[position] for position in shown]
        used |= {unit.cohort for values in answers for unit in values or ()}
        comparison = None if row.baseline is not None else row.comparison
        if paper.row(row.key):
            labels = (*row.row_labels, PAPER_MARK)
            lines.append(paper_line(paper, row.key, labels, (ask.paper_key for ask in columns), comparison))
        cells = tuple(_our_cell(row, ask, values) for ask, values in zip(columns, answers, strict=True))
        lines.append(Line((*row.row_labels, our_origin(measured)), "ours", cells, comparison))
    return make_table(
        name, title, paper, row_labels, [ask.column for ask in columns], lines,
        legend=legend(measured, used), notes=notes, remedy=remedy, reason=reason,
    )  # fmt: skip


def make_table(
    name: str,
    title: str,
    paper: PaperTable,
    row_labels: Sequence[str],
    columns: Sequence[Column],
    lines: Sequence[Line],
    *,
    legend: dict[Origin, str],
    notes: Sequence[str] = (),
    remedy: str = "",
    reason: str = NOT_RUN,
) -> Table:
    """A table of the paper with our lines in it; the last label of a line says whose its figures are."""
    notes = (*notes, *(f"In the paper: {note}" for note in paper.notes))
    labels = (*row_labels, "figures")
    return Table(
        name, title, paper.label, labels, tuple(columns), tuple(lines), legend, notes, remedy, reason
    )


def legend(measured: MeasuredResults, used: Collection[str] | None = None) -> dict[Origin, str]:
    """What each origin means; of ours the cohorts that gave a figure, or all."""
    shown = [cohort for cohort in measured.cohorts if used is None or cohort.name in used]
    ours = "; ".join(cohort.description for cohort in shown) or "nothing of this was measured"
    return {"paper": PAPER_LEGEND, "ours": ours}


def our_origin(measured: MeasuredResults) -> str:
    """How a line of ours is marked; the legend has the names."""
    kinds = {cohort.is_simulated for cohort in measured.cohorts if cohort.record is not None}
    words = [word for kind, word in ((True, "simulated"), (False, "real")) if kind in kinds]
    return f"ours ({' and '.join(words) or 'unknown'} cohorts)"


def paper_line(
    paper: PaperTable,
    row: str,
    labels: tuple[str, ...],
    columns: Iterable[str],
    comparison: str | None = None,
) -> Line:
    """A row of the paper as printed, under these of its columns."""
    return Line(labels, "paper", tuple(paper_cell(paper.cell(row, one)) for one in columns), comparison)


def paper_cell(printed: str | None) -> Cell:
    """A figure as the paper prints it."""
    if printed is None:
        return UNDEFINED
    return Cell(printed, value_of(printed), deviation_of(printed))


def _read_values(measured: MeasuredResults, row: TableRow, ask: TableColumn) -> Values:
    """What the results say; None where no answer can exist."""
    if ask.column.key in row.undefined:
        return None
    query = _narrow_query(row, row.query, ask)
    found = find_values(measured, query)
    if row.baseline is None:
        return None if not found and _is_undefined(measured, query) else found
    return subtract_paired(found, find_values(measured, _narrow_query(row, row.baseline, ask)))


def _our_cell(row: TableRow, ask: TableColumn, found: Values) -> Cell:
    if found is None:
        return UNDEFINED
    signed = ask.signed or row.baseline is not None
    return cell(found, decimals=ask.decimals, scale=ask.scale, unit=ask.unit, signed=signed)


def _narrow_query(row: TableRow, query: Query, ask: TableColumn) -> Query:
    """The row's question about this column; where both name a label, the row's stands."""
    asked = query.where(metric=ask.column.metric, **ask.changes).where(labels=query.labels)
    instead = row.instead.get(ask.column.key)
    return asked if instead is None else asked.where(metric=instead)


# The paper's figures

TIMES = "\N{MULTIPLICATION SIGN}"


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperRow(_Closed):
    """One line of a table: our key for it, its name as printed, its cells as printed (None: a dash)."""

    key: str
    name: str
    cells: tuple[str | None, ...]


class PaperTable(_Closed):
    """One table of the paper; `columns` are our keys, `printed` their headers in the paper."""

    label: str
    about: str
    notes: tuple[str, ...] = ()
    printed: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    @model_validator(mode="after")
    def _is_a_rectangle(self) -> PaperTable:
        if len(self.printed) != len(self.columns):
            raise ValueError(f"{self.label}: {len(self.printed)} headers for {len(self.columns)} columns")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"{self.label}, row {row.key}: {len(row.cells)} cells for {len(self.columns)} columns"
                )
        if len({row.key for row in self.rows}) < len(self.rows):
            raise ValueError(f"{self.label}: a row key stands twice")
        return self

    def row(self, key: str) -> PaperRow | None:
        return next((row for row in self.rows if row.key == key), None)

    def cell(self, row: str, column: str) -> str | None:
        """As printed; None where the paper has a dash, or no such row or column."""
        found = self.row(row)
        return (
            None if found is None or column not in self.columns else found.cells[self.columns.index(column)]
        )

    def number(self, row: str, column: str) -> float | None:
        """The value of a cell without its deviation."""
        text = self.cell(row, column)
        return None if text is None else value_of(text)


class Claim(_Closed):
    """One headline figure of the abstract, as printed."""

    key: str
    name: str
    value: str
    where: str


class PaperFigures(_Closed):
    source: str
    measured_on: str
    claims: tuple[Claim, ...]
    tables: dict[str, PaperTable]

    def table(self, name: str) -> PaperTable:
        if name not in self.tables:
            raise UsageError(f"The paper has no table '{name}'. Choose one of: {', '.join(self.tables)}.")
        return self.tables[name]


@cache
def paper_figures() -> PaperFigures:
    """The figures that ship with the package."""
    return read_figures(RESOURCES / "paper" / "figures.yaml")


def read_figures(path: Path) -> PaperFigures:
    """The figures in this file, which is part of the package."""
    return checked(read_yaml(path), PaperFigures, path, remedy="Install gcemil again.")


def value_of(printed: str) -> float | None:
    """The number before the plus-minus sign or the multiplication sign; None for text."""
    return _number(printed.partition("±")[0])


def deviation_of(printed: str) -> float | None:
    return _number(printed.partition("±")[2])


def _number(text: str) -> float | None:
    try:
        return float(text.removesuffix(TIMES))
    except ValueError:
        return None
