"""A table as a value, and its Markdown, LaTeX and CSV (HTML: report/html.py).

Cell      one figure as it is printed, with the numbers behind it
Column    a heading and a metric, whose direction gives the arrow and the best figure
Line      row labels and cells; lines of one comparison and origin compete for bold
Table     columns and lines, where the figures come from, and the command that adds what is missing

format_metric and metric_cell alone decide how a figure is written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from gcemil.errors import UsageError
from gcemil.metrics import ARROWS, METRICS, Direction

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
    interval: tuple[float, float] | None = None

    @property
    def mean_text(self) -> str:
        """What is printed before the deviation."""
        return self.text.partition("±")[0]


MISSING = Cell("missing", state="missing")
"""The result could exist and does not: something has not been run."""
UNDEFINED = Cell("-", state="undefined")
"""The figure does not exist: a plain host has no gates, a whole bag no complement."""
NOT_MEASURED = Cell("\N{EM DASH}", state="undefined")
"""A finding without this figure."""
PERCENT_METRICS = (
    "evidence_fraction",
    "patch_ratio",
    "marked_share",
    "certified_fraction",
    "guarded_fraction",
)
COUNT_METRICS = ("subset_patches", "repaired_patches", "calibration_bags", "judged_patches")


@dataclass(frozen=True)
class Column:
    """A column: its name here, and the metric with its direction."""

    key: str
    header: str
    metric: str | None = None
    group: str = ""
    """A heading that neighbouring columns share."""
    better: Direction | None = None
    """In place of the metric's direction: a signed change can point the other way."""

    @property
    def direction(self) -> Direction:
        """Which way is better."""
        if self.better is not None:
            return self.better
        return METRICS[self.metric].direction if self.metric in METRICS else "neither"

    @property
    def arrow(self) -> str:
        """The direction as a sign behind the heading."""
        return ARROWS[self.direction]


@dataclass(frozen=True)
class Line:
    """One line of cells; lines of one comparison and origin compete for bold."""

    row_labels: tuple[str, ...]
    origin: Origin
    cells: tuple[Cell, ...]
    comparison: str | None = None
    """None has no comparison: differences, and controls."""
    role: Literal["", "own", "control"] = ""
    """Subject of the table, or its comparison; a page marks both."""


@dataclass(frozen=True)
class Table:
    """Columns and lines with everything a reader needs beside them."""

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
    reason: str = ""
    """Why it may be missing."""

    @property
    def n_missing(self) -> int:
        """Cells whose result could exist and does not."""
        return sum(cell.state == "missing" for line in self.lines for cell in line.cells)


def metric_cell(
    metric: str,
    value: float | None,
    deviation: float | None = None,
    *,
    interval: tuple[float, float] | None = None,
) -> Cell:
    """A figure with its interval and its deviation, unless that is 0 or None."""
    if value is None:
        return NOT_MEASURED
    text = format_metric(metric, value)
    if deviation:
        text += f"±{format_metric(metric, deviation)}"
    if interval is not None:
        text += f" [{', '.join(format_metric(metric, end) for end in interval)}]"
    return Cell(text, value, deviation, interval=interval)


def format_metric(metric: str, value: float) -> str:
    """Shares in percent, p-values with two digits, others with three decimals; no signed zero."""
    if metric.endswith("_share") or metric in PERCENT_METRICS:
        text = f"{100 * value:.1f} %"
    elif metric.startswith("p_"):
        text = f"{value:.2g}"
    elif metric.endswith("_time") or metric == "runtime_ratio":
        text = f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
    elif metric in COUNT_METRICS:
        text = f"{value:.1f}"
    else:
        text = f"{value:.3f}"
    return text.removeprefix("-") if text.startswith("-") and not text.strip("-0. %") else text


def format_spread(mean: float | None, deviation: float | None, n: int | None = None) -> str:
    """A mean and its deviation for the terminal; "-" without a mean, no deviation of one value."""
    if mean is None:
        return UNDEFINED.text
    return f"{mean:.3f}" if deviation is None or n == 1 else f"{mean:.3f} ± {deviation:.3f}"


def best_cells(table: Table) -> set[tuple[int, int]]:
    """(line, column) of every best figure of those that compete, with those printed alike."""
    comparisons: dict[tuple[str, str], list[int]] = {}
    for number, line in enumerate(table.lines):
        if line.comparison is not None:
            comparisons.setdefault((line.origin, line.comparison), []).append(number)
    best: set[tuple[int, int]] = set()
    for position, column in enumerate(table.columns):
        if column.direction == "neither":
            continue
        for rivals in comparisons.values():
            cells = {number: table.lines[number].cells[position] for number in rivals}
            values = {
                number: cell.value for number, cell in cells.items() if cell.value is not None
            }
            if len(values) > 1:
                first = (max if column.direction == "higher" else min)(
                    values, key=values.__getitem__
                )
                text = cells[first].mean_text
                best |= {(number, position) for number in values if cells[number].mean_text == text}
    return best


CSV_COLUMNS = (
    "table", "row", "figures", "column", "metric", "better", "text", "value", "deviation", "n",
    "state", "low", "high",
)  # fmt: skip
LATEX_SYMBOLS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$", "Δ": r"$\Delta$",
    "≥": r"$\geq$", "≤": r"$\leq$", "\N{EN DASH}": "--", "·": r"$\cdot$", "→": r"$\to$",
    "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$",
}  # fmt: skip


def render_tables(tables: Sequence[Table], form: str) -> str:
    """All tables in one text."""
    if form not in FORMATS:
        raise UsageError(f"Unknown format '{form}'. Choose one of: {', '.join(FORMATS)}.")
    return FORMATS[form](tables)


def _render_markdown_table(table: Table) -> str:
    headings = (" ".join(filter(None, (c.group, c.header, c.arrow))) for c in table.columns)
    rows = [
        [*table.row_labels, *headings],
        ["---"] * (len(table.row_labels) + len(table.columns)),
        *_mark_best(table, lambda text: text, "**{}**"),
    ]
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    remarks = [f"- {text}" for text in collect_remarks(table)]
    return "\n".join([f"## {table.name}: {table.title}", "", *lines, "", *remarks, ""])


def _mark_best(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Labels and cells of every line as text, the best figures in bold."""
    best = best_cells(table)
    return [
        [
            *map(escape, line.row_labels),
            *(
                bold.format(escape(cell.text)) if (number, position) in best else escape(cell.text)
                for position, cell in enumerate(line.cells)
            ),
        ]
        for number, line in enumerate(table.lines)
    ]


def collect_remarks(table: Table) -> list[str]:
    """Where the figures come from, what to mind, and what is missing."""
    notes = [f"{origin}: {text}." for origin, text in table.legend.items()]
    notes += table.notes
    if table.n_missing:
        why = f": {table.reason}" if table.reason else ""
        notes.append(f"{table.n_missing} cells are missing{why}. Add them with: {table.remedy}")
    return notes


def _render_latex_table(table: Table) -> str:
    """A booktabs table with the remarks in its caption and shared headings in their own line."""
    caption = " ".join(
        [
            f"{table.title}.",
            *(text if text.endswith(".") else f"{text}." for text in collect_remarks(table)),
        ]
    )
    rows = []
    if any(column.group for column in table.columns):
        groups = groupby(table.columns, key=lambda column: column.group)
        spans = [
            rf"\multicolumn{{{len(list(own))}}}{{c}}{{{_escape_latex(group)}}}"
            for group, own in groups
        ]
        rows.append([*([""] * len(table.row_labels)), *spans])
    headings = (f"{column.header}{column.arrow}" for column in table.columns)
    rows.append(list(map(_escape_latex, (*table.row_labels, *headings))))
    header, body = (
        [" & ".join(row) + r" \\" for row in part]
        for part in (rows, _mark_best(table, _escape_latex, r"\textbf{{{}}}"))
    )
    columns = f"{'l' * len(table.row_labels)}{'c' * len(table.columns)}"
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{_escape_latex(caption)}}}",
        rf"\label{{{table.label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *header,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _escape_latex(text: str) -> str:
    return "".join(LATEX_SYMBOLS.get(character, character) for character in text)


def _render_csv(tables: Sequence[Table]) -> str:
    """One line per cell, so that tables of any shape share one file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for line in table.lines:
            row, figures = list(line.row_labels), str(line.origin)
            if table.row_labels[-1] == "figures":
                *row, figures = line.row_labels
            for column, cell in zip(table.columns, line.cells, strict=True):
                numbers = [
                    "" if value is None else repr(value) for value in (cell.value, cell.deviation)
                ]
                place = [table.name, " / ".join(row), figures, column.key, column.metric or ""]
                shown = [column.direction, cell.text, *numbers, cell.n or "", cell.state]
                writer.writerow([*place, *shown, *(cell.interval or ("", ""))])
    return file.getvalue()


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": lambda tables: "\n".join(map(_render_markdown_table, tables)),
    "latex": lambda tables: "\n".join(map(_render_latex_table, tables)),
    "csv": _render_csv,
}
