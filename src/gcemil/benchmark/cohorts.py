"""A cohort of a grid on disk: simulated once by whoever comes first, or a folder that exists; checked once either way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gcemil.bags.arrays import read_patch_layout
from gcemil.bags.cohort import Cohort, Task
from gcemil.bags.fingerprint import record_cohort
from gcemil.bags.folds import fold_indices, make_folds, write_folds
from gcemil.bags.guards import select_errors, validate
from gcemil.benchmark.grid import CohortSettings, Grid
from gcemil.benchmark.plan import CohortKey
from gcemil.benchmark.results import Record, Results, read_failure
from gcemil.errors import CohortError, RunError
from gcemil.files import is_file, read_record, whole_folder, write_json
from gcemil.simulation.simulate import simulate


class PatchCounts(BaseModel):
    """Patches of a cohort, and of its smallest and largest slide."""

    total: int = Field(ge=1)
    fewest: int
    most: int


class CohortRecord(BaseModel):
    """cohorts/<name>.json: what a prepared cohort is."""

    model_config = ConfigDict(extra="allow")

    task: Task
    encoder: str
    feature_dim: int = Field(ge=1)
    slides: int = Field(ge=1)
    cases: int = Field(ge=1)
    bags: int = Field(ge=1)
    bag_unit: str = "slide"
    patches: PatchCounts
    provenance: dict[str, Any]
    settings: dict[str, Any] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    classes: dict[str, int] = Field(default_factory=dict)
    events: int = 0


def prepare_cohort(grid: Grid, results: Results, key: CohortKey) -> None:
    """Make the cohort if it is a simulated one, check all of it, and write down what it is."""
    settings = grid.cohorts[key.cohort]
    if settings.folder is None and not results.path(key).is_dir():
        simulate_cohort(settings, results.path(key))
    folder = cohort_folder(grid, results, key.cohort)
    problems = validate(folder)
    if errors := select_errors(problems):
        first = errors[0]
        raise CohortError(
            f"{folder} has {len(errors)} errors; the first: {first.where}: {first.what}. {first.remedy} "
            f"See all with 'gcemil validate {folder}'."
        )
    wanted = {fold for folds in (grid.folds, *grid.folds_by_host.values()) for fold in folds}
    if missing := sorted(wanted - set(fold_indices(folder))):
        raise CohortError(f"{folder} has no fold {missing[0]}. Make the folds with 'gcemil split {folder}'.")
    cohort = Cohort.load(folder)
    record = describe_cohort(cohort) | {
        "fingerprint": record_cohort(cohort).fingerprint,
        "settings": settings.model_dump(mode="json"),
        "warnings": [f"{problem.where}: {problem.what}" for problem in problems],
    }
    results.cohort_record(key.cohort).parent.mkdir(parents=True, exist_ok=True)
    write_json(results.cohort_record(key.cohort), record)


def simulate_cohort(settings: CohortSettings, folder: Path) -> None:
    """Simulate beside the place and rename: a cohort is there with its folds, or it is not there."""
    with whole_folder(folder) as aside:
        cohort = simulate(
            str(settings.profile),
            aside,
            size=settings.size,
            seed=settings.seed,
            slides=settings.slides,
            dim=settings.dim,
            dials=settings.dials,
        )
        write_folds(cohort, make_folds(cohort, seed=settings.seed))


def cohort_folder(grid: Grid, results: Results, name: str) -> Path:
    return grid.cohorts[name].folder or results.path(CohortKey(name))


def describe_cohort(cohort: Cohort) -> Record:
    """The dataset card, counted from the files."""
    card = cohort.card
    patches = [read_patch_layout(cohort.feature_file(row.slide_id))[0] for row in cohort.slides]
    found: dict[str, Any] = {
        "task": card.task,
        "encoder": card.encoder,
        "feature_dim": card.feature_dim,
        "slides": len(cohort.slides),
        "cases": len({row.case_id for row in cohort.slides}),
        "bags": len(cohort.bags),
        "bag_unit": cohort.bag_unit,
        "patches": {"total": sum(patches), "fewest": min(patches), "most": max(patches)},
        "provenance": card.provenance,
    }
    if card.task == "classification":
        labels = Counter(row.label for row in cohort.slides)
        return found | {"classes": {name: labels[name] for name in card.classes}}
    return found | {"events": sum({row.case_id: row.event or 0 for row in cohort.slides}.values())}


def open_cohort(grid: Grid, results: Results, name: str) -> tuple[Cohort, list[str]]:
    """A prepared cohort and its warnings; one that could not be prepared gives the reason."""
    record = read_cohort_record(results, name)
    if record is None:
        reason = read_failure(results, CohortKey(name)) or "it was not prepared"
        raise RunError(f"Cohort '{name}' is not there: {reason}")
    cohort = Cohort.load(cohort_folder(grid, results, name))
    if record_cohort(cohort).fingerprint != record.get("fingerprint"):
        raise RunError(
            f"{cohort.folder} changed since '{name}' was prepared in {results.folder}, and a grid is not trained on two states "
            "of a cohort. Put back what was there, or give another --out."
        )
    return cohort, record["warnings"]


def read_cohort_record(results: Results, name: str) -> Record | None:
    path = results.cohort_record(name)
    if not is_file(path):
        return None
    remedy = "Remove it; 'gcemil benchmark' writes it again."
    found = read_record(path, CohortRecord, error=RunError, remedy=remedy)
    return found.model_dump(mode="json", exclude_unset=True)
