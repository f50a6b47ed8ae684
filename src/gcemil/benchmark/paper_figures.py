"""The figures of the paper, from the one data file that holds them (resources/paper/figures.yaml)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gcemil.errors import InputError, UsageError

TIMES = "\N{MULTIPLICATION SIGN}"


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperRow(_Closed):
    """One line of a table: our key for it, its name as printed, its cells as printed (None: a dash)."""

    key: str
    name: str
    cells: tuple[str | None, ...]


class PaperTable(_Closed):
    """One table of the paper; `columns` are our keys, `printed` their headers in the paper."""

    label: str
    about: str
    notes: tuple[str, ...] = ()
    printed: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    @model_validator(mode="after")
    def _is_a_rectangle(self) -> PaperTable:
        if len(self.printed) != len(self.columns):
            raise ValueError(f"{self.label}: {len(self.printed)} headers for {len(self.columns)} columns")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"{self.label}, row {row.key}: {len(row.cells)} cells for {len(self.columns)} columns"
                )
        if len({row.key for row in self.rows}) < len(self.rows):
            raise ValueError(f"{self.label}: a row key stands twice")
        return self

    def row(self, key: str) -> PaperRow | None:
        return next((row for row in self.rows if row.key == key), None)

    def cell(self, row: str, column: str) -> str | None:
        """As printed; None where the paper has a dash, or no such row or column."""
        found = self.row(row)
        return (
            None if found is None or column not in self.columns else found.cells[self.columns.index(column)]
        )

    def number(self, row: str, column: str) -> float | None:
        """The value of a cell without its deviation."""
        text = self.cell(row, column)
        return None if text is None else value_of(text)


class Claim(_Closed):
    """One headline figure of the abstract, as printed."""

    key: str
    name: str
    value: str
    where: str


class PaperFigures(_Closed):
    source: str
    measured_on: str
    claims: tuple[Claim, ...]
    tables: dict[str, PaperTable]

    def table(self, name: str) -> PaperTable:
        if name not in self.tables:
            raise UsageError(f"The paper has no table '{name}'. Choose one of: {', '.join(self.tables)}.")
        return self.tables[name]

    def claim(self, key: str) -> str | None:
        return next((claim.value for claim in self.claims if claim.key == key), None)


@cache
def paper_figures() -> PaperFigures:
    """The figures that ship with the package."""
    return read_figures(files("gcemil") / "resources" / "paper" / "figures.yaml")


def read_figures(path: Path | Traversable) -> PaperFigures:
    try:
        return PaperFigures.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InputError(
            f"{path} does not hold the paper's figures: {error}. Install gcemil again."
        ) from error


def value_of(printed: str) -> float | None:
    """The number before the plus-minus sign or the multiplication sign; None for text."""
    return _number(printed.partition("±")[0])


def deviation_of(printed: str) -> float | None:
    return _number(printed.partition("±")[2])


def _number(text: str) -> float | None:
    try:
        return float(text.removesuffix(TIMES))
    except ValueError:
        return None
