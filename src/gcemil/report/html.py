"""Render the pages of the report from the jinja2 templates in report/templates.

  render          one template; all values are escaped unless they are Markup
  render_element  one macro of elements.html; paragraph, fold and picture are the usual ones
  render_table    a table of figures (gcemil.tables); render_rows a plain table of text
  render_page     a whole document; its policy allows its own styles and embedded pictures, and nothing else

There is no script: <details> collapses, and CSS filters.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gcemil.metrics import METRICS
from gcemil.report.style import ATTENTION_COLOR, EVIDENCE_COLOR, INK, LINE, MUTED
from gcemil.tables import Table, best_cells, collect_remarks

EMPTY = Markup("")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
COLORS = f"--ink:{INK};--muted:{MUTED};--line:{LINE};--accent:{EVIDENCE_COLOR};--held:{ATTENTION_COLOR}"


def measure_width(share: float) -> str:
    """The length of a bar in percent, between 0 and 100; 0 for NaN."""
    return f"{100 * min(1.0, share) if share > 0 else 0.0:.1f}"


ENVIRONMENT = Environment(
    loader=PackageLoader("gcemil.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters["width"] = measure_width


@dataclass(frozen=True)
class Section:
    """One part of a page."""

    key: str
    title: str
    body: Markup


@dataclass(frozen=True)
class HtmlCell:
    """One cell of a table; `kind` is its CSS class."""

    text: str
    kind: str = ""
    deviation: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class HtmlTable:
    """What the template of a table reads."""

    columns: Sequence[tuple[str, str, str]]
    """Text, CSS class and meaning."""
    lines: Sequence[tuple[str, Sequence[HtmlCell]]]
    """CSS class and cells."""
    caption: str = ""
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()


def render(template: str, **values: Any) -> Markup:
    """One template of report/templates with these values."""
    return Markup(ENVIRONMENT.get_template(template).render(**values))


def render_element(name: str, *values: Any) -> Markup:
    """One macro of templates/elements.html with these values."""
    return Markup(getattr(ENVIRONMENT.get_template("elements.html").module, name)(*values))


def join_markup(parts: Iterable[str]) -> Markup:
    """All parts in order; plain text is escaped."""
    return EMPTY.join(parts)


def paragraph(text: str, kind: str = "") -> Markup:
    """A paragraph; `kind` is its CSS class."""
    return render_element("paragraph", text, kind)


def fold(title: str, body: Markup) -> Markup:
    """A part that opens when its title is clicked."""
    return render_element("fold", title, body)


def picture(data: bytes, alt: str, *, mime: str = "image/png", width: int | None = None) -> Markup:
    """An embedded picture with a description for screen readers."""
    source = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return render_element("picture", source, alt, width)


def render_table(table: Table) -> Markup:
    """A table of figures: title above, remarks below, the best figure of a column bold."""
    best = best_cells(table)
    columns = [(label, "", "") for label in table.row_labels]
    for column in table.columns:
        meaning = METRICS[column.metric].meaning if column.metric in METRICS else ""
        columns.append((f"{column.header}\u00a0{column.arrow}".strip(), "number", meaning))
    lines = []
    for number, line in enumerate(table.lines):
        cells = [HtmlCell(label, "name") for label in line.row_labels]
        for position, cell in enumerate(line.cells):
            mean, _, deviation = cell.text.partition("±")
            cells.append(HtmlCell(mean, "number", deviation, (number, position) in best))
        lines.append((str(line.role), cells))
    view = HtmlTable(columns, lines, table.title, _group_columns(table), collect_remarks(table))
    return render("table.html", table=view)


def render_rows(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Container[str] = (),
    muted: Container[int] = (),
    caption: str = "",
    notes: Sequence[str] = (),
) -> Markup:
    """A plain table of text or markup; columns in `numeric` are aligned right, rows in `muted` are grey."""
    kinds = ["number" if heading in numeric else "" for heading in headings]
    lines = [
        (
            "control" if number in muted else "",
            [HtmlCell(text, kind) for text, kind in zip(row, kinds, strict=True)],
        )
        for number, row in enumerate(rows)
    ]
    columns = [(text, kind, "") for text, kind in zip(headings, kinds, strict=True)]
    return render("table.html", table=HtmlTable(columns, lines, caption, notes=notes))


def _group_columns(table: Table) -> list[tuple[str, int]]:
    """Names of neighbouring columns and how many share them; empty where there are no groups."""
    if not any(column.group for column in table.columns):
        return []
    cells = [("", 1)] * len(table.row_labels)
    for name, members in groupby(table.columns, key=lambda column: column.group):
        count = len(list(members))
        # Columns without a group have a cell each.
        cells += [(name, count)] if name else [("", 1)] * count
    return cells


def render_page(title: str, lead: Markup, sections: Sequence[Section]) -> str:
    """A document that opens from disk and loads nothing."""
    return render("page.html", title=title, lead=lead, sections=sections, policy=POLICY, colors=COLORS)


def encode_page(document: str) -> bytes:
    """UTF-8; a lone surrogate, which a file name may contain, becomes a character reference."""
    return document.encode("utf-8", "xmlcharrefreplace")
