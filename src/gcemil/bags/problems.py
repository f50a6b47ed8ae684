"""What a check of a cohort can find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Row = dict[str, str]


@dataclass(frozen=True)
class Problem:
    level: Literal["error", "warning"]
    where: str
    """The slide, case, class or file it is about."""
    what: str
    remedy: str


def error(where: str, what: str, remedy: str) -> Problem:
    return Problem("error", where, what, remedy)


def warning(where: str, what: str, remedy: str) -> Problem:
    return Problem("warning", where, what, remedy)
