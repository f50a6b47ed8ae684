"""localisation: does the evidence lie on the annotated lesions? The paper's CAMELYON16 protocol.

threshold        one per map of scores, of best mean Dice over the validation slides. The recovered
                 evidence is a set and has none: "evidence" marks its patches on every slide,
                 "confirmed evidence" only where the prediction moves without them
Dice             mean over the test slides with a lesion
specificity      normal_specificity: share of patches not marked, mean over the slides without a
                 lesion; patch_specificity: among all negative patches of all test slides
FROC             candidates are 8-connected marked patches, scored by their highest patch; one hits
                 every lesion of which it holds a positive patch; mean sensitivity at 1/8 ... 8
                 false positives per slide
official FROC    the organisers' rule: one point per candidate, hitting the lesion it lies in;
                 isolated tumour cells do not count; mean sensitivity at 1/4 ... 8, interpolated

positive patch   at least 1 % of it lies inside the annotation (`overlap` of truth/<slide>.h5;
                 `evidence` without it)
lesion           8-connected positive patches

The paper scores a candidate by its maximum. A maximum means something only if candidates are formed
once, so they are formed at the threshold of Dice and swept by their score.

At patch level the official rule is an approximation. A point is a patch, and lies in a lesion when
that patch is positive; lesions join when their positive patches touch (the organisers: when less
than 75 micrometres apart); isolated tumour cells (major axis below 275 micrometres) are found by
the moments of the overlap, if micrometres per pixel are known; a lesion without a patch is not
missed.
The organisers' script leaves out the lowest score when every lesion is found; here it counts.

A slide without truth or coordinates, or one that the cohort's recipe keeps out of lesion metrics,
is excluded by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from gcemil.bags import store
from gcemil.bags.annotations.truth import MIN_OVERLAP
from gcemil.bags.bag import Bag, Cells, Numbers, connected_regions, coordinate_step, patch_cells
from gcemil.bags.store import read_truth, stated_number
from gcemil.diagnostics.lesions import (
    NOT_FOUND,
    OFFICIAL_RATES,
    PAPER_RATES,
    Ignored,
    PatchScores,
    best_threshold,
    dice,
    froc_curve,
    hits_by_overlap,
    hits_by_point,
    interpolated_sensitivity,
    lesion_candidates,
    major_axes,
    reached_sensitivity,
    specificity,
)
from gcemil.diagnostics.trained_fold import FoldBag, Measure, PartName, Pass, TrainedFold
from gcemil.findings import Figures, Finding, Row, mean_row

ISOLATED_MICRONS = 275.0
"""Lesions with a shorter major axis are isolated tumour cells, which the organisers leave out."""

MapKey = tuple[str, str]
"""What is ranked, and by which network."""
RECOVERED_MAP: MapKey = ("evidence", "wrapped")
CONFIRMED_MAP: MapKey = ("confirmed evidence", "wrapped")
SET_MAPS = (RECOVERED_MAP, CONFIRMED_MAP)
"""The recovered evidence: a set, so marked or not marked. Published figures are of the first."""


@dataclass(frozen=True, eq=False)
class SlideTruth:
    """Where the lesions of a slide lie on its patch grid."""

    slide_id: str
    cells: Cells
    positive: Bool[np.ndarray, "n"]
    lesion: Numbers
    isolated: Ignored
    """Per lesion: isolated tumour cells."""
    knows_size: bool


@dataclass(frozen=True, eq=False)
class MappedSlide:
    """A slide with its truth and every map of scores."""

    truth: SlideTruth
    maps: dict[MapKey, PatchScores]


def _map_slides(
    fold: TrainedFold, bag: FoldBag, min_overlap: float, microns_per_pixel: float | None
) -> tuple[list[MappedSlide], dict[str, str]]:
    """Every slide of a bag with its maps, and the reason why others cannot be judged."""
    excluded, truths = {}, []
    listed = lesion_exclusions(fold.cohort.card.provenance)
    for slide_id in bag.bag.slide_ids:
        path = fold.cohort.truth_file(slide_id)
        truth = listed.get(slide_id) or slide_truth(
            path, bag.bag, slide_id, min_overlap, microns_per_pixel
        )
        if isinstance(truth, str):
            excluded[slide_id] = truth
        else:
            truths.append(truth)
    # Scores are raw, so that one threshold fits all slides.
    maps: dict[MapKey, Tensor] = {}
    if truths:
        maps |= {("attention", str(name)): bag.predict(name).full.scores for name in fold.networks}
    if truths and bag.explanation is not None:
        output, selected = bag.explanation.output, bag.explanation.recovery.selected
        maps["evidence scores", "wrapped"] = output.scores
        maps["gates", "wrapped"] = output.gates
        maps[RECOVERED_MAP] = selected
        maps[CONFIRMED_MAP] = selected & bag.explanation.verdict.is_necessary
    mapped = []
    for truth in truths:
        rows = bag.bag.rows_of(truth.slide_id)
        own = {rule: scores[rows].detach().double().numpy() for rule, scores in maps.items()}
        # Drawn from the slide's own name, so that no other slide changes what is drawn.
        draws = np.random.default_rng([fold.seed, *truth.slide_id.encode()])
        own["random", "none"] = draws.random(len(truth.cells))
        own["oracle", "none"] = truth.positive.astype(np.float64)
        mapped.append(MappedSlide(truth, own))
    return mapped, excluded


def lesion_exclusions(provenance: dict[str, Any]) -> dict[str, str]:
    """Slides that the recipe of the cohort keeps out of lesion metrics, with the reason."""
    listed = provenance.get("exclusions", [])
    return {one["slide"]: one["reason"] for one in listed if one["scope"] == "lesion_metrics"}


def slide_truth(
    path: Path, bag: Bag, slide_id: str, min_overlap: float, microns_per_pixel: float | None
) -> SlideTruth | str:
    """Positive patches and lesions of a slide, or why they are not known."""
    coords = bag.slide_coords(slide_id)
    if not path.is_file():
        return "no truth"
    if coords is None:
        return "no coordinates"
    name = "overlap" if store.has(path, "overlap") else "evidence"
    overlap = read_truth(path, name, len(coords)).astype(np.float32)
    step = int(bag.patch_size or coordinate_step(coords))
    cells, positive = patch_cells(coords, step), overlap >= min_overlap
    lesion = connected_regions(cells, positive)
    mpp = stated_number(store.attributes(path), "microns_per_pixel") or microns_per_pixel
    isolated = np.zeros(int(lesion.max(initial=0)), dtype=bool)
    if mpp is not None:
        isolated = major_axes(cells, lesion, overlap, step * mpp) < ISOLATED_MICRONS
    return SlideTruth(slide_id, cells, positive, lesion, isolated, mpp is not None)


FIGURES = (
    "dice", "normal_specificity", "patch_specificity", "froc", "froc_official", "marked_share",
    "map_threshold",
)  # fmt: skip
RATE_NAMES = {1 / 8: "1/8", 1 / 4: "1/4", 1 / 2: "1/2"}

Detail = dict[str, Any]


@Measure
def measure_localisation(
    fold: TrainedFold,
    *,
    min_overlap: float = MIN_OVERLAP,
    microns_per_pixel: float | None = None,
) -> Pass[Finding]:
    """Attention, evidence scores and gates beside random and oracle, on slides with truth."""
    judged: dict[PartName, list[MappedSlide]] = {"val": [], "test": []}
    excluded: dict[str, str] = {}
    for part, slides in judged.items():
        while (bag := (yield part)) is not None:
            mapped, left_out = _map_slides(fold, bag, min_overlap, microns_per_pixel)
            slides += mapped
            excluded |= left_out
    rows, details = localisation_rows(judged["val"], judged["test"])
    return Finding(
        name="localisation",
        rows=rows,
        slides=details,
        notes=localisation_notes(judged["val"], judged["test"], excluded),
        settings={
            "isolated_microns": ISOLATED_MICRONS,
            "neighbourhood": 8,
            "froc_rates": list(PAPER_RATES),
            "froc_official_rates": list(OFFICIAL_RATES),
        },
    )


def localisation_rows(
    val: Sequence[MappedSlide], test: Sequence[MappedSlide]
) -> tuple[tuple[Row, ...], tuple[Detail, ...]]:
    """The rows of every map, and its figures by slide; thresholds come from `val`."""
    rows: list[Row] = []
    details: list[Detail] = []
    for rule in test[0].maps if test else ():
        threshold = (
            0.5
            if rule in SET_MAPS
            else best_threshold([(one.maps[rule], one.truth.positive) for one in val])
        )
        if threshold is None:
            rows.append(Row({"rule": rule[0], "network": rule[1]}, dict.fromkeys(FIGURES)))
            continue
        rule_rows, own = _map_rows(rule, threshold, test)
        rows += rule_rows
        details += own
    return tuple(rows), tuple(details)


def _map_rows(
    rule: MapKey, threshold: float, test: Sequence[MappedSlide]
) -> tuple[list[Row], list[Detail]]:
    """One row of figures and one for each point of both curves."""
    slides: list[Figures] = []
    by_overlap, by_point = [], []
    for one in test:
        candidates = lesion_candidates(one.truth.cells, one.maps[rule], threshold)
        by_overlap.append(hits_by_overlap(candidates, one.truth.lesion))
        by_point.append(hits_by_point(candidates, one.truth.lesion, one.truth.isolated))
        marked, positive = candidates.number > 0, one.truth.positive
        slides.append(
            {
                "dice": dice(marked, positive),
                "normal_specificity": None if positive.any() else specificity(marked, positive),
                "marked_share": float(marked.mean()),
            }
        )
    labels = dict(zip(("rule", "network"), rule, strict=True))
    paper = reached_sensitivity(froc_curve(by_overlap), PAPER_RATES)
    official = interpolated_sensitivity(froc_curve(by_point), OFFICIAL_RATES)
    over_all = {
        "patch_specificity": specificity(
            np.concatenate([one.maps[rule] >= threshold for one in test]),
            np.concatenate([one.truth.positive for one in test]),
        ),
        "froc": float(np.mean(paper)) if paper else None,
        "froc_official": float(np.mean(official)) if official else None,
        "map_threshold": threshold,
    }
    rows = [mean_row(labels, slides, over_all)]
    for curve, rates, points in (
        ("paper", PAPER_RATES, paper),
        ("official", OFFICIAL_RATES, official),
    ):
        for rate, value in zip(rates, points, strict=False):
            name = RATE_NAMES.get(rate, f"{rate:g}")
            rows.append(
                Row(
                    {**labels, "froc": curve, "false_positives": name},
                    {"lesion_sensitivity": value},
                )
            )
    details = [
        {
            "slide_id": one.truth.slide_id,
            **labels,
            "dice": own["dice"],
            "marked_share": own["marked_share"],
            "lesions": len(detected.lesion_scores),
            "isolated_lesions": int(one.truth.isolated.sum()),
            "lesions_hit": int((detected.lesion_scores > NOT_FOUND).sum()),
            "false_candidates": len(detected.false_positives),
        }
        for one, own, detected in zip(test, slides, by_overlap, strict=True)
    ]
    return rows, details


def localisation_notes(
    val: Sequence[MappedSlide], test: Sequence[MappedSlide], excluded: Mapping[str, str]
) -> tuple[str, ...]:
    """Who was left out, which figures do not exist and why, and how to read the others."""
    lines = []
    for reason in dict.fromkeys(excluded.values()):
        names = [slide_id for slide_id, why in excluded.items() if why == reason]
        lines.append(f"Excluded ({reason}): {', '.join(names)}.")
    if not test:
        return (*lines, "No test slide has truth and coordinates, so nothing is judged.")
    with_lesion = [bool(one.truth.positive.any()) for one in test]
    if not any(one.truth.positive.any() for one in val):
        lines.append(
            "No validation slide has a lesion, so no threshold can be chosen and nothing is judged."
        )
    if not any(with_lesion):
        lines.append("No test slide has a lesion, so there is neither Dice nor FROC.")
    if all(with_lesion):
        lines.append("Every test slide has a lesion, so normal_specificity does not exist.")
    if not all(one.truth.knows_size for one in test):
        lines.append(
            "Micrometres per pixel are not known for every slide: there, isolated tumour cells "
            "count in froc_official."
        )
    if CONFIRMED_MAP in test[0].maps:
        # Without numbers, so that the note of all folds is one line.
        lines.append(
            "'confirmed evidence' counts the verdict: slides that have no evidence mark nothing. "
            "'evidence' marks the selected patches of every slide."
        )
    lines.append(
        "froc credits a candidate of any size: a map that marks all tissue hits every lesion with "
        "one candidate. Read it beside marked_share and froc_official, where one point decides."
    )
    return tuple(lines)
