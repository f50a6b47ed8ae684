"""A run on disk: `Run` and `RunFold` say where the files are, read the text files among them, and check the cohort. No torch.

  config.yaml         settings and cohort; it makes the folder a run
  cohort.json         what the cohort held when the run was begun
  environment.json    versions, machine, commit, seed;  warnings.json    warnings about the cohort
  train.log           messages of training
  summary.json        mean and spread over the finished folds;  diagnostics/    findings joined over the folds
  fold_<k>/           checkpoint.safetensors, history.jsonl, predictions.csv, evidence/, diagnostics/, metrics.json
  targets/<target>/   of a run of several targets: a run of each (runs/targets.py)

metrics.json comes last and marks a fold as finished. A command that reads a run together with its cohort first checks that
the cohort is still what cohort.json says, because a result that mixes two states of a cohort is worthless.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.fingerprint import CohortRecord, record_cohort
from gcemil.bags.folds import Fold, Part
from gcemil.config import TrainSettings
from gcemil.errors import InputError, RunError, UsageError
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


# What the files say


class RunCard(BaseModel):
    """config.yaml of a run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cohort: Path
    settings: TrainSettings
    cohort_fingerprint: str | None = None
    """Of the cohort when the run was begun."""
    targets: tuple[str, ...] = ()
    """Of a run of several targets, each of which has a run of its own (runs/targets.py)."""
    settings_hash: str | None = None


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
        return {mode: figures for mode in MODES if (figures := getattr(self, mode)) is not None}


class _EpochLine(BaseModel):
    """What every line of history.jsonl has; metrics beside it depend on the task."""

    model_config = ConfigDict(extra="allow")

    stage: str
    epoch: int
    terms: dict[str, float]
    warnings: list[str]


# The folder of a fold and of a run


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


class RunFold(_Folder):
    """One fold of a run, whether its files are there or not."""

    resume = _File("resume.safetensors")
    """The state of training after its last epoch."""
    history = _File("history.jsonl")
    """A line per epoch."""
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
            raise RunError(f"{self.path} is not a fold, which is named fold_<number>.")
        return number

    @property
    def run(self) -> Run:
        """The run it belongs to."""
        return Run(self.path.parent)

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
        return self.path / (
            "predictions.csv" if mode == main_mode(modes) else f"predictions_{mode}.csv"
        )

    def evidence(self, slide_id: str) -> Path:
        """The recovered evidence of a test slide."""
        return self.path / "evidence" / f"{slide_id}.h5"

    def explained(self, slide_id: str) -> Path:
        """The folder of a slide that was explained."""
        return self.path / "explain" / slide_id

    def epoch_representations(self, epoch: int) -> Path:
        """The representations after one epoch of training, where the run keeps them."""
        return self.path / "epochs" / f"epoch_{epoch:04d}.h5"

    def kept_epochs(self) -> list[int]:
        """Epochs whose representations lie here."""
        names = (
            path.stem.removeprefix("epoch_") for path in (self.path / "epochs").glob("epoch_*.h5")
        )
        return sorted(int(name) for name in names if name.isdecimal())

    def read_metrics(self) -> FoldMetrics:
        """metrics.json."""
        if not is_file(self.metrics):
            raise RunError(
                f"{self.metrics} does not exist: the fold is not finished. Train it with 'gcemil train'."
            )
        return read_record(
            self.metrics,
            FoldMetrics,
            error=RunError,
            remedy="Make it again with 'gcemil train RUN --again'.",
        )

    def read_history(self) -> list[Record]:
        """A record per epoch; none where training wrote none yet."""
        if not is_file(self.history):
            return []
        records = []
        try:
            for number, line in enumerate(read_text(self.history).splitlines(), start=1):
                where = f"{self.history}, line {number}"
                records.append(parse_json(line, where))
                # Losses may be NaN where training went wrong, which is what the file is there to show.
                validate_as(records[-1], _EpochLine, where, remedy="", finite=False)
        except InputError as error:
            raise RunError(f"{error} Remove the file; training writes it again.") from error
        return records


def main_mode(modes: Collection[str]) -> str:
    """The prediction that counts: F's of a wrapped host, and the host's own of a plain or a given one."""
    return "gce" if "gce" in modes else "full"


class Run(_Folder):
    """A run, whether its files are there or not; its findings are over all folds."""

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

    @cached_property
    def card(self) -> RunCard:
        """config.yaml; RunError where this is not a run."""
        if not is_file(self.config):
            raise RunError(self._describe_missing())
        remedy = "Restore it, or train into another folder with 'gcemil train'."
        try:
            values = read_yaml(self.config)
        except InputError as error:
            raise RunError(f"{error} {remedy}") from error
        return validate_as(values, RunCard, self.config, error=RunError, remedy=remedy)

    @property
    def targets(self) -> dict[str, Run]:
        """The run of each target that was begun, by its name; none for a run of one target."""
        names = self.card.targets if self.is_begun else ()
        runs = {name: Run(self.path / "targets" / name) for name in names}
        return {name: run for name, run in runs.items() if run.is_begun}

    def refuse_targets(self) -> None:
        """Refuse a run of several targets where one question is asked of one of them."""
        if runs := self.targets:
            raise UsageError(
                f"{self.path} has {len(runs)} targets, and evidence is that of one. Give one of: "
                f"{', '.join(str(run.path) for run in runs.values())}."
            )

    def fold(self, number: int) -> RunFold:
        """The fold of this number."""
        return RunFold(self.path / f"fold_{number}")

    def folds_with(self, name: str) -> list[RunFold]:
        """The folds that have this file or folder, by their numbers."""
        numbers = (
            _fold_number(path) for path in self.path.glob("fold_*") if (path / name).exists()
        )
        return [
            self.fold(number)
            for number in sorted(number for number in numbers if number is not None)
        ]

    def trained_folds(self) -> list[RunFold]:
        """The folds that have a network, or the exported fold that this folder is; RunError where there is none."""
        if is_file(self.path / PRETRAINED_WEIGHTS):
            return [RunFold(self.path)]
        if not (folds := self.folds_with("checkpoint.safetensors")):
            if not self.is_begun:
                raise RunError(self._describe_missing())
            raise RunError(f"{self.path} has no trained fold. Train it with 'gcemil train'.")
        return folds

    def finished_folds(self) -> list[RunFold]:
        """The folds that have their metrics."""
        return self.folds_with("metrics.json")

    @property
    def model_warning(self) -> str | None:
        """Why evidence of this run is not certified, and what to try next; None where its model has learned."""
        learning = [fold.read_metrics().details.learning for fold in self.finished_folds()]
        warning = describe_learning([fold for fold in learning if fold is not None])
        if warning is None or not self.is_begun:
            return warning
        settings = self.card.settings
        if settings.host.weights is not None:
            return f"{warning} Its weights came trained: check that features and classes are those it was trained on."
        again = (
            f"gcemil train {self.card.cohort} --host {settings.host.name} --set min_steps={2 * settings.min_steps} "
            f"--out {self.path}_longer"
        )
        return f"{warning} Check labels and features, or train longer: {again}"

    def open_cohort(self) -> tuple[RunCard, Cohort]:
        """The card and the cohort, which must be what the run was trained on."""
        cohort = Cohort.load(self.card.cohort)
        self.check_cohort(cohort)
        return self.card, cohort

    @property
    def training_cohort(self) -> CohortRecord:
        """What the cohort held when the run was begun."""
        if not self.cohort_record.is_file():
            raise RunError(
                f"{self.path} has no {self.cohort_record.name}: an earlier version of gcemil trained it and kept too little "
                "to tell whether the cohort is still the same. Train it again into another folder."
            )
        try:
            return CohortRecord.from_json(read_json(self.cohort_record), self.cohort_record)
        except InputError as error:
            raise RunError(f"{error} Train the run again into another folder.") from error

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse a cohort that changed since the run began."""
        if changed := self.training_cohort.differences(record_cohort(cohort)):
            raise RunError(
                f"{self.path} was trained on other data: {', '.join(changed)} in {cohort.folder} changed since it was begun. "
                "Put back what was there, or train again into another folder (--out)."
            )

    def check_same_cohort(self, against: Path) -> None:
        """Two runs are compared fold by fold only on the same folder with the same content."""
        ours, theirs = self.card, Run(against).card
        if ours.cohort != theirs.cohort:
            raise RunError(
                f"{against} was trained on {theirs.cohort}, {self.path} on {ours.cohort}: their folds are not pairs. "
                "Compare runs of one cohort."
            )
        if ours.cohort_fingerprint != theirs.cohort_fingerprint:
            raise RunError(
                f"{ours.cohort} changed between the training of {self.path} and of {against}: their folds are not pairs. "
                "Train one of them again."
            )

    def write_summary(self) -> Record:
        """Write summary.json: mean and standard deviation over the folds that are complete."""
        folds = self.finished_folds()
        metrics = [fold.read_metrics() for fold in folds]
        details = [fold.details for fold in metrics]
        summary: Record = {
            "folds": [fold.path.name for fold in folds],
            "model_warning": self.model_warning,
            "vote": [fold.vote["weight"] for fold in details if fold.vote is not None] or None,
            "no_evidence": [fold.no_evidence for fold in details if fold.no_evidence] or None,
            "warnings": sorted({text for fold in details for text in fold.warnings}),
            "anchors": sorted({str(fold.anchors) for fold in details}),
        }
        for mode, figures in metrics[0].modes.items() if metrics else ():
            summary[mode] = {}
            for name in figures:
                values = [fold.modes.get(mode, {}).get(name) for fold in metrics]
                mean, deviation = mean_and_deviation(values)
                summary[mode][name] = {"mean": mean, "std": deviation, "folds": values}
        measured = self.folds_with("diagnostics")
        findings: dict[str, list[Record]] = {}
        for name in sorted(
            {path.stem for fold in measured for path in fold.diagnostics.glob("*.json")}
        ):
            joined = join_folds(
                [read_finding(path) for fold in measured if (path := fold.finding(name)).is_file()]
            )
            findings[name] = [
                {"labels": row.labels, "mean": row.values, "std": row.deviations}
                for row in joined.rows
            ]
        if findings:
            summary["diagnostics"] = findings
        if runs := self.targets:
            written = {
                name: read_json(run.summary) for name, run in runs.items() if is_file(run.summary)
            }
            summary["targets"] = {
                name: {mode: own[mode] for mode in MODES if mode in own}
                for name, own in written.items()
            }
        write_json(self.summary, summary)
        return summary

    def _describe_missing(self) -> str:
        """What is here in place of a run, and what to do about it."""
        path = self.path
        if not is_there(path):
            return f"{path} does not exist.{near_path(path)} Give a run folder, as 'gcemil train' writes it."
        if is_file(path / "cohort.yaml"):
            return f"{path} is a cohort, not a run. Train on it with 'gcemil train {path} --out RUN', and give RUN."
        if _fold_number(path) is not None and is_file(path.parent / "config.yaml"):
            return f"{path} is a fold of a run. Give {path.parent}."
        return f"{path} is not a run: it has no config.yaml. Make one with 'gcemil train'."


def _fold_number(folder: Path) -> int | None:
    """The number in fold_<k>; None for a folder of another name."""
    number = folder.name.removeprefix("fold_")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def describe_vote(weights: Sequence[float] | None) -> str | None:
    """How much the evidence decides, in words; None where it was never fitted."""
    if not weights:
        return None
    mean = sum(weights) / len(weights)
    if mean == 0:
        return "The evidence head has weight 0: on validation slides the host alone does at least as well, so the joint prediction is that of the host."
    if mean == 1:
        return "The evidence head has weight 1: the joint prediction is its own."
    spread = "" if len(weights) == 1 else f" (folds {min(weights):.0%} to {max(weights):.0%})"
    return f"The evidence head has a weight of {mean:.0%} in the joint prediction{spread}, the host the rest."


# The bags of a fold


@dataclass(frozen=True)
class FoldParts:
    """The bags a fold trains on, chooses its epoch by, and is judged on."""

    train: Sequence[BagSpec]
    val: Sequence[BagSpec]
    test: Sequence[BagSpec]


def fold_parts(cohort: Cohort, fold: Fold) -> FoldParts:
    """The bags of each part; the slides of a bag are always in the same part."""

    def bags(part: Part) -> list[BagSpec]:
        return [spec for spec in cohort.bags if fold.part_of[spec.slide_ids[0]] == part]

    return FoldParts(bags("train"), bags("val"), bags("test"))
