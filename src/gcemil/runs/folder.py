"""The folder of a run: where its files stand, and the text files among them as checked values. No torch.

Everything that reads a run reads its files here, so that a damaged one is one sentence wherever it is met.

  config.yaml         settings and cohort; it makes the folder a run
  cohort.json         what the cohort held when the run was begun
  environment.json    versions, machine, commit, seed;  warnings.json    warnings about the cohort
  train.log           messages of training
  summary.json        mean and spread over the finished folds;  diagnostics/    findings joined over the folds
  fold_<k>/           checkpoint.safetensors, history.jsonl, predictions.csv, evidence/, diagnostics/, metrics.json

metrics.json comes last and marks a fold as finished. Every command that reads a run together with its cohort checks first
that the cohort is still what cohort.json says: a result that mixes folds, labels or features of two states of a cohort
would be no result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.fingerprint import CohortRecord, record_cohort
from gcemil.bags.folds import Fold, Part
from gcemil.config import TrainSettings
from gcemil.errors import InputError, RunError
from gcemil.files import (
    is_file,
    parse_json,
    read_json,
    read_record,
    read_text,
    read_yaml,
    validate_as,
    write_json,
)
from gcemil.findings import Figures, join_folds, mean_and_deviation, read_finding
from gcemil.records import MODES
from gcemil.runs.learning import Learning, describe_learning
from gcemil.wording import is_there, near_path

Record = dict[str, Any]
PRETRAINED_CONFIG, PRETRAINED_WEIGHTS = "config.json", "model.safetensors"
"""A trained fold on its own, as `gcemil export --pretrained` writes it (runs/pretrained.py)."""


# Where files stand


class _File:
    """A file or folder of fixed name inside a folder, whether it is there or not."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: _Folder, owner: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class _Folder:
    path: Path

    diagnostics = _File("diagnostics")
    """The folder of findings."""

    def finding(self, name: str) -> Path:
        """What a diagnostic found."""
        return self.diagnostics / f"{name}.json"


class FoldFolder(_Folder):
    """The files of one fold, whether they are there or not."""

    resume = _File("resume.safetensors")
    """The state of training after its last epoch."""
    history = _File("history.jsonl")
    """A line per epoch."""
    tensorboard = _File("tensorboard")
    """The folder of curves, where they are drawn."""
    progress = _File("progress.json")
    """How much of the epoch under way is done, while the fold is trained."""
    timing = _File("timing.json")
    """How long the fold took."""
    metrics = _File("metrics.json")
    """Figures of the test bags; written last."""
    representations = _File("representations.h5")
    """The representation of every bag."""
    adapter = _File("adapter.h5")
    """How far the feature adapter moves patches, where the selector has one."""

    @property
    def number(self) -> int:
        """The k of fold_<k>."""
        number = _fold_number(self.path)
        if number is None:
            raise RunError(f"{self.path} is no fold: its folder is named fold_<number>.")
        return number

    @property
    def run(self) -> RunFolder:
        """The run it belongs to."""
        return RunFolder(self.path.parent)

    @property
    def checkpoint(self) -> Path:
        """The trained network; of a fold that was exported, its weights."""
        exported = self.path / PRETRAINED_WEIGHTS
        return exported if is_file(exported) else self.path / "checkpoint.safetensors"

    @property
    def is_finished(self) -> bool:
        """Whether everything of the fold was written."""
        return self.metrics.is_file()

    def predictions(self, mode: str, modes: Collection[str]) -> Path:
        """One line per bag. predictions.csv is the main prediction: that of F, or of a plain or a given host."""
        return self.path / ("predictions.csv" if mode == main_mode(modes) else f"predictions_{mode}.csv")

    def evidence(self, slide_id: str) -> Path:
        """The recovered evidence of a test slide."""
        return self.path / "evidence" / f"{slide_id}.h5"

    def explained(self, slide_id: str) -> Path:
        """The folder of a slide that was explained."""
        return self.path / "explain" / slide_id

    def epoch_representations(self, epoch: int) -> Path:
        """The same after one epoch of training, where the run keeps them."""
        return self.path / "epochs" / f"epoch_{epoch:04d}.h5"

    def kept_epochs(self) -> list[int]:
        """Epochs whose representations lie here."""
        names = (path.stem.removeprefix("epoch_") for path in (self.path / "epochs").glob("epoch_*.h5"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def main_mode(modes: Collection[str]) -> str:
    """The prediction that counts: F's of a wrapped host, and the host's own of a plain or a given one."""
    return "gce" if "gce" in modes else "full"


class RunFolder(_Folder):
    """The files of a run, whether they are there or not; its findings are over all folds."""

    config = _File("config.yaml")
    """Settings and cohort."""
    cohort_record = _File("cohort.json")
    """What the cohort held when the run was begun."""
    environment = _File("environment.json")
    """Versions, machine, commit, seed."""
    log = _File("train.log")
    """The messages of training, epoch by epoch."""
    warnings = _File("warnings.json")
    """Warnings of the validation of the cohort."""
    summary = _File("summary.json")
    """Mean and spread over the finished folds."""
    new_slides = _File("predictions")
    """The folder of slides outside the cohort, predicted and explained."""

    @property
    def is_begun(self) -> bool:
        """Whether this is a run: it has its config.yaml."""
        return self.config.is_file()

    def fold(self, number: int) -> FoldFolder:
        """The fold of this number."""
        return FoldFolder(self.path / f"fold_{number}")

    def folds_with(self, name: str) -> list[FoldFolder]:
        """The folds that have this file or folder, by their numbers."""
        folds = self.path.glob("fold_*")
        found = {_fold_number(path): FoldFolder(path) for path in folds if (path / name).exists()}
        return [found[number] for number in sorted(number for number in found if number is not None)]

    def trained_folds(self) -> list[FoldFolder]:
        """The folds that have a network, or the exported fold that this folder is; RunError where there is none."""
        if is_file(self.path / PRETRAINED_WEIGHTS):
            return [FoldFolder(self.path)]
        if not (found := self.folds_with("checkpoint.safetensors")):
            if not self.is_begun:
                raise RunError(_describe_no_run(self.path))
            raise RunError(f"{self.path} has no trained fold. Train it with 'gcemil train'.")
        return found

    def finished_folds(self) -> list[FoldFolder]:
        """The folds that have their metrics."""
        return self.folds_with("metrics.json")


def _fold_number(folder: Path) -> int | None:
    """The number in fold_<k>; None for a folder of another name."""
    number = folder.name.removeprefix("fold_")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


# What they say


class RunCard(BaseModel):
    """config.yaml of a run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cohort: Path
    settings: TrainSettings
    cohort_fingerprint: str | None = None
    """Of the cohort when the run was begun."""
    settings_hash: str | None = None

    @field_validator("cohort", mode="before")
    @classmethod
    def _is_named(cls, cohort: Any) -> Any:
        if cohort == "":
            raise ValueError("a run names the folder of its cohort")
        return cohort


class FoldDetails(BaseModel):
    """Facts about the training of a fold."""

    model_config = ConfigDict(frozen=True, extra="allow")

    best_epoch: int | None = None
    validation: float | None = None
    warnings: list[str] = Field(default_factory=list)
    caveats: list[str] = Field(default_factory=list)
    anchors: str | None = None
    risk_mean: float = 0.0
    risk_deviation: float = Field(1.0, gt=0)
    host_risk_mean: float = 0.0
    host_risk_deviation: float | None = Field(None, gt=0)
    """Of the host alone, where the evidence has a vote beside it."""
    learning: Learning | None = None
    vote: dict[str, Any] | None = None
    """How much the evidence head decides: its weight, and what it reads."""
    no_evidence: dict[str, Any] | None = None
    """On slides without a lesion: the promised and the reached rate of confirmed evidence."""


class FoldMetrics(BaseModel):
    """metrics.json of a finished fold; a plain host has the full bag alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    full: Figures = Field(min_length=1)
    head: Figures | None = None
    gce: Figures | None = None
    soft: Figures | None = None
    discrete: Figures | None = None
    opinion: Figures | None = None
    details: FoldDetails = FoldDetails()

    @property
    def modes(self) -> dict[str, Figures]:
        """The figures by how the bag was seen."""
        return {mode: found for mode in MODES if (found := getattr(self, mode)) is not None}


class _EpochLine(BaseModel):
    """What every line of history.jsonl has; metrics beside it depend on the task."""

    model_config = ConfigDict(extra="allow")

    stage: str
    epoch: int
    terms: dict[str, float]
    warnings: list[str]


def read_run(run: Path) -> RunCard:
    """The card of a run."""
    path = RunFolder(run).config
    if not is_file(path):
        raise RunError(_describe_no_run(run))
    remedy = "Restore it, or train into another folder with 'gcemil train'."
    try:
        values = read_yaml(path)
    except InputError as error:
        raise RunError(f"{error} {remedy}") from error
    return validate_as(values, RunCard, path, error=RunError, remedy=remedy)


def _describe_no_run(run: Path) -> str:
    """What stands in the place of a run, and what to do about it."""
    if not is_there(run):
        return f"{run} does not exist.{near_path(run)} Give a run folder, as 'gcemil train' writes it."
    if is_file(run / "cohort.yaml"):
        return f"{run} is a cohort, not a run. Train on it with 'gcemil train {run} --out RUN', and give RUN."
    if _fold_number(run) is not None and is_file(run.parent / "config.yaml"):
        return f"{run} is a fold of a run. Give {run.parent}."
    return f"{run} is no run: it has no config.yaml. Make one with 'gcemil train'."


def read_metrics(fold: Path) -> FoldMetrics:
    """metrics.json of a fold."""
    path = FoldFolder(fold).metrics
    if not is_file(path):
        raise RunError(f"{path} does not exist: the fold is not finished. Train it with 'gcemil train'.")
    return read_record(path, FoldMetrics, error=RunError, remedy="Make it again with 'gcemil evaluate'.")


def read_history(fold: Path) -> list[Record]:
    """A record per epoch; none where training wrote none yet."""
    path = FoldFolder(fold).history
    if not is_file(path):
        return []
    try:
        lines = [line for line in read_text(path).split("\n") if line.strip()]
        records = [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    except InputError as error:
        raise RunError(f"{error} Remove the file; training writes it again.") from error
    remedy = "Remove the file."
    for number, record in enumerate(records, start=1):
        # Losses may be NaN where training went wrong, which is what the file is there to show.
        validate_as(record, _EpochLine, f"{path}, line {number}", error=RunError, remedy=remedy, finite=False)
    return records


def read_model_warning(run: Path) -> str | None:
    """Why evidence of this run is not certified, and what to try next; None where its model has learned."""
    folds = [read_metrics(fold.path).details.learning for fold in RunFolder(run).finished_folds()]
    warning = describe_learning([one for one in folds if one is not None])
    if warning is None or not RunFolder(run).is_begun:
        return warning
    card = read_run(run)
    if card.settings.host.weights is not None:
        return f"{warning} Its weights came trained: check that features and classes are those it was trained on."
    longer = f"--set min_steps={2 * card.settings.min_steps}"
    again = f"gcemil train {card.cohort} --host {card.settings.host.name} {longer} --out {run}_longer"
    return f"{warning} Check labels and features, or train longer: {again}"


# Its cohort


def open_cohort(run: Path) -> tuple[RunCard, Cohort]:
    """The card of a run and its cohort, which must be what the run was trained on."""
    card = read_run(run)
    cohort = Cohort.load(card.cohort)
    check_cohort(run, cohort)
    return card, cohort


def check_same_cohort(run: Path, against: Path) -> None:
    """Two runs are compared fold by fold only on the same folder with the same content."""
    ours, theirs = read_run(run), read_run(against)
    if ours.cohort != theirs.cohort:
        raise RunError(
            f"{against} was trained on {theirs.cohort}, {run} on {ours.cohort}: their folds are not pairs. "
            "Compare runs of one cohort."
        )
    if ours.cohort_fingerprint != theirs.cohort_fingerprint:
        raise RunError(
            f"{ours.cohort} changed between the training of {run} and of {against}: their folds are not pairs. "
            "Train one of them again."
        )


def read_training_cohort(run: Path) -> CohortRecord:
    """The cohort as it was when the run was begun."""
    path = RunFolder(run).cohort_record
    if not path.is_file():
        raise RunError(
            f"{run} has no {path.name}: an earlier version of gcemil trained it and kept too little to tell whether the cohort is "
            "still the same. Train it again into another folder."
        )
    try:
        return CohortRecord.from_json(read_json(path), path)
    except InputError as error:
        raise RunError(f"{error} Train the run again into another folder.") from error


def check_cohort(run: Path, cohort: Cohort) -> None:
    """Refuse a cohort that changed since the run began."""
    if changed := read_training_cohort(run).differences(record_cohort(cohort)):
        raise RunError(
            f"{run} was trained on other data: {', '.join(changed)} in {cohort.folder} changed since it was begun. "
            "Put back what was there, or train again into another folder (--out)."
        )


def check_cohort_if_there(run: Path, folder: Path) -> None:
    """The same for a command that can do without the cohort, which may have been moved away."""
    if (folder / "cohort.yaml").is_file():
        check_cohort(run, Cohort.load(folder))


@dataclass(frozen=True)
class FoldParts:
    """The bags a fold trains on, chooses its epoch by, and is judged on."""

    train: Sequence[BagSpec]
    val: Sequence[BagSpec]
    test: Sequence[BagSpec]


def fold_parts(cohort: Cohort, fold: Fold) -> FoldParts:
    """The bags of each part; the slides of a bag always stand together."""

    def bags(part: Part) -> list[BagSpec]:
        return [spec for spec in cohort.bags if fold.part_of[spec.slide_ids[0]] == part]

    return FoldParts(bags("train"), bags("val"), bags("test"))


# Its summary


def write_summary(run: Path) -> dict[str, Any]:
    """Write summary.json: mean and standard deviation over the folds that are complete."""
    folds = RunFolder(run).finished_folds()
    loaded = [read_metrics(fold.path) for fold in folds]
    summary: dict[str, Any] = {"folds": [fold.path.name for fold in folds]}
    for mode, figures in loaded[0].modes.items() if loaded else ():
        summary[mode] = {
            name: measure_spread([fold.modes.get(mode, {}).get(name) for fold in loaded]) for name in figures
        }
    summary["model_warning"] = read_model_warning(run)
    weights = [fold.details.vote["weight"] for fold in loaded if fold.details.vote is not None]
    summary["vote"] = weights or None
    summary["no_evidence"] = [fold.details.no_evidence for fold in loaded if fold.details.no_evidence] or None
    summary["warnings"] = sorted({text for fold in loaded for text in fold.details.warnings})
    summary["anchors"] = sorted({str(fold.details.anchors) for fold in loaded})
    if found := _summarise_findings(run):
        summary["diagnostics"] = found
    write_json(RunFolder(run).summary, summary)
    return summary


def describe_vote(weights: Sequence[float] | None) -> str | None:
    """How much the evidence decides, in words; None where it was never fitted."""
    if not weights:
        return None
    mean = sum(weights) / len(weights)
    if mean == 0:
        return "The evidence has no vote: on validation slides the host alone does at least as well, so gce is the host."
    if mean == 1:
        return "The evidence decides alone: the host has no say in gce."
    spread = "" if len(weights) == 1 else f" (folds {min(weights):.0%} to {max(weights):.0%})"
    return f"The evidence carries {mean:.0%} of the gce prediction{spread}, the host the rest."


def _summarise_findings(run: Path) -> dict[str, Any]:
    """Every diagnostic that was made, its rows joined over the folds that have it."""
    folds = RunFolder(run).folds_with("diagnostics")
    names = sorted({path.stem for fold in folds for path in fold.diagnostics.glob("*.json")})
    found = {}
    for name in names:
        findings = [read_finding(fold.finding(name)) for fold in folds if fold.finding(name).is_file()]
        found[name] = [
            {"labels": row.labels, "mean": row.values, "std": row.deviations}
            for row in join_folds(findings).rows
        ]
    return found


def measure_spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Over the folds that have the figure."""
    mean, deviation = mean_and_deviation(values)
    return {"mean": mean, "std": deviation, "folds": list(values)}
