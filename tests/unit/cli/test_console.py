"""What a file holds is printed as data: no markup is obeyed, no control character reaches the terminal."""

import io
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from builders import make_cohort
from gcemil.bags.cohort import Cohort, SlideRow
from gcemil.cli import console
from gcemil.cli.main import app
from gcemil.errors import CohortError, GcemilError, printable

NASTY = [
    "x[/foo]y",
    "[bold red]hid[/]",
    "\x1b[31mred\x1b[0m",
    "a\nb",
    "\u202egnp.exe",
    "\udc80",
    "[link=http://x]y",
]


@pytest.mark.parametrize("name", NASTY)
def test_a_cell_shows_its_text_and_nothing_else(name, capsys):
    console.print_table(f"title {name}", ("what", name), [(name, 1)])
    console.say(f"slide {name}")
    shown = capsys.readouterr().out
    assert shown.count(printable(name)) == 4
    assert not set(shown) & {"\x1b", "\u202e"}


@pytest.mark.parametrize("name", NASTY)
def test_a_progress_bar_shows_its_description_as_text(name, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        console,
        "Console",
        lambda **_: Console(file=written, force_terminal=True, color_system=None, width=120),
    )
    with console.progress(f"reading {name}") as advance:
        advance(1, 2)
    assert printable(name) in written.getvalue()


@pytest.mark.parametrize("name", NASTY)
def test_a_message_is_one_printable_line(name):
    text = str(CohortError(f"Slide '{name}'\n  is wrong."))
    assert text == printable(text)
    assert len(text.splitlines()) == 1


def test_a_long_message_keeps_its_file_and_its_remedy():
    text = str(GcemilError("table.csv: " + "x" * 100_000 + " Remove it."))
    assert text.startswith("table.csv: x")
    assert text.endswith("x Remove it.")
    assert len(text) < 2100


@pytest.mark.parametrize("slide_id", ["x[/foo]y", "[bold red]hid[/]"])
def test_validate_names_a_slide_with_brackets(tmp_path, slide_id):
    cohort = make_cohort(tmp_path / "c", n_cases=4)
    rows = (*cohort.slides, SlideRow(slide_id, "c9", label="benign"))
    Cohort(cohort.folder, cohort.card, rows).save()
    result = CliRunner().invoke(app, ["validate", str(tmp_path / "c")])
    assert result.exit_code == 1
    assert slide_id in result.output


def test_inspect_shows_a_column_with_an_escape_as_data(tmp_path):
    (tmp_path / "labels.csv").write_text("slide_id,\x1b[2Jlabel\na,b\n")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "labels.csv")])
    assert "\\x1b[2Jlabel" in result.output
    assert "\x1b" not in result.output
