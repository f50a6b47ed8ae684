"""Trained folds put to use again: metrics anew, and predictions for slides that were not in the cohort."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gcemil.bags import store
from gcemil.bags.bag import Bag, slide_bag
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.errors import UsageError
from gcemil.explain import bag_tensors, explain_bag, slide_evidence
from gcemil.records import SlideEvidence
from gcemil.runs.environment import pick_device
from gcemil.runs.folder import create_task, fold_parts, read_run, trained_folds
from gcemil.runs.network import load_network
from gcemil.runs.summary import write_summary
from gcemil.training.evaluate import Mode
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
    card = read_run(run)
    cohort = Cohort.load(card.cohort)
    task = create_task(cohort, card.settings)
    folders = trained_folds(run)
    for done, folder in enumerate(folders, start=1):
        ingredients, _ = load_network(folder / "checkpoint.safetensors", pick_device(card.settings.device))
        parts = fold_parts(cohort, read_fold(cohort, int(folder.name.removeprefix("fold_"))))
        before = folder / "metrics.json"
        details = (
            json.loads(before.read_text(encoding="utf-8"))["details"]
            if before.is_file()
            else {"warnings": [], "anchors": None}
        )
        evaluate_fold(ingredients, cohort, parts, task, folder, details)
        if on_fold:
            on_fold(done, len(folders))
    return write_summary(run)


@torch.no_grad()
def predict_slide(run: Path, features_file: Path, *, mode: Mode, fold: int | None = None) -> SlidePrediction:
    """One new slide from its feature file: averaged over all folds, or by one of them."""
    folders = [run / f"fold_{fold}"] if fold is not None else trained_folds(run)
    rows, names, evidence = [], [], None
    for folder in folders:
        ingredients, meta = load_network(folder / "checkpoint.safetensors")
        bag = read_slide(features_file, meta)
        if ingredients.model is None:
            if mode != "full":
                raise UsageError(
                    f"{run} is a plain host, which has no evidence: only --mode full is possible."
                )
            logits = ingredients.host(*bag_tensors(bag)).logits
        else:
            found = explain_bag(ingredients.model, bag)
            logits = {
                "full": found.output.full_logits,
                "soft": found.output.logits,
                "discrete": found.discrete.logits,
            }[mode]
            evidence = evidence or slide_evidence(ingredients.model, bag, found)[0]
        survival = meta["task"] == "survival"
        names = ["risk"] if survival else [f"prob_{name}" for name in meta["classes"]]
        rows.append((logits if survival else torch.softmax(logits, dim=0)).double().tolist())
    means = torch.tensor(rows, dtype=torch.float64).mean(dim=0).tolist()
    return SlidePrediction(features_file.stem, dict(zip(names, means, strict=True)), rows, evidence)


def read_slide(path: Path, meta: dict[str, Any]) -> Bag:
    """A slide outside any cohort, checked against what the model was trained on."""
    n_patches, coords = store.read_patch_layout(path)
    features = store.read(path, "features")
    if n_patches == 0 or features.ndim != 2 or features.shape[1] != meta["in_dim"]:
        raise UsageError(
            f"{path}: features of shape {features.shape} cannot be used; this run was trained on width {meta['in_dim']} "
            f"from encoder '{meta['encoder']}'."
        )
    size = meta["patch_size_level0"]
    return slide_bag(path.stem, features, coords, None if size is None else LevelZeroPx(size))
