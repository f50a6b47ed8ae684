"""The folder of a run: its card, its trained folds, and the bags each fold trains, validates and tests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.folds import Fold, Part
from gcemil.config import TrainSettings
from gcemil.errors import RunError
from gcemil.runs.records import check_cohort, fold_number, read_config
from gcemil.tasks.task import ClassificationTask, DiscreteTimeTask, SurvivalTask, Task


@dataclass(frozen=True)
class RunCard:
    """What config.yaml of a run says."""

    cohort: Path
    settings: TrainSettings
    fingerprint: str
    """Of the cohort when the run was begun."""


def read_run(folder: Path) -> RunCard:
    """The card of a run; a file that is damaged is named."""
    config = read_config(folder)
    return RunCard(Path(config.cohort), config.settings, config.cohort_fingerprint or "")


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
    if ours.fingerprint != theirs.fingerprint:
        raise RunError(
            f"{ours.cohort} changed between the training of {run} and of {against}: their folds are not pairs. "
            "Train one of them again."
        )


def trained_folds(run: Path) -> list[Path]:
    folders = [path.parent for path in sorted(run.glob("fold_*/checkpoint.safetensors"))]
    found = [folder for folder in folders if fold_number(folder) is not None]
    if not found:
        raise RunError(f"{run} has no trained fold. Train it with 'gcemil train'.")
    return found


@dataclass(frozen=True)
class FoldParts:
    train: Sequence[BagSpec]
    val: Sequence[BagSpec]
    test: Sequence[BagSpec]


def fold_parts(cohort: Cohort, fold: Fold) -> FoldParts:
    """The bags of each part; the slides of a bag always stand together."""

    def bags(part: Part) -> list[BagSpec]:
        return [spec for spec in cohort.bags if fold.part_of[spec.slide_ids[0]] == part]

    return FoldParts(bags("train"), bags("val"), bags("test"))


def stacked_targets(bags: Sequence[BagSpec]) -> Tensor:
    return torch.stack([target_tensor(spec) for spec in bags])


def target_tensor(spec: BagSpec) -> Tensor:
    """A class index, or (time, event)."""
    return (
        torch.tensor(spec.target)
        if isinstance(spec.target, int)
        else torch.tensor(spec.target, dtype=torch.float32)
    )


def create_task(cohort: Cohort, settings: TrainSettings) -> Task:
    """The task by which predictions are made and judged."""
    if cohort.card.task == "classification":
        return ClassificationTask(cohort.card.classes, settings.class_weights)
    return SurvivalTask(settings.ties)


def training_task(cohort: Cohort, settings: TrainSettings, train_bags: Sequence[BagSpec]) -> Task:
    """The task with the loss the settings ask for; what it takes from data comes from the training bags."""
    if cohort.card.task == "survival" and settings.survival_loss == "discrete_time":
        return DiscreteTimeTask.of_training(stacked_targets(train_bags))
    return create_task(cohort, settings)
