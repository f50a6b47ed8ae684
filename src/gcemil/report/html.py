"""Render the pages of the report from the jinja2 templates in report/templates.

  Picture, HtmlTable   what the macros `figure` and `table` of elements.html draw
  render_section       one section of a page from the template that has its name
  render_page          a whole document; its policy allows its own styles and embedded pictures, and nothing else

Python gives the templates data; everything is escaped there. There is no script: <details> collapses, and CSS filters.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gcemil.metrics import METRICS
from gcemil.report.style import ATTENTION_COLOR, EVIDENCE_COLOR, INK, LINE, MUTED
from gcemil.tables import Table, best_cells, collect_remarks

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
ENVIRONMENT.globals["ui"] = ENVIRONMENT.get_template("elements.html").module


@dataclass(frozen=True)
class Section:
    """One part of a page."""

    key: str
    title: str
    body: Markup


@dataclass(frozen=True)
class Picture:
    """An embedded picture with a description for screen readers."""

    data: bytes
    alt: str
    mime: str = "image/png"
    caption: str = ""
    width: int | None = None

    @property
    def source(self) -> str:
        """The picture as a data URL."""
        return f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True)
class HtmlCell:
    """One cell of a table; `kind` is its CSS class."""

    text: str
    kind: str = ""
    deviation: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class HtmlTable:
    """What the macro of a table reads."""

    columns: Sequence[tuple[str, str, str]]
    """Text, CSS class and meaning."""
    lines: Sequence[tuple[str, Sequence[HtmlCell]]]
    """CSS class and cells."""
    caption: str = ""
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, table: Table) -> HtmlTable:
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
        return cls(columns, lines, table.title, _group_columns(table), collect_remarks(table))

    @classmethod
    def of_text(
        cls,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Container[str] = (),
        caption: str = "",
        notes: Sequence[str] = (),
    ) -> HtmlTable:
        """A table of text; columns in `numeric` are aligned right."""
        kinds = ["number" if heading in numeric else "" for heading in headings]
        columns = [(text, kind, "") for text, kind in zip(headings, kinds, strict=True)]
        return cls(columns, [("", list(map(HtmlCell, row, kinds))) for row in rows], caption, notes=notes)


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


def render(template: str, **values: Any) -> Markup:
    """One template of report/templates with these values."""
    return Markup(ENVIRONMENT.get_template(template).render(**values))


def render_section(key: str, title: str, **values: Any) -> Section:
    """The section that the template of this name makes of these values."""
    return Section(key, title, render(f"{key}.html", **values))


def render_page(title: str, lead: Markup, sections: Sequence[Section]) -> bytes:
    """A document that opens from disk and loads nothing, as UTF-8."""
    page = render("page.html", title=title, lead=lead, sections=sections, policy=POLICY, colors=COLORS)
    # A file name may contain a lone surrogate, which becomes a character reference.
    return page.encode("utf-8", "xmlcharrefreplace")
