"""HTML as values: text is escaped unless it is Markup, and a page asks nothing of the network.

  Markup        a string that is HTML already; only the functions of this module make it from text
  element       one element; children that are plain strings are escaped, and so is every attribute
  page          a whole document under a policy that allows its own styles and embedded pictures, and nothing else

No template language and no script: what folds, folds by <details>, and what filters, filters by CSS.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gcemil.report.page_style import STYLE

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
VOID = {"br", "hr", "img", "input", "meta"}
LINK_SCHEMES = ("#",)
"""A report links to itself only."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


EMPTY = Markup("")


@dataclass(frozen=True)
class Section:
    """One part of a page."""

    key: str
    title: str
    body: Markup


@dataclass(frozen=True)
class Cell:
    """A cell of a table; a number stands right, the best of its column is bold."""

    content: str
    is_number: bool = False
    is_best: bool = False
    note: str = ""
    """Smaller, behind the content."""
    is_name: bool = False
    """Stays on one line."""


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    cells: tuple[Cell, ...]
    kind: str = ""
    """A CSS class, such as `own` for what the report is about."""


@dataclass(frozen=True)
class Column:
    title: str
    is_number: bool = True
    meaning: str = ""
    group: str = ""
    """Neighbouring columns of one group share a heading."""


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    caption: str = ""
    notes: tuple[str, ...] = field(default=())


def escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=True))


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(escaped(part) for part in parts))


def element(tag: str, *children: str, **attributes: str | None) -> Markup:
    """One element; `class_` is written class, an attribute that is None is left out."""
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Markup(f"<{tag}{shown}>")
    return Markup(f"<{tag}{shown}>{joined(children)}</{tag}>")


def link(target: str, text: str, **attributes: str | None) -> Markup:
    """To a place on the same page; anything else stays text."""
    if not target.startswith(LINK_SCHEMES):
        return escaped(text)
    return element("a", text, href=target, **attributes)


def paragraph(*children: str, kind: str | None = None) -> Markup:
    return element("p", *children, class_=kind)


def command(text: str) -> Markup:
    return element("code", text)


def picture(
    data: bytes, alt: str, *, mime: str = "image/png", width: int | None = None, kind: str | None = None
) -> Markup:
    """An embedded picture with words for those who do not see it."""
    source = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    size = None if width is None else str(width)
    return element("img", src=source, alt=alt, width=size, class_=kind, loading="lazy")


def table(value: Table) -> Markup:
    """A table with its caption above and its notes below."""
    groups = grouped_heading(value.columns)
    heading = element(
        "thead", *([groups] if groups else []), element("tr", *(map(heading_cell, value.columns)))
    )
    body = element("tbody", *(table_line(line) for line in value.lines))
    caption = [element("caption", value.caption)] if value.caption else []
    made = element("div", element("table", *caption, heading, body), class_="scroll")
    notes = [paragraph(note, kind="note") for note in value.notes]
    return joined([made, *notes])


def grouped_heading(columns: Sequence[Column]) -> Markup:
    """The line above the columns that names their groups; nothing where there are none."""
    if not any(column.group for column in columns):
        return EMPTY
    cells: list[tuple[str, int]] = []
    for column in columns:
        if cells and cells[-1][0] == column.group and column.group:
            cells[-1] = (column.group, cells[-1][1] + 1)
        else:
            cells.append((column.group, 1))
    return element(
        "tr",
        *(
            element("th", *([element("span", name)] if name else []), colspan=str(n), class_="group")
            for name, n in cells
        ),
    )


def heading_cell(column: Column) -> Markup:
    kind = "number" if column.is_number else None
    return element("th", column.title, class_=kind, title=column.meaning or None, scope="col")


def table_line(line: Line) -> Markup:
    return element("tr", *(table_cell(cell) for cell in line.cells), class_=line.kind or None)


def table_cell(cell: Cell) -> Markup:
    content = element("b", cell.content) if cell.is_best else escaped(cell.content)
    note = [element("small", cell.note)] if cell.note else []
    kind = "number" if cell.is_number else "name" if cell.is_name else None
    return element("td", content, *note, class_=kind)


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


def page(title: str, lead: Markup, sections: Sequence[Section]) -> str:
    """A document that opens from disk and never leaves it."""
    contents = element("nav", element("ul", *(contents_line(one) for one in sections)), aria_label="Contents")
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
        element("style", Markup(STYLE)),
    )
    main = element("main", lead, *body)
    return f"<!DOCTYPE html>\n{element('html', head, element('body', contents, main), lang='en')}\n"


def contents_line(section: Section) -> Markup:
    return element("li", link(f"#{section.key}", section.title))


def encoded(document: str) -> bytes:
    """UTF-8; half a character, which a file name may hold, is written as a number."""
    return document.encode("utf-8", "xmlcharrefreplace")
