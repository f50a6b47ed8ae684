"""The answer of `gcemil inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Inspection:
    """What something is, what can be said about it, what is wrong with it, and what to run next."""

    path: Path
    kind: str
    title: str
    facts: Facts
    problems: tuple[str, ...]
    next_command: str | None

    def lines(self) -> list[str]:
        lines = [f"{self.path}: {self.title}", *(f"  {name}: {value}" for name, value in self.facts)]
        lines += [f"  problem: {problem}" for problem in self.problems]
        return [*lines, *([f"  next: {self.next_command}"] if self.next_command else [])]
