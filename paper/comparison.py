"""The pattern of most tables: the paper's line, and below it ours, computed from the measured
figures cell by cell.

A table is rows times columns of queries (measured.py): `TableRow` is what the row is about,
`TableColumn` narrows the query of the row, and `build_comparison` puts the printed line of the
paper above ours. `PaperFigures` is what the paper prints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from gcemil.tables import MISSING, UNDEFINED, Cell, Column, Line, Origin, Table
from paper.measured import Measured, Query, estimate, select_rows, select_values, subtract_paired

FIGURES = Path(__file__).parent / "figures.yaml"


def cell(
    found: pd.Series, *, decimals: int = 3, signed: bool = False, scale: float = 1.0, unit: str = ""
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


Values = pd.Series | None
PAPER_LEGEND = "the GCE-MIL paper, real cohorts"
PAPER_MARK = "paper (real cohorts)"
NOT_RUN = "no run of the results has them"
"""Why most cells that are missing are missing."""


@dataclass(frozen=True)
class TableRow:
    """One row: its key in the paper, its labels, and the query of its figures."""

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
    """One column: its metric, how it narrows the query of the row, and how its figures are written."""

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
    return f"gcemil benchmark paper/grids/{grid}.yaml --out RESULTS"


def build_comparison(
    name: str,
    title: str,
    measured: Measured,
    paper: PaperTable,
    *,
    row_labels: Sequence[str],
    rows: Sequence[TableRow],
    columns: Sequence[TableColumn],
    remedy: str,
    reason: str = NOT_RUN,
    notes: Sequence[str] = (),
) -> Table:
    """Both lines of every row; what the paper does not have is shown where it has a figure."""
    table = [(row, [_read_values(measured, row, one) for one in columns]) for row in rows]
    table = [
        (row, values)
        for row, values in table
        if paper.row(row.key) or any(map(_has_values, values))
    ]
    shown = [
        position
        for position, one in enumerate(columns)
        if one.paper_key in paper.columns
        or any(_has_values(values[position]) for _, values in table)
    ]
    columns = [columns[position] for position in shown]
    lines, used = [], set()
    for row, row_values in table:
        shown_values = [row_values[position] for position in shown]
        used |= {
            name for one in shown_values if one is not None for name in one.index.unique("cohort")
        }
        comparison = None if row.baseline is not None else row.comparison
        if paper.row(row.key):
            labels = (*row.row_labels, PAPER_MARK)
            lines.append(
                paper_line(paper, row.key, labels, (one.paper_key for one in columns), comparison)
            )
        cells = tuple(
            _our_cell(row, one, values) for one, values in zip(columns, shown_values, strict=True)
        )
        lines.append(Line((*row.row_labels, our_origin(measured)), "ours", cells, comparison))
    return make_table(
        name, title, paper, row_labels, [one.column for one in columns], lines,
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
    """A table of the paper with our lines; the last label of a line is its origin."""
    notes = (*notes, *(f"In the paper: {note}" for note in paper.notes))
    labels = (*row_labels, "figures")
    return Table(
        name,
        title,
        paper.label,
        labels,
        tuple(columns),
        tuple(lines),
        legend,
        notes,
        remedy,
        reason,
    )


def legend(measured: Measured, used: Collection[str] | None = None) -> dict[Origin, str]:
    """What each origin means; of ours the cohorts that gave a figure, or all."""
    shown = [cohort for cohort in measured.cohorts if used is None or cohort.name in used]
    ours = "; ".join(cohort.description for cohort in shown) or "nothing of this was measured"
    return {"paper": PAPER_LEGEND, "ours": ours}


def our_origin(measured: Measured) -> str:
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
    return Line(
        labels, "paper", tuple(paper_cell(paper.cell(row, one)) for one in columns), comparison
    )


def paper_cell(printed: str | None) -> Cell:
    """A figure as the paper prints it."""
    if printed is None:
        return UNDEFINED
    return Cell(printed, value_of(printed), deviation_of(printed))


def _read_values(measured: Measured, row: TableRow, column: TableColumn) -> Values:
    """The values of a cell; None where it is not defined."""
    if column.column.key in row.undefined:
        return None
    query = _narrow_query(row, row.query, column)
    found = select_values(measured, query)
    if row.baseline is None:
        # Rows without a value: the figure was measured and is not defined.
        return None if found.empty and len(select_rows(measured, query)) else found
    return subtract_paired(found, select_values(measured, _narrow_query(row, row.baseline, column)))


def _has_values(found: Values) -> bool:
    return found is not None and not found.empty


def _our_cell(row: TableRow, column: TableColumn, found: Values) -> Cell:
    if found is None:
        return UNDEFINED
    signed = column.signed or row.baseline is not None
    return cell(
        found, decimals=column.decimals, scale=column.scale, unit=column.unit, signed=signed
    )


def _narrow_query(row: TableRow, query: Query, column: TableColumn) -> Query:
    """The query of a cell; where row and column name a label, that of the row counts."""
    narrowed = query.where(metric=column.column.metric, **column.changes).where(labels=query.labels)
    instead = row.instead.get(column.column.key)
    return narrowed if instead is None else narrowed.where(metric=instead)


# The paper's figures

TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class PaperRow:
    """One line of a table: our key, its printed name and cells (None: a dash)."""

    key: str
    name: str
    cells: tuple[str | None, ...]


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper; `columns` are our keys, `printed` their headers in the paper."""

    label: str
    about: str
    printed: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()

    def row(self, key: str) -> PaperRow | None:
        return next((row for row in self.rows if row.key == key), None)

    def cell(self, row: str, column: str) -> str | None:
        """As printed; None where the paper has a dash, or no such row or column."""
        found = self.row(row)
        if found is None or column not in self.columns:
            return None
        return found.cells[self.columns.index(column)]

    def number(self, row: str, column: str) -> float | None:
        """The value of a cell without its deviation."""
        text = self.cell(row, column)
        return None if text is None else value_of(text)


@dataclass(frozen=True)
class Claim:
    """One headline figure of the abstract, as printed."""

    key: str
    name: str
    value: str
    where: str


@dataclass(frozen=True)
class PaperFigures:
    """Everything that the paper prints."""

    claims: tuple[Claim, ...]
    tables: dict[str, PaperTable]

    def table(self, name: str) -> PaperTable:
        return self.tables[name]


@cache
def paper_figures() -> PaperFigures:
    """The figures of figures.yaml."""
    values = yaml.load(FIGURES.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    tables = {
        name: PaperTable(**{**table, "rows": tuple(PaperRow(**row) for row in table["rows"])})
        for name, table in values["tables"].items()
    }
    return PaperFigures(tuple(Claim(**claim) for claim in values["claims"]), tables)


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
