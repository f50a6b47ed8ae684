"""Trained folds put before bags they were not trained on: of one patch, of one class, censored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gcemil.bags import store
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.diagnostics.trained_fold import TrainedFold


def one_patch_fold(fold: TrainedFold, folder: Path) -> TrainedFold:
    """The fold on a copy of its cohort in which every validation and test slide has a single patch."""
    shutil.copytree(fold.cohort.folder, folder)
    slides = [
        slide for part in ("val", "test") for spec in fold.specs(part) for slide in spec.slide_ids
    ]
    for kind in ("features", "truth"):
        for path in (folder / kind / f"{slide}.h5" for slide in slides):
            columns = {name: store.read(path, name)[:1].copy() for name in store.describe(path)}
            path.unlink()
            store.write(path, columns)
    return replace(fold, cohort=Cohort.load(folder))


def few_bags(fold: TrainedFold, count: int = 3) -> TrainedFold:
    """The fold with its first test bags alone."""
    return replace(fold, parts=replace(fold.parts, test=fold.parts.test[:count]))


def fold_of(fold: TrainedFold, chosen: Callable[[BagSpec], bool]) -> TrainedFold:
    """The fold with the test bags that are chosen; all others are left out."""
    return replace(
        fold, parts=replace(fold.parts, test=[spec for spec in fold.parts.test if chosen(spec)])
    )
