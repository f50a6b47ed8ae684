"""docs/paper_map.md names files and names that exist."""

import re
from pathlib import Path

import pytest
from paper.page import CHECKS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| statement"))
]
PLACES = {"default", "recipe", "control", "missing"}


def named(cell):
    return re.findall(r"`([^`]+)`", cell)


def check(folder, name):
    path, _, symbol = name.partition(":")
    file = folder / path
    assert file.is_file(), f"{name}: no such file"
    if symbol:
        defined = rf"^\s*(async )?(def|class) {symbol}\b|^{symbol}\b.*="
        assert re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE), (
            f"{name}: no such name"
        )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_what_a_row_names_exists(row):
    statement, where, code, tests, measured = row
    assert statement
    assert where in PLACES
    assert named(code)
    assert named(tests)
    for name in named(code):
        check(ROOT if name.startswith("paper/") else ROOT / "src" / "gcemil", name)
    for name in named(tests):
        check(ROOT / "tests", name)
    assert set(named(measured)) <= set(CHECKS)


def test_every_comparison_has_a_statement():
    assert {name for row in ROWS for name in named(row[4])} == set(CHECKS)
