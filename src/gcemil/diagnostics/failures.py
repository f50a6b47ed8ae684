"""failures: the six-type audit of the paper, with thresholds stated and slides listed.

  case failure        classification: another class is predicted on X, or the two most probable
                      classes lie within `ambiguity` (the paper's "incorrect or unreliable")
                      survival: the risk agrees with fewer than `min_concordance` of the bag's
                      comparable pairs; regression: the value is a deviation or more off the label
  artifact evidence   at least `artifact_share` of the selected patches show an artifact: by the
                      concepts in truth/, else by the pixels of the slide (slides/tissue.py)
  low sufficiency     not delta_s-sufficient (Definition 1)
  low necessity       not delta_n-necessary (Definition 2)
  semantic mismatch   the anchor to which the selected patches respond most, on average, is none
                      that the predicted class (or the risk) uses: its weight is below
                      `intended_weight_share` of the largest
  severe failure      at least `severe_count` of these five together

A type that cannot be known of a bag is null there and counts as absent in severe failure; a note
explains it. The paper states no thresholds, so its rates cannot be compared with ours; random,
attention and oracle rows can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import find_slide_file
from gcemil.diagnostics.measurements import Measurement, measure_rules
from gcemil.diagnostics.snr import Tolerances
from gcemil.diagnostics.snr_report import bag_record
from gcemil.diagnostics.trained_fold import FoldBag, Measure, Pass, TrainedFold
from gcemil.diagnostics.truth import artifact_concepts, truth_column
from gcemil.errors import GcemilError, UsageError
from gcemil.findings import Figures, Finding, Row, mean_row
from gcemil.metrics import FAILURE_TYPES
from gcemil.shapes import AnchorWeights, Logits, Selected
from gcemil.slides.reader import open_slide
from gcemil.slides.tissue import find_artifacts
from gcemil.tasks.survival import comparable_pairs
from gcemil.tasks.task import ClassificationTask, RegressionTask, Task

MAX_ERROR = 1.0
"""Largest error of a value, in training deviations."""
BASIC_TYPES = tuple(kind for kind in FAILURE_TYPES if kind != "severe_failure")

Record = dict[str, Any]


@Measure
def measure_failures(
    fold: TrainedFold,
    *,
    sufficiency_tolerance: float = 0.05,
    necessity_tolerance: float = 0.05,
    ambiguity: float = 0.1,
    min_concordance: float = 0.5,
    artifact_share: float = 0.25,
    artifacts: Sequence[str] | None = None,
    intended_weight_share: float = 0.5,
    severe_count: int = 2,
) -> Pass[Finding]:
    """The audit of a fold's test bags; `artifacts` names concepts, None takes the cohort's."""
    tolerances = Tolerances(sufficiency_tolerance, necessity_tolerance)
    shares = {
        "ambiguity": ambiguity,
        "min_concordance": min_concordance,
        "artifact_share": artifact_share,
        "intended_weight_share": intended_weight_share,
    }
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{name} lies in [0, 1], got {value}.")
    if not 1 <= severe_count <= len(BASIC_TYPES):
        raise UsageError(
            f"severe_count counts 1 to {len(BASIC_TYPES)} failures, got {severe_count}."
        )
    numbers = artifact_concepts(fold.cohort, artifacts)
    records: list[Record] = []
    by_pixels = 0
    while (bag := (yield "test")) is not None:
        subsets = list(measure_rules(bag, budget=fold.own_budget))
        concepts = None if numbers is None else truth_column(fold.cohort, bag.bag, "concept")
        artifact_numbers = torch.tensor(numbers or (), dtype=torch.long)
        is_artifact = None if concepts is None else torch.isin(concepts, artifact_numbers)
        if is_artifact is None:
            chosen = torch.stack([one.selected for one in subsets]).any(dim=0)
            is_artifact = artifacts_by_pixels(fold.cohort.folder, bag.bag, chosen)
            by_pixels += is_artifact is not None
        for one in subsets:
            record = {
                **bag_record(bag, one, tolerances),
                "case_failure": case_failure(
                    one.outcome.full, bag.spec.target, fold.task, ambiguity
                ),
                **_find_mismatch(bag, one, intended_weight_share),
            }
            share = None if is_artifact is None else is_artifact[one.selected].double().mean()
            record["artifact_fraction"] = None if share is None else float(share)
            record["artifact_evidence"] = None if share is None else float(share) >= artifact_share
            record["low_sufficiency"] = not record["sufficient"]
            record["low_necessity"] = not record["necessary"]
            records.append(record)
    records = [
        {**record, **count_failures(record, severe_count)}
        for record in add_concordance(records, min_concordance)
    ]
    return Finding(
        name="failures",
        rows=tuple(_failure_rows(records, fold)),
        slides=tuple(records),
        notes=tuple(_failure_notes(fold, records, by_pixels)),
    )


def artifacts_by_pixels(cohort: Path, bag: Bag, chosen: Selected) -> Selected | None:
    """Which of the chosen patches show an artifact; None unless every slide can be read."""
    paths = [find_slide_file(cohort, slide_id) for slide_id in bag.slide_ids]
    if bag.coords is None or bag.patch_size is None or None in paths:
        return None
    artifact = torch.zeros(len(bag), dtype=torch.bool)
    for slide_id, path in zip(bag.slide_ids, paths, strict=True):
        rows = chosen[bag.rows_of(slide_id)].nonzero().flatten().tolist()
        coords = bag.slide_coords(slide_id)
        if path is None or coords is None:
            continue
        try:
            with open_slide(path) as slide:
                shown = find_artifacts(slide, coords.astype(np.int64), int(bag.patch_size), rows)
        except GcemilError:
            # A slide that cannot be opened leaves one type of failure unknown.
            return None
        artifact[bag.rows_of(slide_id)] = torch.from_numpy(shown)
    return artifact


def _find_mismatch(bag: FoldBag, one: Measurement, weight_share: float) -> Record:
    """The anchor that a subset shows, and those that its prediction uses."""
    model, explanation = bag.fold.model, bag.explanation
    if model is None or explanation is None:
        return dict.fromkeys(("shown_anchor", "intended_anchors", "semantic_mismatch"))
    # The anchor of highest mean response over the subset, the lower index on ties.
    first = int(explanation.output.responses[one.selected].double().mean(dim=0).argmax())
    intended = intended_anchors(model.anchor_weights(one.outcome.full), weight_share)
    used = intended.nonzero().flatten().tolist()
    return {
        "shown_anchor": model.bank.prompts[first],
        "intended_anchors": [model.bank.prompts[index] for index in used],
        "semantic_mismatch": not bool(intended[first]),
    }


def case_failure(
    logits: Logits, target: int | float | tuple[float | None, ...], task: Task, ambiguity: float
) -> bool | None:
    """Whether the class on X is wrong or undecided, or the value far off; None for a risk."""
    if isinstance(task, RegressionTask) and isinstance(target, float):
        return abs(float(logits[0]) - (target - task.mean) / task.deviation) >= MAX_ERROR
    if not isinstance(target, int):
        return None
    first, second = torch.softmax(logits.double(), dim=0).topk(2).values.tolist()
    return int(logits.argmax()) != target or first - second < ambiguity


def intended_anchors(weights: AnchorWeights, weight_share: float) -> Bool[Tensor, "m"]:
    """The anchors that count for a prediction; all of them while the weights are still 0."""
    return weights.detach() >= weight_share * weights.detach().max()


def add_concordance(records: Sequence[Record], min_concordance: float) -> list[Record]:
    """Survival: whether each bag's risk disagrees with the others of its rule and network."""
    if not records or "time" not in records[0]:
        return list(records)
    judged: list[Record] = []
    for _, own in pd.DataFrame(records).groupby(["network", "rule"], sort=False):
        shares = ordered_share(
            own["phi_full"].to_numpy(), own["time"].to_numpy(), own["event"].to_numpy() == 1
        )
        for row, share in zip(own.index, shares.tolist(), strict=True):
            known = not np.isnan(share)
            failed = share < min_concordance if known else None
            concordance = {"concordance": share if known else None, "case_failure": failed}
            judged.append({**records[row], **concordance})
    return judged


def ordered_share(
    risks: Float[np.ndarray, "n"], times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """Share of each bag's comparable pairs that its risk orders rightly, ties one half."""
    comparable = comparable_pairs(times, events)
    earlier = risks[events][:, None]
    right = comparable * ((earlier > risks) + 0.5 * (earlier == risks))
    pairs, wins = comparable.sum(axis=0).astype(np.float64), right.sum(axis=0)
    # A bag is in a column as the one that lived on and, with an event, in a row.
    pairs[events] += comparable.sum(axis=1)
    wins[events] += right.sum(axis=1)
    return np.divide(wins, pairs, out=np.full(len(risks), np.nan), where=pairs > 0)


def count_failures(record: Record, severe_count: int) -> Record:
    """The basic failures of a slide, and whether they are many."""
    failures = [kind for kind in BASIC_TYPES if record[kind]]
    return {"failures": failures, "severe_failure": len(failures) >= severe_count}


def _failure_rows(records: Sequence[Record], fold: TrainedFold) -> Iterator[Row]:
    """The rate of every type, for every rule and network, over all bags and by class."""
    classes = fold.task.classes if isinstance(fold.task, ClassificationTask) else ()
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["network"], record["rule"]), []).append(record)
    for (network, rule), own in groups.items():
        for name in ("all", *classes):
            shares: list[Figures] = [
                {f"{t}_share": None if one[t] is None else float(one[t]) for t in FAILURE_TYPES}
                for one in own
                if name in ("all", one.get("target"))
            ]
            if shares:
                labels = {"rule": rule, "network": network, "class": name}
                yield mean_row(labels, shares, {"audited_slides": float(len(shares))})


def _failure_notes(fold: TrainedFold, records: Sequence[Record], by_pixels: int) -> Iterator[str]:
    """What could not be known, and for how many bags."""
    n_bags = len({record["bag_id"] for record in records})
    if by_pixels:
        yield (
            f"Artifacts of {by_pixels} of {n_bags} bags are detected by the pixels of their "
            "patches: glass, ink, out of focus."
        )
    for kind, reason in {
        "case_failure": "a bag without a comparable pair cannot be ordered wrongly",
        "artifact_evidence": "the cohort does not state which patches show artifacts, and holds no "
        "slides to look at",
        "semantic_mismatch": "the run has no wrapper, so it has no anchors",
    }.items():
        if unknown := {record["bag_id"] for record in records if record[kind] is None}:
            name = kind.replace("_", " ").capitalize()
            yield f"{name} is unknown for {len(unknown)} of {n_bags} bags: {reason}."
    if fold.model is not None and fold.model.bank.kind == "prototypes":
        yield (
            "The anchors are prototypes: a semantic mismatch is about clusters of patches, not "
            "concepts."
        )
