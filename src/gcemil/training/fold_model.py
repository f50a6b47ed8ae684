"""Trained folds that predict slides outside their cohort, from feature files or from slide files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gcemil.bags.bag import Bag
from gcemil.errors import UsageError
from gcemil.explain import slide_evidence
from gcemil.records import SlideEvidence
from gcemil.runs.folder import trained_folds
from gcemil.runs.network import Ingredients, load_network
from gcemil.shapes import Logits
from gcemil.tasks.task import ClassificationTask, SurvivalTask, Task
from gcemil.training.evaluate import Mode, predicted_bag


@dataclass(frozen=True, eq=False)
class FoldModel:
    """One trained fold, built from its checkpoint alone."""

    folder: Path
    ingredients: Ingredients
    meta: dict[str, Any]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def task(self) -> Task:
        survival = self.meta["task"] == "survival"
        return SurvivalTask() if survival else ClassificationTask(tuple(self.meta["classes"]))

    def values(self, logits: Logits) -> list[float]:
        """prob_<class>, or the risk."""
        return self.task.prediction(logits).double().reshape(-1).tolist()

    def answer(self, bag: Bag, mode: Mode) -> tuple[Logits, SlideEvidence | None]:
        """What the fold says of a bag of one slide, and on what evidence."""
        logits, explanation = predicted_bag(self.ingredients, bag, modes=("full", "soft", "discrete"))
        if explanation is None or self.ingredients.model is None:
            return logits[mode], None
        return logits[mode], slide_evidence(self.ingredients.model, bag, explanation)[0]


def fold_models(run: Path, *, fold: int | None, needs_evidence: bool) -> tuple[FoldModel, ...]:
    """All trained folds of a run, or one."""
    folders = [run / f"fold_{fold}"] if fold is not None else trained_folds(run)
    models = tuple(FoldModel(folder, *load_network(folder / "checkpoint.safetensors")) for folder in folders)
    if needs_evidence and any(one.ingredients.model is None for one in models):
        raise UsageError(f"{run} is a plain host, which has no evidence: only --mode full is possible.")
    return models


def mean_values(models: Sequence[FoldModel], per_fold: Sequence[Sequence[float]]) -> dict[str, float]:
    """The prediction of a run: the mean over its folds, by name."""
    means = torch.tensor(per_fold, dtype=torch.float64).mean(dim=0).tolist()
    return dict(zip(models[0].task.prediction_names, means, strict=True))
