import math
from html.parser import HTMLParser

import pytest
from markupsafe import Markup

from gcemil.report.html import (
    Section,
    encode_page,
    fold,
    join_markup,
    paragraph,
    picture,
    render_element,
    render_page,
    render_rows,
    render_table,
)
from gcemil.tables import Cell, Column, Line, Table

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
    assert paragraph("<b>&'\"") == "<p>&lt;b&gt;&amp;&#39;&#34;</p>"
    assert fold("<i>", Markup("<i></i>")).split() == [
        "<details", 'class="fold"><summary>&lt;i&gt;</summary>', "<i></i>", "</details>",
    ]  # fmt: skip
    assert join_markup(["<", Markup("<br>")]) == "&lt;<br>"


@pytest.mark.parametrize("alt", ['"><script>alert(1)</script>', Markup('"><script>alert(1)</script>')])
def test_a_value_cannot_end_its_attribute(alt):
    found = outline(picture(b"\x89PNG", alt))
    assert found.tags == ["img"]
    assert ("alt", '"><script>alert(1)</script>') in found.attributes


def test_a_page_allows_its_own_styles_and_pictures_and_nothing_else():
    document = render_page(
        "T <title>", paragraph("T"), [Section("one", "One & two", picture(b"\x89PNG", "a picture"))]
    )
    found = outline(document)
    policy = next(value for name, value in found.attributes if name == "content" and "default-src" in value)
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
    lines = (
        Line(("us",), "ours", (Cell("0.1±0.2", 0.1, 0.2), Cell("0.3"), Cell("1")), comparison="", role="own"),
        Line(("them",), "ours", (Cell("0.2", 0.2), Cell("0.3"), Cell("1")), comparison=""),
    )
    columns = (gap, drop, Column("lost", "Lost", group="N"))
    made = render_table(Table("", "Gaps", "", ("Rule",), columns, lines, notes=("Read <this>.",)))
    assert '<th colspan="2" class="group"><span>S</span></th>' in made
    assert '<th class="number" scope="col">Gap\u00a0↓</th>' in made
    assert (
        '<tr class="own"><td class="name">us</td><td class="number"><b>0.1</b><small>± 0.2</small></td>'
        in made
    )
    assert '<td class="number">0.2</td>' in made
    assert "Read &lt;this&gt;." in made
    outline(made)


def test_rows_of_text_set_numbers_right_and_grey_out_what_is_muted():
    made = render_rows(
        ("What", "Count"), [("a<b", "1"), (Markup("<i>c</i>"), "2")], numeric={"Count"}, muted={1}
    )
    assert '<tr><td>a&lt;b</td><td class="number">1</td></tr>' in made
    assert '<tr class="control"><td><i>c</i></td>' in made
    outline(made)


@pytest.mark.parametrize(
    ("share", "width"), [(0.25, "25.0%"), (2.0, "100.0%"), (-1.0, "0.0%"), (math.nan, "0.0%")]
)
def test_a_bar_is_never_longer_than_its_frame(share, width):
    assert f"width:{width}" in render_element("bar", share)


def test_a_mark_that_is_no_number_is_not_drawn():
    assert "mark" not in render_element("bar", 0.5, "", math.nan)
    assert "left:50.0%" in render_element("bar", 0.1, "", 0.5)


def test_half_a_character_of_a_file_name_is_written_as_a_number():
    assert encode_page("slide \udc80") == b"slide &#56448;"
