"""The prompts that ship with the package, listed by a command."""

import json

from typer.testing import CliRunner

from gcemil.cli.main import app
from gcemil.errors import UsageError


def test_every_family_and_its_prompts_are_listed():
    found = json.loads(CliRunner().invoke(app, ["anchors", "list", "--json"]).stdout)
    assert [family["family"] for family in found] == [
        "breast", "endometrial", "gastric", "lung", "prostate", "renal", "generic",
    ]  # fmt: skip
    assert {len(family["prompts"]) for family in found} == {8}


def test_an_unknown_family_is_told_what_there_is():
    said = CliRunner().invoke(app, ["anchors", "list", "brain"])
    assert isinstance(said.exception, UsageError)
    assert "Choose one of breast" in str(said.exception)
