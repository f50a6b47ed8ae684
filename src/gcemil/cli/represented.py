"""What the head of a trained network sees of every validation and test bag, written beside the fold for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.explain import bag_tensors, explain_bag
from gcemil.report.sections.representations import FILE, Representations, write_representations
from gcemil.runs.folder import fold_parts, open_cohort, trained_folds
from gcemil.runs.network import Ingredients, load_network

OnBag = Callable[[int, int], None]


def represent_runs(runs: Sequence[Path], *, on_bag: OnBag | None = None) -> None:
    """The first trained fold of every run: representations of different folds share no axes, so one is drawn."""
    folders = [trained_folds(run)[0] for run in runs]
    cohorts = [open_cohort(run)[1] for run in runs]
    todo = []
    for folder, cohort in zip(folders, cohorts, strict=True):
        parts = fold_parts(cohort, read_fold(cohort, int(folder.name.removeprefix("fold_"))))
        todo.append((folder, cohort, [*parts.val, *parts.test], len(parts.val)))
    total, done = sum(len(specs) for _, _, specs, _ in todo), 0
    for folder, cohort, specs, n_val in todo:
        shift = done
        report = None if on_bag is None else lambda count, shift=shift: on_bag(shift + count, total)
        by_mode = represented(folder, cohort, specs, report)
        parts_of = tuple("val" if place < n_val else "test" for place in range(len(specs)))
        found = Representations(
            by_mode,
            tuple(spec.bag_id for spec in specs),
            parts_of,
            tuple(group_of(spec, cohort) for spec in specs),
        )
        write_representations(folder / FILE, found)
        done += len(specs)


@torch.no_grad()
def represented(
    folder: Path, cohort: Cohort, specs: Sequence[BagSpec], on_bag: Callable[[int], None] | None
) -> dict[str, np.ndarray]:
    """Bag features (bags, d) by mode, all patches of every bag."""
    ingredients, _ = load_network(folder / "checkpoint.safetensors")
    rows: dict[str, list[np.ndarray]] = {}
    for done, (_, bag) in enumerate(load_bags(cohort, specs, rule=SampleRule(), ahead=2), start=1):
        for mode, feature in bag_features(ingredients, bag).items():
            rows.setdefault(mode, []).append(feature)
        if on_bag:
            on_bag(done)
    return {mode: np.stack(found) for mode, found in rows.items()}


def bag_features(ingredients: Ingredients, bag: Bag) -> dict[str, np.ndarray]:
    """What the head sees of all patches, of the gated ones, and of the evidence alone."""
    if ingredients.model is None:
        return {"full": ingredients.host(*bag_tensors(bag)).bag_feature.flatten().numpy()}
    found = explain_bag(ingredients.model, bag)
    outputs = {"full": found.output.full, "soft": found.output.soft, "discrete": found.discrete}
    return {mode: output.bag_feature.flatten().numpy() for mode, output in outputs.items()}


def group_of(spec: BagSpec, cohort: Cohort) -> str:
    """The class, or whether the event happened."""
    if isinstance(spec.target, int):
        return cohort.card.classes[spec.target]
    return "event" if spec.target[1] == 1 else "censored"
