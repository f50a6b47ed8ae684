"""What a file holds is printed as data: no markup is obeyed, no control character reaches the terminal."""

import io
import sys

import pytest
from rich.console import Console

from gcemil.cli import console
from gcemil.errors import GcemilError, printable

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


def test_a_long_message_keeps_its_file_and_its_remedy():
    text = str(GcemilError("table.csv: " + "x" * 100_000 + " Remove it."))
    assert text.startswith("table.csv: x")
    assert text.endswith("x Remove it.")
    assert len(text) < 2100
