import math
from html.parser import HTMLParser

import pytest
from markupsafe import Markup

from gcemil.report.html import (
    Section,
    bar,
    element,
    encode_page,
    join_markup,
    link,
    picture,
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
    assert element("p", "<b>&'\"") == "<p>&lt;b&gt;&amp;&#39;&#34;</p>"
    assert element("p", "<i>", Markup("<i></i>")) == "<p>&lt;i&gt;<i></i></p>"
    assert join_markup(["<", Markup("<br>")]) == "&lt;<br>"


def test_an_attribute_cannot_be_broken_out_of():
    made = element("span", title='"><script>alert(1)</script>')
    found = outline(made)
    assert found.tags == ["span"]
    assert found.attributes == [("title", '"><script>alert(1)</script>')]


def test_an_attribute_that_is_none_is_left_out():
    assert element("td", "1", class_=None, id="x") == '<td id="x">1</td>'


@pytest.mark.parametrize("target", ["https://example.org", "javascript:alert(1)", "//x", "file:///etc"])
def test_links_lead_nowhere_but_to_the_page_itself(target):
    assert link(target, "there") == "there"
    assert link("#slides", "there") == '<a href="#slides">there</a>'


def test_a_page_allows_its_own_styles_and_pictures_and_nothing_else():
    document = render_page(
        "T <title>", element("h1", "T"), [Section("one", "One & two", picture(b"\x89PNG", "a picture"))]
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


def test_markup_in_an_attribute_is_text_there():
    made = element("span", title=Markup('"><script>'))
    assert outline(made).tags == ["span"]


@pytest.mark.parametrize(
    ("share", "width"), [(0.25, "25.0%"), (2.0, "100.0%"), (-1.0, "0.0%"), (math.nan, "0.0%")]
)
def test_a_bar_is_never_longer_than_its_frame(share, width):
    assert f"width:{width}" in bar(share)


def test_a_mark_that_is_no_number_is_not_drawn():
    assert "mark" not in bar(0.5, mark=math.nan)
    assert "left:50.0%" in bar(0.1, mark=0.5)


def test_half_a_character_of_a_file_name_is_written_as_a_number():
    assert encode_page("slide \udc80") == b"slide &#56448;"
