"""Commands of gcemil, run inside the process of the test."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from typer.main import get_command

from gcemil.cli.main import app
from gcemil.errors import GcemilError, UsageError


def gcemil(*arguments: object) -> Result:
    """The result of `gcemil ARGUMENTS`; the first may be a whole command line."""
    # Progress that a slow machine prints would stand before the answer.
    first, *others = map(str, arguments)
    return CliRunner(env={"GCEMIL_QUIET": "1"}).invoke(_command(), [*first.split(), *others])


def succeeded(*arguments: object) -> str:
    """The output of a command that ends with 0."""
    result = gcemil(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def answer(*arguments: object) -> Any:
    """What a command prints with --json."""
    result = gcemil(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def read_certificate(folder: Path) -> Any:
    """The certificate among the files of an explanation."""
    return json.loads((folder / "certificate.json").read_text())


def refused(*arguments: object, error: type[GcemilError] = UsageError) -> str:
    """The one sentence of a command that is refused."""
    result = gcemil(*arguments)
    assert isinstance(result.exception, error), (result.output, result.exception)
    message = str(result.exception)
    assert "\n" not in message
    return message


@cache
def _command() -> Any:
    return get_command(app)
