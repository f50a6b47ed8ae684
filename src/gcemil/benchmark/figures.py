"""The figures that tables print: ours from a results folder, the paper's from the one data file that holds them.

Known here and nowhere else in the tables: where runs, cohorts and findings lie. Every figure is a row of a
*source*: `task` (metrics.json; labelled by mode), or a diagnostic by its name. Files are read when a table asks.

A wrapped run whose evidence leaves its host alone holds the plain host, bit for bit. Where a grid trained no plain arm, its
figures are read from there: the metrics of the full bag, and what the wrapped host says under rules that need no gates.

`figures.json` holds all of it without the run folders: small enough to be kept beside the code, and read in their place.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gcemil.benchmark.exported import (
    FIGURES,
    Block,
    ExportedCohort,
    ExportedFigures,
    ExportedRun,
    FoldRow,
    SlideTest,
    pack_rows,
    read_exported,
    write_exported,
)
from gcemil.benchmark.results import Record, Results, read_cohort_record, read_log
from gcemil.errors import InputError, RunError, UsageError
from gcemil.files import is_file, parse_yaml
from gcemil.findings import Row, read_finding
from gcemil.resources import HERE as RESOURCES
from gcemil.rules import find_rule

# What reads run folders is loaded where one is read: figures.json needs none of it.
if TYPE_CHECKING:
    from gcemil.benchmark.grid import CohortSettings
    from gcemil.config import TrainSettings

HOST, GCE = "host", "gce"
"""The two arms that every table compares."""
TASK_METRIC = {"classification": "macro_f1", "survival": "c_index"}


@dataclass(frozen=True)
class CohortFacts:
    """What a table says of a cohort: the dataset it is or stands for, its size, whether it is real."""

    name: str
    dataset: str
    encoder: str | None
    """The encoder as the grid names it; None where the grid does not say."""
    record: Record | None
    """What the benchmark counted when it prepared the cohort."""

    @property
    def task(self) -> str | None:
        return self.record["task"] if self.record else None

    @property
    def is_simulated(self) -> bool:
        return self.record is not None and "simulator" in self.record["provenance"]

    @property
    def is_stand_in(self) -> bool:
        """Whether no encoder was run: the features themselves were simulated."""
        return self.record is not None and str(self.record["encoder"]).startswith("simulated-")

    @property
    def description(self) -> str:
        if self.record is None:
            return f"{self.name} (no record of it)"
        kind = f"simulated, size {self.record['provenance'].get('size')}" if self.is_simulated else "real"
        return f"{self.name} ({self.record['slides']} slides, {self.record['feature_dim']}-d, {kind})"


@dataclass(frozen=True)
class Run:
    """One run folder of the results."""

    cohort: CohortFacts
    host: str
    label: str
    """The arm, or the ablation's name."""
    seed: int
    folder: Path | None
    """None: its rows were exported, or read when it was made."""
    settings: TrainSettings | None = None
    holds_host: bool = False
    """Whether it stands for the plain host too, since no plain arm was trained."""
    exported: Mapping[str, Sequence[Block]] = field(default_factory=dict, compare=False, repr=False)
    _own: dict[str, list[FoldRow]] = field(default_factory=dict, compare=False, repr=False)
    _all: dict[str, list[FoldRow]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def place(self) -> tuple[str, str, int]:
        """What a plain and a wrapped run must share to be compared."""
        return self.cohort.name, self.host, self.seed

    def rows(self, source: str) -> list[FoldRow]:
        """All rows of a source, fold by fold; empty when nobody made it."""
        if source not in self._all:
            own = self.own_rows(source)
            self._all[source] = with_plain_rows(own) if self.holds_host else own
        return self._all[source]

    def own_rows(self, source: str) -> list[FoldRow]:
        """Those that were measured under this label."""
        if source not in self._own:
            self._own[source] = self._read_rows(source)
        return self._own[source]

    def _read_rows(self, source: str) -> list[FoldRow]:
        if self.folder is None:
            return [row for block in self.exported.get(source, ()) for row in block.unpack()]
        return task_rows(self.folder) if source == "task" else finding_rows(self.folder, source)

    def sources(self) -> list[str]:
        """The task, and every diagnostic that the run, or a fold of it, has."""
        if self.folder is None:
            return list(dict.fromkeys((*self._own, *self.exported)))
        found = [*self.folder.glob("fold_*/diagnostics/*.json"), *self.folder.glob("diagnostics/*.json")]
        return ["task", *sorted({path.stem for path in found})]

    @property
    def leaves_host_alone(self) -> bool:
        """Whether its host learned as if there were no wrapper."""
        evidence = None if self.settings is None else self.settings.evidence
        if self.settings is None or evidence is None:
            return False
        return not evidence.teaches_host and not self.settings.host.is_frozen


@dataclass(frozen=True)
class MeasuredResults:
    """Everything a results folder holds."""

    folder: Path
    runs: tuple[Run, ...]
    exported: ExportedFigures | None = None
    """The file they were read from, where that is not run folders."""

    @cached_property
    def answers(self) -> dict[Hashable, Any]:
        """What was found for questions that may be asked again (tables/comparison.py)."""
        return {}

    @property
    def grids(self) -> list[str]:
        """The names of the grids."""
        return self.exported.grids if self.exported else [grid.name for grid in Results(self.folder).grids()]

    @cached_property
    def seconds(self) -> float:
        """What all executions took, on one worker each; 0 where no record of it is left."""
        if self.exported:
            return self.exported.seconds
        return sum(line["seconds"] for line in read_log(Results(self.folder)) if line["event"] == "end")

    @property
    def expected_seconds(self) -> float:
        """What they were expected to take before the first of them; 0 where no export says so."""
        return self.exported.expected_seconds if self.exported else 0.0

    @cached_property
    def slide_tests(self) -> list[SlideTest]:
        """Permutation tests over test slides, by dataset and host."""
        if self.exported:
            return self.exported.slide_tests
        from gcemil.benchmark.slide_tests import run_slide_tests

        return run_slide_tests(self)

    @cached_property
    def cohorts(self) -> tuple[CohortFacts, ...]:
        return tuple({run.cohort.name: run.cohort for run in self.runs}.values())

    @cached_property
    def main_encoders(self) -> dict[str, str | None]:
        """Per dataset the encoder whose cohorts a table about other things takes: the unnamed, else the last that is named."""
        found: dict[str, str | None] = {}
        for name in {cohort.dataset for cohort in self.cohorts}:
            encoders = [cohort.encoder for cohort in self.dataset(name)]
            found[name] = None if None in encoders else encoders[-1]
        return found

    def dataset(self, name: str) -> tuple[CohortFacts, ...]:
        """The cohorts that are, or stand for, a dataset of the paper."""
        return tuple(cohort for cohort in self.cohorts if cohort.dataset == name)


def read_results(folder: Path) -> MeasuredResults:
    """The runs of a results folder, by cohort, host, label and seed."""
    configs = sorted((folder / "runs").glob("*/*/*/seed_*/config.yaml"))
    if not configs and is_file(folder / FIGURES):
        return _read_exported_results(folder)
    if not configs:
        if not folder.exists():
            raise RunError(f"{folder} does not exist. Give the results folder of 'gcemil benchmark'.")
        raise RunError(f"{folder} holds no run. Make some with 'gcemil benchmark GRID.yaml --out {folder}'.")
    from gcemil.runs.folder import read_run

    results = Results(folder)
    planned = {name: cohort for grid in results.grids() for name, cohort in grid.cohorts.items()}
    facts: dict[str, CohortFacts] = {}
    runs = []
    for path in configs:
        cohort, _, label, _ = path.parent.relative_to(folder / "runs").parts
        if cohort not in facts:
            facts[cohort] = cohort_facts(results, cohort, planned.get(cohort))
        settings = read_run(path.parent).settings
        host, seed = settings.host.name, parse_seed(path.parent)
        runs.append(Run(facts[cohort], host, label, seed, path.parent, settings))
    return MeasuredResults(folder, add_plain_runs(runs))


def add_plain_runs(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs, and the plain hosts that wrapped runs hold where the grid trained none."""
    trained = {run.place for run in runs if run.label == HOST}
    found: list[Run] = []
    for run in runs:
        if run.place in trained or not run.leaves_host_alone:
            found.append(run)
            continue
        found.append(replace(run, holds_host=True, _own={}, _all={}))
        if run.label == GCE:
            # A plain host has no gated prediction and no evidence.
            full = [(fold, row) for fold, row in run.rows("task") if row.labels["mode"] == "full"]
            found.append(replace(run, label=HOST, folder=None, settings=None, _own={"task": full}, _all={}))
    return tuple(found)


def with_plain_rows(rows: Sequence[FoldRow]) -> list[FoldRow]:
    """The rows, and those of the wrapped host once more as the plain host's, rules made by the wrapper left out."""
    if any(row.labels.get("network") == "plain" for _, row in rows):
        return list(rows)
    same = [
        (fold, replace(row, labels={**row.labels, "network": "plain"}))
        for fold, row in rows
        if row.labels.get("network") == "wrapped" and not find_rule(row.labels.get("rule", "")).is_ours
    ]
    return [*rows, *same]


def parse_seed(run: Path) -> int:
    number = run.name.removeprefix("seed_")
    if not (number.isascii() and number.isdigit()):
        raise RunError(f"{run} is no run of a grid: its folder is named seed_<number>. Move it away.")
    return int(number)


def cohort_facts(results: Results, name: str, planned: CohortSettings | None) -> CohortFacts:
    """From the cohort's record and from the grid, which says what the cohort stands for."""
    record = read_cohort_record(results, name)
    provenance = record["provenance"] if record else {}
    stated = (planned.dataset or planned.profile) if planned else None
    dataset = stated or provenance.get("profile") or provenance.get("recipe") or name
    return CohortFacts(name, str(dataset), planned.encoder if planned else None, record)


def task_rows(run: Path) -> list[FoldRow]:
    """metrics.json of every fold: one row per mode, with the task's own metric under `task_metric` too."""
    from gcemil.runs.folder import RunFolder, read_metrics

    rows: list[FoldRow] = []
    for fold in RunFolder(run).finished_folds():
        for mode, values in read_metrics(fold.path).modes.items():
            main = next((name for name in TASK_METRIC.values() if name in values), "")
            rows.append((fold.number, Row({"mode": mode}, {**values, "task_metric": values.get(main)})))
    return rows


def finding_rows(run: Path, name: str) -> list[FoldRow]:
    """A diagnostic's rows: of every fold that has it, or of the whole run where it is about that."""
    from gcemil.runs.folder import RunFolder

    folds = RunFolder(run).folds_with(f"diagnostics/{name}.json")
    if folds:
        return [(fold.number, row) for fold in folds for row in read_finding(fold.finding(name)).rows]
    whole = RunFolder(run).finding(name)
    return [(None, row) for row in read_finding(whole).rows] if whole.is_file() else []


def export_figures(measured: MeasuredResults, folder: Path, *, expected_seconds: float = 0.0) -> Path:
    """<folder>/figures.json, from which the same tables are printed."""
    exported = ExportedFigures(
        grids=measured.grids,
        seconds=round(measured.seconds, 1),
        expected_seconds=round(expected_seconds or measured.expected_seconds, 1),
        cohorts=[_export_cohort(cohort) for cohort in measured.cohorts],
        slide_tests=measured.slide_tests,
        runs=[_export_run(run) for run in measured.runs],
    )
    return write_exported(folder, exported)


def _export_cohort(cohort: CohortFacts) -> ExportedCohort:
    """Without what only this machine knows."""
    record = None if cohort.record is None else {**cohort.record, "settings": {}, "warnings": []}
    return ExportedCohort.model_validate(
        {"name": cohort.name, "dataset": cohort.dataset, "encoder": cohort.encoder, "record": record}
    )


def _export_run(run: Run) -> ExportedRun:
    sources = {source: pack_rows(run.own_rows(source)) for source in run.sources()}
    return ExportedRun(
        cohort=run.cohort.name,
        host=run.host,
        label=run.label,
        seed=run.seed,
        holds_host=run.holds_host,
        sources=sources,
    )


def _read_exported_results(folder: Path) -> MeasuredResults:
    """What `export_figures` wrote."""
    found = read_exported(folder)
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
    return read_figures(RESOURCES / "paper" / "figures.yaml")


def read_figures(path: Path) -> PaperFigures:
    try:
        return PaperFigures.model_validate(parse_yaml(path.read_text(encoding="utf-8"), path))
    except (OSError, InputError, ValidationError) as error:
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
