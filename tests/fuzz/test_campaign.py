"""Every valid input is read, a small campaign finds nothing, and a fault would be noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.__main__ import lay_out, list_targets, read_input, run_campaign
from fuzz.inputs import INPUTS, Input

INPUTS_OF_A_TEST = 60
LONG = ("training data", "run")
QUICK = [name for name in INPUTS if name not in LONG]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_a_valid_input_is_read(place: Path, name: str) -> None:
    folder = lay_out(INPUTS[name], place)
    assert read_input(INPUTS[name], folder, list_targets(folder, INPUTS[name])[0]) == "read"


def test_a_small_campaign_finds_nothing(place: Path) -> None:
    counts, findings = run_campaign(QUICK, 0, range(INPUTS_OF_A_TEST), place)
    assert findings == []
    assert counts.total() == INPUTS_OF_A_TEST


def test_a_bare_exception_is_a_finding(tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        raise KeyError("x")

    (tmp_path / "a.csv").write_text("a\n")
    found = read_input(
        Input(lambda folder: None, ("a.csv",), (read,)), tmp_path, tmp_path / "a.csv"
    )
    assert found.startswith("KeyError: 'x'")
