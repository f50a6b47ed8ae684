"""The pattern most tables follow: the paper's line, and under it ours, asked of the results cell by cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperTable, deviation_of, value_of
from gcemil.benchmark.tables.layout import UNDEFINED, Cell, Column, Line, Origin, Table
from gcemil.benchmark.tables.query import Query, Unit, cell, differences, is_undefined, values

Answer = dict[Unit, float] | None
PAPER_LEGEND = "the GCE-MIL paper, real cohorts"
PAPER_MARK = "paper (real cohorts)"


@dataclass(frozen=True)
class RowAsk:
    """One row: its key in the paper, what it is called, and what is asked of the results."""

    key: str
    stub: tuple[str, ...]
    query: Query
    baseline: Query | None = None
    """Given, the row is the paired difference from it."""
    contest: str | None = "all"
    undefined: frozenset[str] = frozenset()
    """Columns that cannot exist for this row."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Columns for which this row has another metric than the others."""


@dataclass(frozen=True)
class ColumnAsk:
    """One column: how it narrows the row's question, and how its figures are written."""

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
        return self.column.key if self.paper is None else self.paper


def compared(
    name: str,
    title: str,
    measured: Measured,
    paper: PaperTable,
    *,
    stub: Sequence[str],
    rows: Sequence[RowAsk],
    columns: Sequence[ColumnAsk],
    notes: Sequence[str] = (),
) -> Table:
    """Both lines of every row."""
    lines, used = [], set()
    for row in rows:
        answers = [answered(measured, row, ask) for ask in columns]
        used |= {unit.cohort for found in answers for unit in found or ()}
        lines += [line for line in (paper_line(paper, row, columns),) if line is not None]
        lines.append(our_line(measured, row, columns, answers))
    return Table(
        name=name,
        title=title,
        label=paper.label,
        stub=(*stub, "figures"),
        columns=tuple(ask.column for ask in columns),
        lines=tuple(lines),
        legend=legend(measured, used),
        notes=(*notes, *(f"In the paper: {note}" for note in paper.notes)),
    )


def legend(measured: Measured, used: Collection[str] | None = None) -> dict[Origin, str]:
    """What each origin means; of ours the cohorts that gave a figure, or all."""
    shown = [cohort for cohort in measured.cohorts if used is None or cohort.name in used]
    ours = "; ".join(cohort.description for cohort in shown) or "nothing of this was measured"
    return {"paper": PAPER_LEGEND, "ours": ours}


def our_mark(measured: Measured) -> str:
    """How a line of ours is marked; the legend has the names."""
    kinds = {cohort.is_simulated for cohort in measured.cohorts if cohort.record is not None}
    words = [word for kind, word in ((True, "simulated"), (False, "real")) if kind in kinds]
    return f"ours ({' and '.join(words) or 'unknown'} cohorts)"


def paper_line(paper: PaperTable, row: RowAsk, columns: Sequence[ColumnAsk]) -> Line | None:
    """As printed; None where the paper has no such row."""
    if paper.row(row.key) is None:
        return None
    cells = tuple(paper_cell(paper.cell(row.key, ask.paper_key)) for ask in columns)
    contest = None if row.baseline is not None else row.contest
    return Line((*row.stub, PAPER_MARK), "paper", cells, contest)


def paper_cell(printed: str | None) -> Cell:
    if printed is None:
        return UNDEFINED
    return Cell(printed, value_of(printed), deviation_of(printed))


def our_line(
    measured: Measured, row: RowAsk, columns: Sequence[ColumnAsk], answers: Sequence[Answer]
) -> Line:
    cells = tuple(our_cell(row, ask, found) for ask, found in zip(columns, answers, strict=True))
    contest = None if row.baseline is not None else row.contest
    return Line((*row.stub, our_mark(measured)), "ours", cells, contest)


def answered(measured: Measured, row: RowAsk, ask: ColumnAsk) -> Answer:
    """What the results say; None where no answer can exist."""
    if ask.column.key in row.undefined:
        return None
    query = narrowed(row, row.query, ask)
    found = values(measured, query)
    if row.baseline is None:
        return None if not found and is_undefined(measured, query) else found
    return differences(found, values(measured, narrowed(row, row.baseline, ask)))


def our_cell(row: RowAsk, ask: ColumnAsk, found: Answer) -> Cell:
    if found is None:
        return UNDEFINED
    signed = ask.signed or row.baseline is not None
    return cell(found, decimals=ask.decimals, scale=ask.scale, unit=ask.unit, signed=signed)


def narrowed(row: RowAsk, query: Query, ask: ColumnAsk) -> Query:
    """The row's question about this column; where both name a label, the row's stands."""
    asked = query.narrowed(**ask.changes).narrowed(labels=query.labels)
    instead = row.instead.get(ask.column.key)
    return asked if instead is None else asked.narrowed(metric=instead)
