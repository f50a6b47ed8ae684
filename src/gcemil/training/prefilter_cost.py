"""The test slides of a fold from slide file to prediction, with all patches and with those the prefilter keeps.

Every slide goes through the same code twice; which way comes first alternates, so that neither has all the warm files. One
prediction before the first counts for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from gcemil.bags.cohort import BagSpec
from gcemil.bags.folds import read_fold
from gcemil.errors import UsageError
from gcemil.features.encoders import PatchEncoder
from gcemil.features.origin import encoded_grid
from gcemil.runs.folder import create_task, fold_parts, open_cohort, stacked_targets
from gcemil.runs.prefilter_cost import PrefilterCost, SlideCost, write_cost
from gcemil.training.distil import utility
from gcemil.training.patch_source import Clock
from gcemil.training.slide_files import SlideFilePrediction, SlidePredictor


def measure_cost(
    run: Path,
    fold: int,
    slides: Mapping[str, Path],
    *,
    encoder: PatchEncoder | None = None,
    on_slide: Callable[[int, int], None] | None = None,
    clock: Clock = time.perf_counter,
) -> PrefilterCost:
    """Time the test slides of a fold both ways, and write the measurement beside its prefilter."""
    card, cohort = open_cohort(run)
    specs = fold_parts(cohort, read_fold(cohort, fold)).test
    filtered = SlidePredictor.open(run, mode="prefilter", fold=fold, encoder=encoder)
    whole = SlidePredictor.open(run, mode="full", fold=fold, encoder=filtered.encoder)
    found: list[SlideCost] = []
    # The first batch of a process allocates memory that all later ones find there.
    first = encoded_grid(cohort.feature_file(specs[0].slide_ids[0]))
    filtered.predict(file_of(specs[0], slides), mpp=first.mpp, clock=clock)
    for done, spec in enumerate(specs, start=1):
        path, grid = file_of(spec, slides), encoded_grid(cohort.feature_file(spec.slide_ids[0]))
        order = (whole, filtered) if done % 2 else (filtered, whole)
        made = {one.mode: one.predict(path, mpp=grid.mpp, clock=clock) for one in order}
        check_same_patches(spec, made["full"], expected=len(grid))
        found.append(slide_cost(spec, made["full"], made["prefilter"]))
        if on_slide:
            on_slide(done, len(specs))
    task, targets = create_task(cohort, card.settings), stacked_targets(specs)
    fitted = filtered.prefilters[0]
    cost = PrefilterCost(
        fold=fold,
        keep_rate=fitted.keep_rate,
        threads=torch.get_num_threads(),
        model_hash=fitted.model_hash,
        full_utility=utility(task, targets, as_logits([one.full for one in found])),
        prefilter_utility=utility(task, targets, as_logits([one.prefiltered for one in found])),
        slides=tuple(found),
    )
    write_cost(run / f"fold_{fold}", cost)
    return cost


def slide_cost(spec: BagSpec, full: SlideFilePrediction, prefiltered: SlideFilePrediction) -> SlideCost:
    pooled = prefiltered.evidence_rows if prefiltered.certified else list(range(full.n_patches))
    return SlideCost(
        bag_id=spec.bag_id,
        n_patches=full.n_patches,
        n_encoded=prefiltered.n_encoded,
        certified=bool(prefiltered.certified),
        selected=pooled,
        full=full.per_fold[0],
        prefiltered=prefiltered.per_fold[0],
        full_seconds=full.seconds,
        prefilter_seconds=prefiltered.seconds,
    )


def as_logits(values: list[list[float]]) -> torch.Tensor:
    """Logits that a task turns back into these probabilities; a risk is its own logit."""
    found = torch.tensor(values, dtype=torch.float64)
    return found if found.shape[1] == 1 else found.clamp_min(1e-300).log()


def file_of(spec: BagSpec, slides: Mapping[str, Path]) -> Path:
    """The slide of a test bag."""
    if len(spec.slide_ids) != 1:
        raise UsageError(
            f"Case '{spec.bag_id}' has {len(spec.slide_ids)} slides; the cost is measured where a bag is one slide. "
            "Leave out --measure."
        )
    if spec.slide_ids[0] not in slides:
        raise UsageError(
            f"The test slide '{spec.slide_ids[0]}' has no file. Give the folder that 'gcemil encode' was given."
        )
    return slides[spec.slide_ids[0]]


def check_same_patches(spec: BagSpec, full: SlideFilePrediction, *, expected: int) -> None:
    """Rows are kept for later, so they must mean the patches of the cohort's own files."""
    if full.n_patches != expected:
        raise UsageError(
            f"Slide '{spec.bag_id}' has {full.n_patches} patches by the default rules, {expected} in the cohort: it was patched "
            "by a mask or by other rules, so its cost cannot be compared. Leave out --measure."
        )
