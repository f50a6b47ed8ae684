"""A table as a value, and the same table as Markdown, LaTeX or CSV.

Cell      one figure as it is printed, with the numbers behind it
Column    a heading and a metric; the metric's direction gives the arrow and says which figure is best
Line      row labels and cells; lines of one comparison and origin compete for bold
Table     columns and lines, where the figures come from, and the command that adds what is missing
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from gcemil.errors import UsageError
from gcemil.metrics import METRICS, Direction

Origin = Literal["paper", "ours"]


@dataclass(frozen=True)
class Cell:
    """One figure: its text, and the numbers behind it where it is a number."""

    text: str
    value: float | None = None
    deviation: float | None = None
    n: int = 0
    """Values behind the mean; 0 where that is not known."""
    state: Literal["there", "missing", "undefined"] = "there"

    @property
    def mean_text(self) -> str:
        """What is printed before the deviation."""
        return self.text.partition("±")[0]


MISSING = Cell("missing", state="missing")
"""The result could exist and does not: something has not been run."""
UNDEFINED = Cell("-", state="undefined")
"""There is no such figure: a plain host has no gates, a whole bag no complement."""


@dataclass(frozen=True)
class Column:
    """A column: what it is called here, and the metric that says which way is better."""

    key: str
    header: str
    metric: str | None = None
    group: str = ""
    """A heading that neighbouring columns share."""
    better: Direction | None = None
    """In place of the metric's direction: a signed change can point the other way."""

    @property
    def direction(self) -> Direction:
        if self.better is not None:
            return self.better
        return METRICS[self.metric].direction if self.metric in METRICS else "neither"

    @property
    def arrow(self) -> str:
        return {"higher": "↑", "lower": "↓", "neither": ""}[self.direction]


@dataclass(frozen=True)
class Line:
    """One line of cells; lines of one comparison and origin compete for bold."""

    row_labels: tuple[str, ...]
    origin: Origin
    cells: tuple[Cell, ...]
    comparison: str | None = None
    """None stays out: differences, and controls that know the truth or nothing."""


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    label: str
    row_labels: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    legend: dict[Origin, str] = field(default_factory=dict)
    """Where the figures of each origin were measured."""
    notes: tuple[str, ...] = ()
    remedy: str = ""
    """The command that adds what is missing."""

    @property
    def n_missing(self) -> int:
        return sum(cell.state == "missing" for line in self.lines for cell in line.cells)


def best_cells(table: Table) -> set[tuple[int, int]]:
    """(line, column) of every best figure among at least two that compete; figures printed alike are best together."""
    comparisons: dict[tuple[str, str], list[int]] = {}
    for number, line in enumerate(table.lines):
        if line.comparison is not None:
            comparisons.setdefault((line.origin, line.comparison), []).append(number)
    return {
        (number, position)
        for rivals in comparisons.values()
        for position, column in enumerate(table.columns)
        for number in best_lines({number: table.lines[number].cells[position] for number in rivals}, column)
    }


def best_lines(cells: Mapping[int, Cell], column: Column) -> list[int]:
    values = {number: cell.value for number, cell in cells.items() if cell.value is not None}
    if column.direction == "neither" or len(values) < 2:
        return []
    best = (max if column.direction == "higher" else min)(values, key=lambda number: values[number])
    return [number for number in values if cells[number].mean_text == cells[best].mean_text]


CSV_COLUMNS = (
    "table", "row", "figures", "column", "metric", "better", "text", "value", "deviation", "n", "state",
)  # fmt: skip
LATEX_SYMBOLS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$", "Δ": r"$\Delta$",
    "≥": r"$\geq$", "≤": r"$\leq$", "\N{EN DASH}": "--", "·": r"$\cdot$", "→": r"$\to$", "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$",
}  # fmt: skip


def render_tables(tables: Sequence[Table], form: str) -> str:
    """All tables in one text."""
    if form not in FORMATS:
        raise UsageError(f"Unknown format '{form}'. Choose one of: {', '.join(FORMATS)}.")
    return FORMATS[form](tables)


def as_markdown(tables: Sequence[Table]) -> str:
    return "\n".join(markdown_table(table) for table in tables)


def markdown_table(table: Table) -> str:
    bold = best_cells(table)
    header = [
        *table.row_labels,
        *(" ".join(filter(None, (c.group, c.header, c.arrow))) for c in table.columns),
    ]
    out = [f"## {table.name}: {table.title}", "", markdown_row(header), markdown_row(["---"] * len(header))]
    for number, line in enumerate(table.lines):
        cells = [
            f"**{cell.text}**" if (number, position) in bold else cell.text
            for position, cell in enumerate(line.cells)
        ]
        out.append(markdown_row([*line.row_labels, *cells]))
    return "\n".join([*out, "", *(f"- {text}" for text in remarks(table)), ""])


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def remarks(table: Table) -> list[str]:
    """Where the figures come from, what to mind, and what is missing."""
    found = [f"{origin}: {text}." for origin, text in table.legend.items()]
    found += table.notes
    if table.n_missing:
        found.append(f"{table.n_missing} cells are missing. Add them with: {table.remedy}")
    return found


def as_latex(tables: Sequence[Table]) -> str:
    return "\n".join(latex_table(table) for table in tables)


def latex_table(table: Table) -> str:
    """A booktabs table; the remarks stand in its caption."""
    bold = best_cells(table)
    caption = " ".join(
        [f"{table.title}.", *(text if text.endswith(".") else f"{text}." for text in remarks(table))]
    )
    out = [
        r"\begin{table}[htbp]", r"\centering", rf"\caption{{{escape_latex(caption)}}}", rf"\label{{{table.label}}}",
        rf"\begin{{tabular}}{{{'l' * len(table.row_labels)}{'c' * len(table.columns)}}}", r"\toprule",
        *latex_groups(table),
        latex_row([*table.row_labels, *(f"{column.header}{column.arrow}" for column in table.columns)]),
        r"\midrule",
    ]  # fmt: skip
    for number, line in enumerate(table.lines):
        cells = [latex_cell(cell, (number, position) in bold) for position, cell in enumerate(line.cells)]
        out.append(" & ".join([*map(escape_latex, line.row_labels), *cells]) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def latex_groups(table: Table) -> list[str]:
    """A line of shared headings, where there are any."""
    if not any(column.group for column in table.columns):
        return []
    spans = [
        rf"\multicolumn{{{len(list(found))}}}{{c}}{{{escape_latex(group)}}}"
        for group, found in groupby(table.columns, key=lambda column: column.group)
    ]
    return [" & ".join([*([""] * len(table.row_labels)), *spans]) + r" \\"]


def latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def latex_cell(cell: Cell, is_best: bool) -> str:
    return rf"\textbf{{{escape_latex(cell.text)}}}" if is_best else escape_latex(cell.text)


def escape_latex(text: str) -> str:
    return "".join(LATEX_SYMBOLS.get(character, character) for character in text)


def as_csv(tables: Sequence[Table]) -> str:
    """One line per cell, so that tables of any shape share one file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                writer.writerow(csv_row(table, line.row_labels, column, cell))
    return file.getvalue()


def csv_row(table: Table, row_labels: Sequence[str], column: Column, cell: Cell) -> list[object]:
    *row, figures = row_labels
    numbers = ["" if value is None else repr(value) for value in (cell.value, cell.deviation)]
    return [
        table.name, " / ".join(row), figures, column.key, column.metric or "", column.direction, cell.text,
        *numbers, cell.n or "", cell.state,
    ]  # fmt: skip


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}
