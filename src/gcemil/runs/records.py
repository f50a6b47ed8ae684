"""The text files of a run folder as checked values: config.yaml, metrics.json, history.jsonl, cohort.json, summary.json. No torch.

Everything that reads a run reads these files here, so that a damaged one is one sentence wherever it is met.

cohort.json says what a run was trained on. Every command that reads a run together with its cohort checks first that the cohort is
still that: a result that mixes folds, labels or features of two states of a cohort would be no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import CohortRecord, record_cohort
from gcemil.config import TrainSettings
from gcemil.errors import InputError, RunError
from gcemil.files import checked, is_file, parse_json, read_json, read_text, read_yaml, write_json
from gcemil.findings import join_folds, mean_and_deviation, read_finding

Record = dict[str, Any]
Figures = dict[str, float | None]
MODES = ("full", "soft", "discrete")
"""How a bag is seen: all patches, all of them gated, the evidence alone."""


COHORT_FILE = "cohort.json"


class RunConfig(BaseModel):
    """What config.yaml of a run says."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cohort: str = Field(min_length=1)
    settings: TrainSettings
    cohort_fingerprint: str | None = None
    settings_hash: str | None = None


class FoldDetails(BaseModel):
    """What training says of a fold besides its figures."""

    model_config = ConfigDict(frozen=True, extra="allow")

    best_epoch: int | None = None
    validation: float | None = None
    warnings: list[str] = Field(default_factory=list)
    caveats: list[str] = Field(default_factory=list)
    anchors: str | None = None
    risk_mean: float = 0.0
    risk_deviation: float = Field(1.0, gt=0)


class FoldMetrics(BaseModel):
    """metrics.json of a finished fold; a plain host has the full bag alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    full: Figures = Field(min_length=1)
    soft: Figures | None = None
    discrete: Figures | None = None
    details: FoldDetails = FoldDetails()

    @property
    def modes(self) -> dict[str, Figures]:
        """The figures by how the bag was seen."""
        return {mode: found for mode in MODES if (found := getattr(self, mode)) is not None}


class EpochLine(BaseModel):
    """What every line of history.jsonl has; metrics beside it depend on the task."""

    model_config = ConfigDict(extra="allow")

    stage: str
    epoch: int
    terms: dict[str, float]
    warnings: list[str]


def read_config(run: Path) -> RunConfig:
    """config.yaml of a run folder."""
    path = run / "config.yaml"
    if not is_file(path):
        raise RunError(f"{run} is no run: it has no config.yaml. Make one with 'gcemil train'.")
    remedy = "Restore it, or train into another folder with 'gcemil train'."
    try:
        values = read_yaml(path)
    except InputError as error:
        raise RunError(f"{error} {remedy}") from error
    return checked(values, RunConfig, path, error=RunError, remedy=remedy)


def finished_folds(run: Path) -> list[Path]:
    """The folders of the folds that have their metrics, in order of their numbers."""
    found = {fold_number(path.parent): path.parent for path in run.glob("fold_*/metrics.json")}
    return [found[number] for number in sorted(number for number in found if number is not None)]


def fold_number(folder: Path) -> int | None:
    """The number in fold_<k>; None for a folder of another name."""
    number = folder.name.removeprefix("fold_")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def read_metrics(fold: Path) -> FoldMetrics:
    """metrics.json of a fold."""
    path = fold / "metrics.json"
    if not is_file(path):
        raise RunError(f"{path} does not exist: the fold is not finished. Train it with 'gcemil train'.")
    remedy = "Make it again with 'gcemil evaluate'."
    try:
        values = read_json(path)
    except InputError as error:
        raise RunError(f"{error} {remedy}") from error
    return checked(values, FoldMetrics, path, error=RunError, remedy=remedy)


def read_history(fold: Path) -> list[Record]:
    """A record per epoch; none where training wrote none yet."""
    path = fold / "history.jsonl"
    if not is_file(path):
        return []
    try:
        lines = [line for line in read_text(path).split("\n") if line.strip()]
        records = [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    except InputError as error:
        raise RunError(f"{error} Remove the file; training writes it again.") from error
    # Losses may be NaN where training went wrong, which is what the file is there to show.
    return checked_lines(records, path)


def checked_lines(records: Sequence[Any], path: Path) -> list[Record]:
    for number, record in enumerate(records, start=1):
        checked(
            record,
            EpochLine,
            f"{path}, line {number}",
            error=RunError,
            remedy="Remove the file.",
            finite=False,
        )
    return list(records)


def write_training_cohort(run: Path, record: CohortRecord) -> None:
    write_json(run / COHORT_FILE, record.to_json())


def read_training_cohort(run: Path) -> CohortRecord:
    """The cohort as it was when the run was begun."""
    path = run / COHORT_FILE
    if not path.is_file():
        raise RunError(
            f"{run} has no {COHORT_FILE}: an earlier version of gcemil trained it and kept too little to tell whether the cohort is "
            "still the same. Train it again into another folder."
        )
    try:
        return CohortRecord.from_json(read_json(path), path)
    except InputError as error:
        raise RunError(f"{error} Train the run again into another folder.") from error


def check_cohort(run: Path, cohort: Cohort, before: CohortRecord | None = None) -> CohortRecord:
    """Refuse a cohort that is not what the run was begun with; `before` is its record, where that was read already."""
    before = before or read_training_cohort(run)
    now = record_cohort(cohort, run)
    if changed := before.differences(now):
        raise RunError(
            f"{run} was trained on other data: {', '.join(changed)} in {cohort.folder} changed since it was begun. "
            "Put back what was there, or train again into another folder (--out)."
        )
    return now


def check_cohort_if_there(run: Path, folder: Path) -> None:
    """The same for a command that can do without the cohort, which may have been moved away."""
    if (folder / "cohort.yaml").is_file():
        check_cohort(run, Cohort.load(folder))


def write_summary(run: Path) -> dict[str, Any]:
    """summary.json from everything the folds hold."""
    summary = summarise(run)
    write_json(run / "summary.json", summary)
    return summary


def summarise(run: Path) -> dict[str, Any]:
    """Mean and standard deviation over the folds that are complete."""
    folds = finished_folds(run)
    loaded = [read_metrics(folder) for folder in folds]
    summary: dict[str, Any] = {"folds": [folder.name for folder in folds]}
    for mode, figures in loaded[0].modes.items() if loaded else ():
        summary[mode] = {
            name: measure_spread([fold.modes.get(mode, {}).get(name) for fold in loaded]) for name in figures
        }
    summary["warnings"] = sorted({text for fold in loaded for text in fold.details.warnings})
    summary["anchors"] = sorted({str(fold.details.anchors) for fold in loaded})
    if found := summarise_findings(run):
        summary["diagnostics"] = found
    return summary


def summarise_findings(run: Path) -> dict[str, Any]:
    """Every diagnostic that was made, its rows joined over the folds that have it."""
    names = sorted({path.stem for path in run.glob("fold_*/diagnostics/*.json")})
    found = {}
    for name in names:
        findings = [read_finding(path) for path in sorted(run.glob(f"fold_*/diagnostics/{name}.json"))]
        found[name] = [
            {"labels": row.labels, "mean": row.values, "std": row.deviations}
            for row in join_folds(findings).rows
        ]
    return found


def measure_spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Over the folds that have the figure."""
    mean, deviation = mean_and_deviation(values)
    return {"mean": mean, "std": deviation, "folds": list(values)}
