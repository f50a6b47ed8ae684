"""The results folder: where things lie, who is at work on what, the log of everything that was executed, and what it found.

  grids/<grid>.yaml                   every grid that was run into this folder
  cohorts/<cohort>, <cohort>.json     simulated cohorts; what each cohort is
  runs/<cohort>/<host>/<arm>/seed_<s> run folders, in the layout of `gcemil train`
  failures/**.json                    why a cohort or fold failed; gone once it succeeds
  claims/**.lock                      held while something is at work
  log.jsonl                           a line when an execution starts, ends or fails
  summary.json, timing.json           figures of all finished folds; what took how long

Tables ask for figures: every one is a row of a *source*, `task` (metrics.json; labelled by mode) or a diagnostic by its name.
Files are read when a table asks; a figures.json that was exported stands in for the run folders (exported.py).

A wrapped run whose evidence leaves its host alone holds the plain host, bit for bit. Where a grid trained no plain arm, its
figures are read from there: the metrics of the full bag, and what the wrapped host says under rules that need no gates.

A claim is a lock of the operating system on a file, which dies with the process that holds it, however it dies: there
are no stale claims to clear. On a network file system it needs working locks (NFS 4, or 3 with lockd); where the
system has none, the claim fails with an error instead of being ignored.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gcemil.errors import BusyError, InputError, RunError
from gcemil.files import checked, is_file, locked_file, parse_json, read_record, read_text
from gcemil.findings import Row, read_finding
from gcemil.rules import find_rule

# What reads grids and run folders is loaded where one is read: exported figures need none of it.
if TYPE_CHECKING:
    from gcemil.benchmark.exported import Block, ExportedFigures, SlideTest
    from gcemil.benchmark.grid import CohortSettings, Grid, Key, RunKey

Record = dict[str, Any]
FoldRow = tuple[int | None, Row]
"""A row and its fold; None for a row about the whole run."""
FIGURES = "figures.json"
HOST, GCE = "host", "gce"
"""The two arms that every table compares."""
TASK_METRIC = {"classification": "macro_f1", "survival": "c_index"}


@dataclass(frozen=True)
class Failure:
    """What failures/**.json says."""

    reason: str


@dataclass(frozen=True)
class Event:
    """What every line of the log says."""

    key: str
    event: str


@dataclass(frozen=True)
class Ended(Event):
    """What a line says of an execution that ended well."""

    seconds: float
    whole: bool


@dataclass(frozen=True)
class Results:
    """Paths inside one results folder."""

    folder: Path

    def path(self, key: Key) -> Path:
        """The cohort, or the fold."""
        return self.folder / key.path

    def run(self, key: RunKey) -> Path:
        """The folder of a run."""
        return self.folder / key.run_path

    def cohort_record(self, cohort: str) -> Path:
        """What is known of a cohort."""
        return self.folder / "cohorts" / f"{cohort}.json"

    def failure(self, key: Key) -> Path:
        """Why a piece of work failed."""
        return self.folder / "failures" / f"{key.path}.json"

    def remove_empty_failures(self) -> None:
        """Folders of failures that are none any more, so that a mended grid lies there like one that never failed."""
        root = self.folder / "failures"
        for folder in (*sorted(root.rglob("*/"), reverse=True), root):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def lock(self, name: object) -> Path:
        """Who works on something."""
        return self.folder / "claims" / f"{name}.lock"

    @property
    def log(self) -> Path:
        """One line per event."""
        return self.folder / "log.jsonl"

    @property
    def summary(self) -> Path:
        """Means over folds and seeds."""
        return self.folder / "summary.json"

    @property
    def timing(self) -> Path:
        """What the work cost."""
        return self.folder / "timing.json"

    def grids(self) -> list[Grid]:
        """Every grid of this folder, by name."""
        from gcemil.benchmark.grid import Grid

        return [Grid.from_yaml(path) for path in sorted((self.folder / "grids").glob("*.yaml"))]


@contextmanager
def claim(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether this process now holds the lock; with `wait` it does."""
    with ExitStack() as held:
        try:
            held.enter_context(locked_file(path, wait=wait))
        except BusyError:
            yield False
            return
        yield True


def append_log(results: Results, key: Key, event: str, **facts: Any) -> None:
    """One line of its own, also when several machines write, and after what a killed process left half written."""
    record = {
        "key": str(key.path), "event": event, "time": time.time(), "host": socket.gethostname(), "pid": os.getpid(), **facts,
    }  # fmt: skip
    with claim(results.lock("log"), wait=True), results.log.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        is_cut = file.read() not in (b"", b"\n")
        file.write(b"\n" * is_cut + json.dumps(record).encode() + b"\n")


def read_log(results: Results) -> list[Record]:
    """Every line; what a killed process left half written is no record."""
    if not results.log.is_file():
        return []
    records = []
    for line in read_text(results.log).split("\n"):
        # A million lines of rubbish must not take a refusal each.
        if not line.startswith("{"):
            continue
        with suppress(InputError):
            record = checked(parse_json(line, results.log), Record, results.log)
            checked(record, Ended if record.get("event") == "end" else Event, results.log)
            records.append(record)
    return records


def read_failure(results: Results, key: Key) -> str | None:
    """Why this failed the last time, None when it did not."""
    path = results.failure(key)
    return read_record(path, Failure, error=RunError, remedy="Remove it.").reason if is_file(path) else None


class _PatchCounts(BaseModel):
    """Patches of a cohort, and of its smallest and largest slide."""

    total: int = Field(ge=1)
    fewest: int
    most: int


class CohortRecord(BaseModel):
    """cohorts/<name>.json: what a prepared cohort is."""

    model_config = ConfigDict(extra="allow")

    task: Literal["classification", "survival"]
    encoder: str
    feature_dim: int = Field(ge=1)
    slides: int = Field(ge=1)
    cases: int = Field(ge=1)
    bags: int = Field(ge=1)
    bag_unit: str = "slide"
    patches: _PatchCounts
    provenance: dict[str, Any]
    settings: dict[str, Any] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    classes: dict[str, int] = Field(default_factory=dict)
    events: int = 0


def read_cohort_record(results: Results, name: str) -> Record | None:
    """What was written of a cohort when it was prepared; None before."""
    path = results.cohort_record(name)
    if not is_file(path):
        return None
    remedy = "Remove it; 'gcemil benchmark' writes it again."
    found = read_record(path, CohortRecord, error=RunError, remedy=remedy)
    return found.model_dump(mode="json", exclude_unset=True)


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
    leaves_host_alone: bool = False
    """Whether its host learned as if there were no wrapper."""
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
        from gcemil.benchmark.exported import read_exported_results

        return read_exported_results(folder)
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
        runs.append(Run(facts[cohort], host, label, seed, path.parent, settings.leaves_host_alone))
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
            found.append(replace(run, label=HOST, folder=None, _own={"task": full}, _all={}))
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
