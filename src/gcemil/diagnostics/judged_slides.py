"""Slides whose lesions are known, each with every map of scores that claims to show them.

positive patch   at least 1 % of it lies inside the annotation (`overlap` of truth/<slide>.h5; `evidence` without it)
lesion           8-connected positive patches
A slide without truth or coordinates, or one that the cohort's recipe keeps out of lesion metrics, is excluded by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from gcemil.bags import store
from gcemil.bags.annotations.truth import Cells, Numbers, connected_regions, patch_cells
from gcemil.bags.arrays import read_truth, stated_number
from gcemil.bags.bag import Bag, coordinate_step
from gcemil.diagnostics.bench import FoldBag, TrainedFold
from gcemil.diagnostics.components import Ignored, PatchScores, major_axes

ISOLATED_MICRONS = 275.0
"""Lesions with a shorter major axis are isolated tumour cells, which the organisers leave out."""

MapKey = tuple[str, str]
"""What is ranked, and by which network."""
RECOVERED_MAP: MapKey = ("evidence", "wrapped")
"""The recovered evidence: a set, so marked or not marked."""


@dataclass(frozen=True)
class TruthRule:
    """When a patch is positive, and how large a pixel is where the truth file does not say."""

    min_overlap: float
    microns_per_pixel: float | None


@dataclass(frozen=True, eq=False)
class SlideTruth:
    slide_id: str
    cells: Cells
    positive: Bool[np.ndarray, "n"]
    lesion: Numbers
    isolated: Ignored
    """Per lesion: isolated tumour cells."""
    knows_size: bool


@dataclass(frozen=True)
class Excluded:
    slide_id: str
    reason: str


@dataclass(frozen=True, eq=False)
class MappedSlide:
    truth: SlideTruth
    maps: dict[MapKey, PatchScores]


def map_slides(fold: TrainedFold, bench: FoldBag, rule: TruthRule) -> Iterator[MappedSlide | Excluded]:
    """Every slide of a bag with its maps, or the reason why it cannot be judged."""
    unfit = lesion_exclusions(fold.cohort.card.provenance)
    truths = [
        Excluded(slide_id, unfit[slide_id])
        if slide_id in unfit
        else slide_truth(fold.cohort.truth_file(slide_id), bench.bag, slide_id, rule)
        for slide_id in bench.bag.slide_ids
    ]
    maps = bag_maps(fold, bench) if any(isinstance(truth, SlideTruth) for truth in truths) else {}
    for truth in truths:
        if isinstance(truth, Excluded):
            yield truth
        else:
            rows = bench.bag.rows_of(truth.slide_id)
            own = {name: scores[rows] for name, scores in maps.items()}
            yield MappedSlide(truth, {**own, **control_maps(truth, fold.seed)})


def lesion_exclusions(provenance: dict[str, Any]) -> dict[str, str]:
    """Slides that the recipe of the cohort keeps out of lesion metrics, with the reason."""
    listed = provenance.get("exclusions", [])
    return {one["slide"]: one["reason"] for one in listed if one["scope"] == "lesion_metrics"}


def slide_truth(path: Path, bag: Bag, slide_id: str, rule: TruthRule) -> SlideTruth | Excluded:
    """Positive patches and lesions of a slide, or why they are not known."""
    coords = bag.slide_coords(slide_id)
    if not path.is_file():
        return Excluded(slide_id, "no truth")
    if coords is None:
        return Excluded(slide_id, "no coordinates")
    name = "overlap" if store.has(path, "overlap") else "evidence"
    overlap = read_truth(path, name, len(coords)).astype(np.float32)
    step = int(bag.patch_size or coordinate_step(coords))
    cells, positive = patch_cells(coords, step), overlap >= rule.min_overlap
    lesion = connected_regions(cells, positive)
    mpp = stated_number(store.attributes(path), "microns_per_pixel") or rule.microns_per_pixel
    isolated = np.zeros(int(lesion.max(initial=0)), dtype=bool)
    if mpp is not None:
        isolated = major_axes(cells, lesion, overlap, step * mpp) < ISOLATED_MICRONS
    return SlideTruth(slide_id, cells, positive, lesion, isolated, mpp is not None)


def bag_maps(fold: TrainedFold, bench: FoldBag) -> dict[MapKey, PatchScores]:
    """Every ranking of the bag's patches by a trained network; scores are raw, so that one threshold fits all slides."""
    maps = {("attention", str(name)): bench.network(name).full().scores for name in fold.networks}
    if bench.explanation is not None:
        maps["evidence scores", "wrapped"] = bench.explanation.output.scores
        maps["gates", "wrapped"] = bench.explanation.output.gates
        maps[RECOVERED_MAP] = bench.explanation.recovery.selected
    return {rule: scores.detach().double().numpy() for rule, scores in maps.items()}


def control_maps(truth: SlideTruth, seed: int) -> dict[MapKey, PatchScores]:
    """Chance, and the truth itself."""
    # Drawn from the slide's own name, so that no other slide changes what is drawn.
    draws = np.random.default_rng([seed, *truth.slide_id.encode()])
    return {
        ("random", "none"): draws.random(len(truth.cells)),
        ("oracle", "none"): truth.positive.astype(np.float64),
    }
