"""Tables as text: Markdown to read, LaTeX to print, CSV to compute with. Arrows and bold follow from the metrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from itertools import groupby

from gcemil.benchmark.tables.layout import Cell, Column, Table, best_cells
from gcemil.errors import UsageError

CSV_COLUMNS = (
    "table", "row", "figures", "column", "metric", "better", "text", "value", "deviation", "n", "state",
)  # fmt: skip
LATEX_SYMBOLS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$", "Δ": r"$\Delta$",
    "≥": r"$\geq$", "≤": r"$\leq$", "\N{EN DASH}": "--", "·": r"$\cdot$", "→": r"$\to$", "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$",
}  # fmt: skip


def rendered(tables: Sequence[Table], form: str) -> str:
    """All tables in one text."""
    if form not in FORMATS:
        raise UsageError(f"Unknown format '{form}'. Choose one of: {', '.join(FORMATS)}.")
    return FORMATS[form](tables)


def as_markdown(tables: Sequence[Table]) -> str:
    return "\n".join(markdown_table(table) for table in tables)


def markdown_table(table: Table) -> str:
    bold = best_cells(table)
    header = [*table.stub, *(" ".join(filter(None, (c.group, c.header, c.arrow))) for c in table.columns)]
    out = [f"## {table.name}: {table.title}", "", piped(header), piped(["---"] * len(header))]
    for number, line in enumerate(table.lines):
        cells = [
            f"**{cell.text}**" if (number, position) in bold else cell.text
            for position, cell in enumerate(line.cells)
        ]
        out.append(piped([*line.stub, *cells]))
    return "\n".join([*out, "", *(f"- {text}" for text in remarks(table)), ""])


def piped(cells: Sequence[str]) -> str:
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
        r"\begin{table}[htbp]", r"\centering", rf"\caption{{{escaped(caption)}}}", rf"\label{{{table.label}}}",
        rf"\begin{{tabular}}{{{'l' * len(table.stub)}{'c' * len(table.columns)}}}", r"\toprule",
        *latex_groups(table),
        latex_row([*table.stub, *(f"{column.header}{column.arrow}" for column in table.columns)]),
        r"\midrule",
    ]  # fmt: skip
    for number, line in enumerate(table.lines):
        cells = [latex_cell(cell, (number, position) in bold) for position, cell in enumerate(line.cells)]
        out.append(" & ".join([*map(escaped, line.stub), *cells]) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def latex_groups(table: Table) -> list[str]:
    """A line of shared headings, where there are any."""
    if not any(column.group for column in table.columns):
        return []
    spans = [
        rf"\multicolumn{{{len(list(found))}}}{{c}}{{{escaped(group)}}}"
        for group, found in groupby(table.columns, key=lambda column: column.group)
    ]
    return [" & ".join([*([""] * len(table.stub)), *spans]) + r" \\"]


def latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"


def latex_cell(cell: Cell, is_best: bool) -> str:
    return rf"\textbf{{{escaped(cell.text)}}}" if is_best else escaped(cell.text)


def escaped(text: str) -> str:
    return "".join(LATEX_SYMBOLS.get(character, character) for character in text)


def as_csv(tables: Sequence[Table]) -> str:
    """One line per cell, so that tables of any shape share one file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                writer.writerow(csv_row(table, line.stub, column, cell))
    return file.getvalue()


def csv_row(table: Table, stub: Sequence[str], column: Column, cell: Cell) -> list[object]:
    *row, figures = stub
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
