"""HTML as values: text is escaped unless it is Markup, and a page asks nothing of the network.

  Markup           a string that is HTML already (markupsafe); everything else is escaped where it is used
  element          one element; children that are plain strings are escaped, and so is every attribute
  render_table     a table of figures (gcemil.tables); render_rows a plain table of text
  render_page      a whole document under a policy that allows its own styles and embedded pictures, and nothing else

No template language and no script: <details> collapses, and CSS filters.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby

from markupsafe import Markup, escape

from gcemil.metrics import METRICS
from gcemil.report.style import ATTENTION_COLOR, EVIDENCE_COLOR, INK, LINE, MUTED
from gcemil.tables import Cell, Column, Line, Table, best_cells, collect_remarks

EMPTY = Markup("")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
VOID_TAGS = {"br", "hr", "img", "input", "meta"}


@dataclass(frozen=True)
class Section:
    """One part of a page."""

    key: str
    title: str
    body: Markup


def join_markup(parts: Iterable[str]) -> Markup:
    """All parts behind one another; those that are plain text are escaped."""
    return EMPTY.join(parts)


def element(tag: str, *children: str, **attributes: str | None) -> Markup:
    """One element; `class_` is written class, an attribute that is None is left out."""
    # str() first: markup in an attribute is text, and its quotes would end the attribute.
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID_TAGS:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join_markup(children)}</{tag}>")


def link(target: str, text: str, **attributes: str | None) -> Markup:
    """A link to a place on the same page; to anything else it stays text."""
    if not target.startswith("#"):
        return escape(text)
    return element("a", text, href=target, **attributes)


def paragraph(*children: str, kind: str | None = None) -> Markup:
    """A paragraph; `kind` is its CSS class."""
    return element("p", *children, class_=kind)


def command(text: str) -> Markup:
    """Something to type into a terminal."""
    return element("code", text)


def collapse(title: str, body: Markup) -> Markup:
    """A part that opens when its title is clicked."""
    return element("details", element("summary", title), body, class_="fold")


def picture(data: bytes, alt: str, *, mime: str = "image/png", width: int | None = None) -> Markup:
    """An embedded picture with words for those who do not see it."""
    source = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    size = None if width is None else str(width)
    return element("img", src=source, alt=alt, width=size, loading="lazy")


def bar(share: float, *, kind: str = "", mark: float | None = None, words: str = "") -> Markup:
    """A share of 1 as a bar, with a line where it should reach."""
    # Written so that NaN is an empty bar.
    length = min(1.0, share) if share > 0 else 0.0
    children = [element("span", class_="fill", style=f"width:{100 * length:.1f}%")]
    if mark is not None and math.isfinite(mark):
        children.append(element("span", class_="mark", style=f"left:{100 * min(1.0, max(0.0, mark)):.1f}%"))
    return element(
        "span", *children, class_=f"bar {kind}".strip(), role="img", aria_label=words or f"{share:.3f}"
    )


def render_table(table: Table) -> Markup:
    """A table of figures: title above, remarks below, the best figure of a column bold."""
    best = best_cells(table)
    heading = [
        *(element("th", label, scope="col") for label in table.row_labels),
        *(_render_column(column) for column in table.columns),
    ]
    lines = [
        _render_line(line, {position for row, position in best if row == number})
        for number, line in enumerate(table.lines)
    ]
    return _wrap_table(
        table.title, [*_render_groups(table), element("tr", *heading)], lines, collect_remarks(table)
    )


def render_rows(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Container[str] = (),
    muted: Container[int] = (),
    caption: str = "",
) -> Markup:
    """A plain table of text or markup; columns in `numeric` stand right, rows in `muted` are grey."""
    kinds = ["number" if heading in numeric else None for heading in headings]
    heading = [
        element("th", text, class_=kind, scope="col") for text, kind in zip(headings, kinds, strict=True)
    ]
    lines = [
        element(
            "tr",
            *(element("td", text, class_=kind) for text, kind in zip(row, kinds, strict=True)),
            class_="control" if number in muted else None,
        )
        for number, row in enumerate(rows)
    ]
    return _wrap_table(caption, [element("tr", *heading)], lines)


def render_page(title: str, lead: Markup, sections: Sequence[Section]) -> str:
    """A document that opens from disk and never leaves it."""
    lines = (element("li", link(f"#{one.key}", one.title)) for one in sections)
    contents = element("nav", element("ul", *lines), aria_label="Contents")
    body = [
        element("section", element("h2", one.title), one.body, id=one.key, aria_label=one.title)
        for one in sections
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", _read_style()),
    )
    main = element("main", lead, *body)
    return f"<!DOCTYPE html>\n{element('html', head, element('body', contents, main), lang='en')}\n"


def encode_page(document: str) -> bytes:
    """UTF-8; half a character, which a file name may hold, is written as a number."""
    return document.encode("utf-8", "xmlcharrefreplace")


def _render_groups(table: Table) -> list[Markup]:
    """The line above the columns that names their groups; none where there are no groups."""
    if not any(column.group for column in table.columns):
        return []
    cells = [("", 1)] * len(table.row_labels)
    for name, found in groupby(table.columns, key=lambda column: column.group):
        count = len(list(found))
        # Columns without a group share nothing, so each has a cell of its own.
        cells += [(name, count)] if name else [("", 1)] * count
    return [
        element(
            "tr",
            *(
                element("th", *([element("span", name)] if name else []), colspan=str(count), class_="group")
                for name, count in cells
            ),
        )
    ]


def _render_column(column: Column) -> Markup:
    meaning = METRICS[column.metric].meaning if column.metric in METRICS else None
    title = f"{column.header}\u00a0{column.arrow}".strip()
    return element("th", title, class_="number", title=meaning or None, scope="col")


def _render_line(line: Line, best: Container[int]) -> Markup:
    labels = (element("td", label, class_="name") for label in line.row_labels)
    cells = (_render_cell(cell, position in best) for position, cell in enumerate(line.cells))
    return element("tr", *labels, *cells, class_=line.role or None)


def _render_cell(cell: Cell, is_best: bool) -> Markup:
    """The figure, and its deviation smaller behind it."""
    mean, _, deviation = cell.text.partition("±")
    note = [element("small", f"± {deviation}")] if deviation else []
    return element("td", element("b", mean) if is_best else mean, *note, class_="number")


def _wrap_table(
    caption: str, heading: Sequence[Markup], lines: Sequence[Markup], notes: Sequence[str] = ()
) -> Markup:
    title = [element("caption", caption)] if caption else []
    table = element("table", *title, element("thead", *heading), element("tbody", *lines))
    return join_markup(
        [element("div", table, class_="scroll"), *(paragraph(note, kind="note") for note in notes)]
    )


def _read_style() -> Markup:
    """The style sheet; its colours are those of the figures."""
    colors = f"--ink:{INK};--muted:{MUTED};--line:{LINE};--accent:{EVIDENCE_COLOR};--held:{ATTENTION_COLOR}"
    sheet = (resources.files("gcemil.resources") / "report.css").read_text(encoding="utf-8")
    return Markup(f":root{{{colors};--wash:#f5f7f8;--paper:#fff}}\n{sheet}")
