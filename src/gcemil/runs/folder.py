"""A run on disk: where its files are, what the text files among them hold. No torch.

  config.yaml         settings and cohort; it makes the folder a run
  cohort.json         hashes of the cohort when the run was begun
  environment.json    versions, machine, commit, seed;  warnings.json    warnings about the cohort
  train.log           messages of training
  summary.json        mean and spread over the finished folds;  diagnostics/    joined over folds
  fold_<k>/           checkpoint.safetensors, history.jsonl, predictions.csv, evidence/,
                      diagnostics/, metrics.json
  targets/<target>/   of a run of several targets: a run of each (runs/weights.py)

metrics.json comes last and marks a fold as finished. A command that reads a run together with its
cohort refuses a cohort that changed since the run began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.fingerprint import CohortRecord, content_hash, record_cohort
from gcemil.bags.folds import Fold, Part
from gcemil.bags.tables import read_table
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
from gcemil.findings import Figures, Finding, join_folds, mean_and_deviation, read_finding
from gcemil.records import MODES
from gcemil.runs.learning import Learning, describe_learning
from gcemil.wording import is_there, near_path

Record = dict[str, Any]
PRETRAINED_CONFIG, PRETRAINED_WEIGHTS = "config.json", "model.safetensors"
"""A trained fold on its own, as `gcemil export --pretrained` writes it (runs/pretrained.py)."""
SlidePart = Literal["new", "test", "val", "train", "unknown"]
"""Part of a slide in a fold; new: not of the run's cohort, unknown: not stated in the folder."""


# The content of the files


class RunCard(BaseModel):
    """config.yaml of a run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cohort: Path
    settings: TrainSettings
    cohort_fingerprint: str | None = None
    targets: tuple[str, ...] = ()
    """Targets of a multilabel run, each of which has a run of its own."""
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
    """Mean and deviation of the host alone, if the evidence has a vote beside it."""
    learning: Learning | None = None
    vote: dict[str, Any] | None = None
    """The weight of the evidence head, and what it reads."""
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
        """The figures of every kind of prediction."""
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
    progress = _File("progress.json")
    """Bags of the current epoch that are done, while the fold is trained."""
    timing = _File("timing.json")
    metrics = _File("metrics.json")
    representations = _File("representations.h5")
    adapter = _File("adapter.h5")
    """How far the feature adapter moves patches, where the selector has one."""

    @property
    def number(self) -> int:
        """The k of fold_<k>."""
        number = fold_number(self.path)
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
        """One line per bag; predictions.csv is the main prediction."""
        is_main = mode == main_mode(modes)
        return self.path / ("predictions.csv" if is_main else f"predictions_{mode}.csv")

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
        names = (path.stem[6:] for path in (self.path / "epochs").glob("epoch_*.h5"))
        return sorted(int(name) for name in names if name.isdecimal())

    def read_parts(self) -> dict[str, str]:
        """The part of every slide that the fold validated or tested."""
        rows = read_table(self.path / "predictions.csv", ("slide_id", "split"))
        return {slide_id: row["split"] for row in rows for slide_id in row["slide_id"].split("|")}

    def read_metrics(self) -> FoldMetrics:
        """metrics.json."""
        if not is_file(self.metrics):
            raise RunError(
                f"{self.metrics} does not exist: the fold is not finished. Train it with "
                "'gcemil train'."
            )
        remedy = "Make it again with 'gcemil train RUN --again'."
        return read_record(self.metrics, FoldMetrics, error=RunError, remedy=remedy)

    def read_history(self) -> list[Record]:
        """A record per epoch; none where training wrote none yet."""
        if not is_file(self.history):
            return []
        records = []
        try:
            for number, line in enumerate(read_text(self.history).splitlines(), start=1):
                where = f"{self.history}, line {number}"
                records.append(parse_json(line, where))
                # Losses may be NaN where training went wrong.
                validate_as(records[-1], _EpochLine, where, remedy="", finite=False)
        except InputError as error:
            raise RunError(f"{error} Remove the file; training writes it again.") from error
        return records


def main_mode(modes: Collection[str]) -> str:
    """The main prediction: that of F for a wrapped host, of the host if it is plain or given."""
    return "gce" if "gce" in modes else "full"


class Run(_Folder):
    """A run, whether its files are there or not; its findings are over all folds."""

    config = _File("config.yaml")
    cohort_record = _File("cohort.json")
    environment = _File("environment.json")
    log = _File("train.log")
    warnings = _File("warnings.json")
    summary = _File("summary.json")
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
        """Refuse a run of several targets where a run of one is needed."""
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
        numbers = (fold_number(one) for one in self.path.glob("fold_*") if (one / name).exists())
        return [self.fold(k) for k in sorted(k for k in numbers if k is not None)]

    def trained_folds(self) -> list[RunFold]:
        """The folds that have a network, or the exported fold that this folder is."""
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
        """Why evidence is not certified, and what to try; None if the model has learned."""
        learning = [fold.read_metrics().details.learning for fold in self.finished_folds()]
        warning = describe_learning([fold for fold in learning if fold is not None])
        if warning is None or not self.is_begun:
            return warning
        settings = self.card.settings
        if settings.host.weights is not None:
            return (
                f"{warning} Its weights came trained: check that features and classes are those it "
                "was trained on."
            )
        return (
            f"{warning} Check labels and features, or train longer: gcemil train "
            f"{self.card.cohort} --host {settings.host.name} "
            f"--set min_steps={2 * settings.min_steps} --out {self.path}_longer"
        )

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
                f"{self.path} has no {self.cohort_record.name}, which shows whether the cohort is "
                "still the same. Train the run again into another folder."
            )
        try:
            return CohortRecord.from_json(read_json(self.cohort_record), self.cohort_record)
        except InputError as error:
            raise RunError(f"{error} Train the run again into another folder.") from error

    def check_cohort(self, cohort: Cohort) -> None:
        """Refuse a cohort that changed since the run began."""
        if changed := self.training_cohort.differences(record_cohort(cohort)):
            raise RunError(
                f"{self.path} was trained on other data: {', '.join(changed)} in {cohort.folder} "
                "changed since it was begun. Put back what was there, or train again into another "
                "folder (--out)."
            )

    def check_same_cohort(self, against: Path) -> None:
        """Two runs are compared fold by fold only on the same folder with the same content."""
        ours, theirs = self.card, Run(against).card
        if ours.cohort != theirs.cohort:
            raise RunError(
                f"{against} was trained on {theirs.cohort}, {self.path} on {ours.cohort}: their "
                "folds are not pairs. Compare runs of one cohort."
            )
        if ours.cohort_fingerprint != theirs.cohort_fingerprint:
            raise RunError(
                f"{ours.cohort} changed between the training of {self.path} and of {against}: "
                "their folds are not pairs. Train one of them again."
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
        findings = self.read_findings()
        if findings:
            summary["diagnostics"] = {
                name: [
                    {"labels": row.labels, "mean": row.values, "std": row.deviations}
                    for row in finding.rows
                ]
                for name, finding in findings.items()
            }
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

    def read_findings(self) -> dict[str, Finding]:
        """The findings of every diagnostic, joined over the folds that have it."""
        paths = sorted(self.path.glob("fold_*/diagnostics/*.json"), key=lambda one: one.stem)
        return {
            name: join_folds(
                [
                    read_finding(fold.finding(name))
                    for fold in self.folds_with(f"diagnostics/{name}.json")
                ]
            )
            for name in dict.fromkeys(path.stem for path in paths)
        }

    def _describe_missing(self) -> str:
        """What is here in place of a run, and what to do about it."""
        path = self.path
        if not is_there(path):
            return (
                f"{path} does not exist.{near_path(path)} Give a run folder, as 'gcemil train' "
                "writes it."
            )
        if is_file(path / "cohort.yaml"):
            return (
                f"{path} is a cohort, not a run. Train on it with 'gcemil train {path} --out RUN', "
                "and give RUN."
            )
        if fold_number(path) is not None and is_file(path.parent / "config.yaml"):
            return f"{path} is a fold of a run. Give {path.parent}."
        return f"{path} is not a run: it has no config.yaml. Make one with 'gcemil train'."


def fold_number(folder: Path) -> int | None:
    """The number in fold_<k>; None for a folder of another name."""
    number = folder.name.removeprefix("fold_")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def describe_vote(weights: Sequence[float] | None) -> str | None:
    """How much the evidence decides, in words; None where it was never fitted."""
    if not weights:
        return None
    mean = sum(weights) / len(weights)
    if mean == 0:
        return (
            "The evidence head has weight 0: on validation slides the host alone does at least as "
            "well, so the joint prediction is that of the host."
        )
    if mean == 1:
        return "The evidence head has weight 1: the joint prediction is its own."
    spread = "" if len(weights) == 1 else f" (folds {min(weights):.0%} to {max(weights):.0%})"
    return (
        f"The evidence head has a weight of {mean:.0%} in the joint prediction{spread}, the host "
        "the rest."
    )


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


# The slides a run was made with


@dataclass(frozen=True)
class SeenSlides:
    """The part of a slide in every fold; slides are known by id, feature files also by content."""

    features: Mapping[str, str] | None = None
    """Slide → hash of its features; None if the run has none."""
    judged: Mapping[Path, Mapping[str, str]] = field(default_factory=dict)
    """Folder of a fold → the slides it validated and tested on, with their part."""

    @classmethod
    def of_run(cls, run: Run, folds: Sequence[RunFold]) -> SeenSlides:
        """The slides of these folds."""
        is_known = run.is_begun and is_file(run.cohort_record)
        if not is_known or not all(fold.is_finished for fold in folds):
            return cls()
        judged = {fold.path: fold.read_parts() for fold in folds}
        return cls(run.training_cohort.parts["features"], judged)

    def least_seen(
        self, folds: Sequence[Path], slide_id: str, path: Path
    ) -> tuple[SlidePart, list[Path]]:
        """The folds that saw least of the slide, and its part in them."""
        if self.features is None:
            return "unknown", list(folds)
        # Slides are too large to be hashed whole.
        if slide_id not in self.features and path.suffix.lower() in (".h5", ".hdf5"):
            digest = content_hash(path)
            slide_id = next((one for one, own in self.features.items() if own == digest), slide_id)
        if slide_id not in self.features:
            return "new", list(folds)
        parts = {fold: cast(SlidePart, self.judged[fold].get(slide_id, "train")) for fold in folds}
        best = min(parts.values(), key=("test", "val", "train").index)
        return best, [fold for fold in folds if parts[fold] == best]
