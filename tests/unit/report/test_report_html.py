import math
from html.parser import HTMLParser

import pytest

from gcemil.report.html import (
    Cell,
    Column,
    Line,
    Markup,
    Section,
    Table,
    bar,
    element,
    encoded,
    escaped,
    joined,
    link,
    page,
    picture,
    table,
)

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
    assert escaped("<b>&'\"") == "&lt;b&gt;&amp;&#x27;&quot;"
    assert element("p", "<i>", Markup("<i></i>")) == "<p>&lt;i&gt;<i></i></p>"
    assert joined(["<", Markup("<br>")]) == "&lt;<br>"


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
    document = page(
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
    made = table(
        Table(
            (Column("Rule", is_number=False), Column("Gap", group="S"), Column("Drop", group="S"), Column("Lost", group="N")),
            (Line((Cell("us"), Cell("0.1", is_number=True, is_best=True, note="± 0.2"), Cell("0.3"), Cell("1"))),),
            caption="Gaps",
            notes=("Read <this>.",),
        )
    )  # fmt: skip
    assert '<th colspan="2" class="group"><span>S</span></th>' in made
    assert '<td class="number"><b>0.1</b><small>± 0.2</small></td>' in made
    assert "Read &lt;this&gt;." in made
    outline(made)


@pytest.mark.parametrize(
    ("share", "width"), [(0.25, "25.0%"), (2.0, "100.0%"), (-1.0, "0.0%"), (math.nan, "0.0%")]
)
def test_a_bar_is_never_longer_than_its_frame(share, width):
    assert f"width:{width}" in bar(share)


def test_a_mark_that_is_no_number_is_not_drawn():
    assert "mark" not in bar(0.5, mark=math.nan)
    assert "left:50.0%" in bar(0.1, mark=0.5)


def test_half_a_character_of_a_file_name_is_written_as_a_number():
    assert encoded("slide \udc80") == b"slide &#56448;"
