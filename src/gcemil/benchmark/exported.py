"""figures.json: what tables read from a results folder, without the run folders.

A run's rows stand source by source in blocks. Rows of a block have the same labels and the same metrics, whose names are
written once; a row is its fold, its labels and its values in that order. A value of null was asked for and does not exist.
Each cohort and each run has a line of its own. Figures of single classes are left out: no table prints them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gcemil.benchmark.results import FIGURES, CohortFacts, CohortRecord, FoldRow, MeasuredResults, Run
from gcemil.errors import RunError
from gcemil.files import read_record, write_text
from gcemil.findings import Row

REMEDY = "Write it again with 'gcemil tables RESULTS --export FOLDER'."
DIGITS = 6
"""Significant digits of an exported figure: more than any table prints."""


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Block(_Closed):
    """Consecutive rows of one source with the same labels and metrics."""

    labels: list[str]
    values: list[str]
    rows: list[list[str | int | float | None]]

    @model_validator(mode="after")
    def _is_a_rectangle(self) -> Block:
        split = 1 + len(self.labels)
        width = split + len(self.values)
        for row in self.rows:
            if len(row) != width:
                raise ValueError(f"a row has {len(row)} entries for {width} columns")
            if isinstance(row[0], str) or (row[0] is not None and row[0] != int(row[0])):
                raise ValueError(f"a row begins with its fold, not with '{row[0]}'")
            if not all(isinstance(label, str) for label in row[1:split]):
                raise ValueError("a label is no text")
            if any(isinstance(value, str) for value in row[split:]):
                raise ValueError("a value is no number")
        return self

    def unpack(self) -> list[FoldRow]:
        """The rows as values."""
        split = 1 + len(self.labels)
        found: list[tuple[Any, Row]] = []
        for row in self.rows:
            labels: Any = dict(zip(self.labels, row[1:split], strict=True))
            values: Any = dict(zip(self.values, row[split:], strict=True))
            found.append((None if row[0] is None else int(row[0]), Row(labels, values)))
        return found


class ExportedRun(_Closed):
    """One run."""

    cohort: str
    host: str
    label: str
    seed: int
    holds_host: bool = False
    """Whether its rows stand for the plain host too."""
    sources: dict[str, list[Block]]


class ExportedCohort(_Closed):
    """One cohort."""

    name: str
    dataset: str
    encoder: str | None = None
    record: CohortRecord | None = None


class SlideTest(_Closed):
    """A permutation test over test slides: the gated prediction of a host against its full bag."""

    dataset: str
    host: str
    difference: float
    """Of the task metric, averaged over folds."""
    p: float = Field(ge=0, le=1)
    slides: int
    moved: int
    """Slides whose two predictions differ; where there is none, p is 1."""


class ExportedFigures(_Closed):
    """All of it, and what it took to make."""

    grids: list[str]
    seconds: float
    """Of all executions, on one worker each."""
    expected_seconds: float = 0.0
    """What `gcemil benchmark --dry-run` expected before the first of them; 0 where that is not known."""
    cohorts: list[ExportedCohort]
    slide_tests: list[SlideTest] = Field(default_factory=list)
    runs: list[ExportedRun]

    @model_validator(mode="after")
    def _knows_its_cohorts(self) -> ExportedFigures:
        known = {cohort.name for cohort in self.cohorts}
        if lost := next((run.cohort for run in self.runs if run.cohort not in known), None):
            raise ValueError(f"a run on '{lost}', which is none of its cohorts")
        return self


def export_figures(measured: MeasuredResults, folder: Path, *, expected_seconds: float = 0.0) -> Path:
    """<folder>/figures.json, from which the same tables are printed."""
    exported = ExportedFigures(
        grids=measured.grids,
        seconds=round(measured.seconds, 1),
        expected_seconds=round(expected_seconds or measured.expected_seconds, 1),
        cohorts=[_export_cohort(cohort) for cohort in measured.cohorts],
        slide_tests=measured.slide_tests,
        runs=[
            ExportedRun(
                cohort=run.cohort.name,
                host=run.host,
                label=run.label,
                seed=run.seed,
                holds_host=run.holds_host,
                sources={source: pack_rows(run.own_rows(source)) for source in run.sources()},
            )
            for run in measured.runs
        ],
    )
    values = exported.model_dump(mode="json", exclude_unset=True)
    parts = [f"{json.dumps(name)}: {_lay_out(value)}" for name, value in values.items()]
    folder.mkdir(parents=True, exist_ok=True)
    return write_text(folder / FIGURES, "{" + ",\n".join(parts) + "}\n")


def _export_cohort(cohort: CohortFacts) -> ExportedCohort:
    """Without what only this machine knows."""
    record = None if cohort.record is None else {**cohort.record, "settings": {}, "warnings": []}
    return ExportedCohort.model_validate(
        {"name": cohort.name, "dataset": cohort.dataset, "encoder": cohort.encoder, "record": record}
    )


def pack_rows(rows: Iterable[FoldRow]) -> list[Block]:
    """The rows in their order, neighbours of the same shape in one block."""

    def shape(row: FoldRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(row[1].labels), tuple(row[1].values)

    kept = (row for row in rows if row[1].labels.get("class", "all") == "all")
    return [
        Block(
            labels=list(labels),
            values=list(values),
            rows=[[fold, *row.labels.values(), *map(_shorten, row.values.values())] for fold, row in found],
        )
        for (labels, values), found in groupby(kept, shape)
    ]


def _shorten(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _lay_out(value: Any) -> str:
    """Cohorts and runs a line each, so that a change of one is a change of one line."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in value) + "\n]"


def read_exported_results(folder: Path) -> MeasuredResults:
    """What `export_figures` wrote."""
    found = read_record(folder / FIGURES, ExportedFigures, error=RunError, remedy=REMEDY)
    facts = {
        cohort.name: CohortFacts(
            cohort.name,
            cohort.dataset,
            cohort.encoder,
            None if cohort.record is None else cohort.record.model_dump(mode="json", exclude_unset=True),
        )
        for cohort in found.cohorts
    }
    runs = tuple(
        Run(
            facts[run.cohort],
            run.host,
            run.label,
            run.seed,
            None,
            holds_host=run.holds_host,
            exported=run.sources,
        )
        for run in found.runs
    )
    return MeasuredResults(folder, runs, found)
