"""Data files of the package: datasets, simulator, anchors, paper, and a script for QuPath."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcemil.errors import UsageError
from gcemil.wording import did_you_mean

HERE = Path(__file__).parent
"""The package is always unpacked; importlib.resources would make every start slower."""


def shipped_names(folder: str) -> list[str]:
    """The names of the YAML files in a folder."""
    entries = (entry.name for entry in (HERE / folder).iterdir())
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml"))


def read_shipped(folder: str, name: str, what: str) -> Any:
    """The content of one of them; another name is refused with those there are."""
    # The command line lists the names, and need not load what reads the files.
    from gcemil.files import parse_yaml

    known = shipped_names(folder)
    if name not in known:
        raise UsageError(
            f"Unknown {what} '{name}'.{did_you_mean(name, known)} "
            f"Choose one of: {', '.join(known)}."
        )
    path = HERE / folder / f"{name}.yaml"
    return parse_yaml(path.read_text(encoding="utf-8"), path)


def read_shipped_text(folder: str, name: str) -> str:
    """A file other than YAML, as it is."""
    return (HERE / folder / name).read_text(encoding="utf-8")
