"""A table as a value, before anyone decides how it is printed: columns, lines of cells, and where each line comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gcemil.metrics import METRICS, Direction

Origin = Literal["paper", "ours"]


@dataclass(frozen=True)
class Cell:
    """One figure: its text, and the numbers behind it where it is a number."""

    text: str
    value: float | None = None
    deviation: float | None = None
    n: int = 0
    """Values behind the mean; 0 where that is not known."""
    state: Literal["there", "missing", "undefined"] = "there"

    @property
    def mean_text(self) -> str:
        """What is printed before the deviation."""
        return self.text.partition("±")[0]


MISSING = Cell("missing", state="missing")
"""The result could exist and does not: something has not been run."""
UNDEFINED = Cell("-", state="undefined")
"""There is no such figure: a plain host has no gates, a whole bag no complement."""


@dataclass(frozen=True)
class Column:
    """A column: what it is called here, and the metric that says which way is better."""

    key: str
    header: str
    metric: str | None = None
    group: str = ""
    """A heading that neighbouring columns share."""
    better: Direction | None = None
    """In place of the metric's direction: a signed change can point the other way."""

    @property
    def direction(self) -> Direction:
        if self.better is not None:
            return self.better
        return METRICS[self.metric].direction if self.metric in METRICS else "neither"

    @property
    def arrow(self) -> str:
        return {"higher": "↑", "lower": "↓", "neither": ""}[self.direction]


@dataclass(frozen=True)
class Line:
    """One line of cells; lines of one contest and origin compete for bold."""

    stub: tuple[str, ...]
    origin: Origin
    cells: tuple[Cell, ...]
    contest: str | None = None
    """None stays out: differences, and controls that know the truth or nothing."""


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    label: str
    stub: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    legend: dict[Origin, str] = field(default_factory=dict)
    """Where the figures of each origin were measured."""
    notes: tuple[str, ...] = ()
    remedy: str = ""
    """The command that adds what is missing."""

    @property
    def n_missing(self) -> int:
        return sum(cell.state == "missing" for line in self.lines for cell in line.cells)


def best_cells(table: Table) -> set[tuple[int, int]]:
    """(line, column) of every best figure among at least two that compete; figures printed alike are best together."""
    contests: dict[tuple[str, str], list[int]] = {}
    for number, line in enumerate(table.lines):
        if line.contest is not None:
            contests.setdefault((line.origin, line.contest), []).append(number)
    return {
        (number, position)
        for rivals in contests.values()
        for position, column in enumerate(table.columns)
        for number in best_lines({number: table.lines[number].cells[position] for number in rivals}, column)
    }


def best_lines(cells: Mapping[int, Cell], column: Column) -> list[int]:
    values = {number: cell.value for number, cell in cells.items() if cell.value is not None}
    if column.direction == "neither" or len(values) < 2:
        return []
    best = (max if column.direction == "higher" else min)(values, key=lambda number: values[number])
    return [number for number in values if cells[number].mean_text == cells[best].mean_text]
