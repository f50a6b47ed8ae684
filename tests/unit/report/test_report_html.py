import math
from html.parser import HTMLParser

import pytest
from markupsafe import Markup

from gcemil.report.html import ENVIRONMENT, Picture, Section, render_page
from gcemil.tables import Cell, Column, Line, Table

UI = ENVIRONMENT.globals["ui"]
VOID = {"br", "hr", "img", "input", "meta"}


class Outline(HTMLParser):
    """Elements and attributes of a document; a tag that is closed out of turn is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def outline(document: str) -> Outline:
    found = Outline()
    found.feed(document)
    assert not found.open
    return found


def test_text_is_escaped_and_markup_is_not():
    assert UI.notes(["<b>&'\"", Markup("<br>")]).split("\n")[:2] == [
        '<p class="note">&lt;b&gt;&amp;&#39;&#34;</p>',
        '<p class="note"><br></p>',
    ]


@pytest.mark.parametrize(
    "alt", ['"><script>alert(1)</script>', Markup('"><script>alert(1)</script>')]
)
def test_a_value_cannot_end_its_attribute(alt):
    found = outline(UI.picture(Picture(b"\x89PNG", alt)))
    assert found.tags == ["img"]
    assert ("alt", '"><script>alert(1)</script>') in found.attributes


def test_a_page_allows_its_own_styles_and_pictures_and_nothing_else():
    picture = UI.picture(Picture(b"\x89PNG", "a picture"))
    document = render_page(
        "T <title>", UI.notes(["T"]), [Section("one", "One & two", picture)]
    ).decode()
    found = outline(document)
    policy = next(
        value for name, value in found.attributes if name == "content" and "default-src" in value
    )
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert all(value.startswith("data:image/") for name, value in found.attributes if name == "src")
    assert all(value.startswith("#") for name, value in found.attributes if name == "href")
    assert "://" not in document
    assert "url(" not in document
    assert "@import" not in document


def test_a_table_says_what_is_best_and_names_its_groups():
    gap, drop = Column("gap", "Gap", better="lower", group="S"), Column("drop", "Drop", group="S")
    more = (Cell("0.3"), Cell("1"))
    best = Cell("0.1±0.2", 0.1, 0.2)
    lines = (
        Line(("us",), "ours", (best, *more), comparison="", role="own"),
        Line(("them",), "ours", (Cell("0.2", 0.2), *more), comparison=""),
    )
    columns = (gap, drop, Column("lost", "Lost", group="N"))
    made = UI.table(Table("", "Gaps", "", ("Rule",), columns, lines, notes=("Read <this>.",)))
    assert '<th colspan="2" class="group"><span>S</span></th>' in made
    assert '<th class="number" scope="col">Gap\u00a0↓</th>' in made
    cell = '<td class="number"><b>0.1</b><small>± 0.2</small></td>'
    assert f'<tr class="own"><td class="name">us</td>{cell}' in made
    assert '<td class="number">0.2</td>' in made
    assert "Read &lt;this&gt;." in made
    outline(made)


@pytest.mark.parametrize(
    ("share", "width"), [(0.25, "25.0%"), (2.0, "100.0%"), (-1.0, "0.0%"), (math.nan, "0.0%")]
)
def test_a_bar_is_never_longer_than_its_frame(share, width):
    assert f"width:{width}" in UI.bar(share)


def test_half_a_character_of_a_file_name_is_written_as_a_number():
    assert b"<title>slide &#56448;</title>" in render_page("slide \udc80", Markup(""), [])
