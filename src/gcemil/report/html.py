"""Render the pages of the report from the jinja2 templates in report/templates.

  Picture          what the macros `picture` and `figure` of elements.html draw
  render_section   one section of a page, from the template with its name
  render_page      a whole document; its policy allows its own styles and embedded pictures only

Python passes data and tables; the templates escape them. There is no script: <details> collapses,
and CSS filters.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.tables import Table, best_cells, collect_remarks


def measure_width(share: float) -> str:
    """The length of a bar in percent, between 0 and 100; 0 for NaN."""
    return f"{100 * min(1.0, share) if share > 0 else 0.0:.1f}"


def group_columns(table: Table) -> list[tuple[str, int]]:
    """Names of neighbouring columns and how many share them; empty if there are no groups."""
    if not any(column.group for column in table.columns):
        return []
    cells = [("", 1)] * len(table.row_labels)
    for name, members in groupby(table.columns, key=lambda column: column.group):
        count = len(list(members))
        # Columns without a group have a cell each.
        cells += [(name, count)] if name else [("", 1)] * count
    return cells


ENVIRONMENT = Environment(
    loader=PackageLoader("gcemil.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    "best_cells": best_cells,
    "group_columns": group_columns,
    "remarks": collect_remarks,
    "width": measure_width,
}
ENVIRONMENT.globals |= {"METRICS": METRICS, "style": style}
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
    is_wide: bool = True
    """Whether it fills the page; two others stand side by side."""

    @property
    def source(self) -> str:
        return f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"


def render(template: str, **values: Any) -> Markup:
    return Markup(ENVIRONMENT.get_template(template).render(**values))


def render_section(key: str, title: str, **values: Any) -> Section:
    return Section(key, title, render(f"{key}.html", **values))


def render_page(title: str, lead: Markup, sections: Sequence[Section]) -> bytes:
    """A document that opens from disk and loads nothing, as UTF-8."""
    page = render("page.html", title=title, lead=lead, sections=sections)
    # A file name may contain a lone surrogate, which becomes a character reference.
    return page.encode("utf-8", "xmlcharrefreplace")
