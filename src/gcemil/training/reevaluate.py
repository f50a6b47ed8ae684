"""Trained folds put to use again: metrics anew, and predictions for slides that were not in the cohort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gcemil.bags import store
from gcemil.bags.arrays import read_patch_layout
from gcemil.bags.bag import Bag, slide_bag
from gcemil.bags.folds import read_fold
from gcemil.errors import UsageError
from gcemil.files import is_file, working_in
from gcemil.records import SlideEvidence
from gcemil.runs.environment import pick_device
from gcemil.runs.folder import (
    RunFolder,
    check_cohort,
    fold_parts,
    open_cohort,
    read_metrics,
    read_training_cohort,
    write_summary,
)
from gcemil.runs.network import load_network
from gcemil.runs.predict import Mode, average_folds, load_fold_models
from gcemil.tasks.task import create_task
from gcemil.training.fold import evaluate_fold
from gcemil.units import LevelZeroPx


@dataclass(frozen=True)
class SlidePrediction:
    """Mean over the folds of a run for one slide, and the evidence of the fold asked for."""

    slide_id: str
    values: dict[str, float]
    """prob_<class>, or risk."""
    per_fold: list[list[float]]
    evidence: SlideEvidence | None


def evaluate_run(run: Path, on_fold: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Predictions, metrics and evidence of every trained fold, and the summary."""
    with working_in(run):
        card, cohort = open_cohort(run)
        check_unchanged = partial(check_cohort, run, cohort, read_training_cohort(run))
        task = create_task(cohort, card.settings)
        folds = RunFolder(run).trained_folds()
        for done, fold in enumerate(folds, start=1):
            ingredients, _ = load_network(fold.checkpoint, pick_device(card.settings.device))
            parts = fold_parts(cohort, read_fold(cohort, fold.number))
            known = is_file(fold.metrics)
            details = (
                read_metrics(fold.path).details.model_dump(exclude_unset=True)
                if known
                else {"warnings": [], "anchors": None}
            )
            evaluate_fold(ingredients, cohort, parts, task, fold, details, before_saving=check_unchanged)
            if on_fold:
                on_fold(done, len(folds))
        return write_summary(run)


def predict_slide(run: Path, features_file: Path, *, mode: Mode, fold: int | None = None) -> SlidePrediction:
    """One new slide from its feature file: averaged over all folds, or by one of them."""
    models = load_fold_models(run, fold=fold, needs_evidence=mode != "full")
    answers = [one.answer(read_slide(features_file, one.meta), mode) for one in models]
    per_fold = [one.values(logits) for one, (logits, _) in zip(models, answers, strict=True)]
    return SlidePrediction(features_file.stem, average_folds(models, per_fold), per_fold, answers[0][1])


def read_slide(path: Path, meta: dict[str, Any]) -> Bag:
    """A slide outside any cohort, checked against what the model was trained on."""
    n_patches, coords = read_patch_layout(path)
    features = store.read(path, "features")
    if n_patches == 0 or features.ndim != 2 or features.shape[1] != meta["in_dim"]:
        raise UsageError(
            f"{path}: features of shape {features.shape} cannot be used; this run was trained on width {meta['in_dim']} "
            f"from encoder '{meta['encoder']}'."
        )
    if features.dtype.kind != "f" or not np.isfinite(features).all():
        raise UsageError(
            f"{path}: features of {features.dtype} with NaN, infinite or no floating point numbers cannot be used. "
            "Extract the slide again."
        )
    size = meta["patch_size_level0"]
    return slide_bag(path.stem, features, coords, None if size is None else LevelZeroPx(size))
