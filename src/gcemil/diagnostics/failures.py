"""failures: the six-type audit of the paper, with thresholds stated and slides listed.

  case failure        classification: another class is predicted on X, or the two most probable classes lie within
                      `ambiguity` of each other (the paper's "incorrect or unreliable")
                      survival: the risk agrees with fewer than `min_concordance` of the bag's comparable pairs
  artifact evidence   at least `artifact_share` of the selected patches show an artifact: by the concepts in truth/, else by the
                      pixels of the slide in slides/ (glass, ink, out of focus; slides/tissue.py)
  low sufficiency     not delta_s-sufficient (Definition 1)
  low necessity       not delta_n-necessary (Definition 2)
  semantic mismatch   the anchor to which the selected patches respond most, on average, is none that the predicted class
                      (or the risk) uses: its weight is below `intended_weight_share` of the largest
  severe failure      at least `severe_count` of these five together

A type that cannot be known of a bag is null there and counts as absent in severe failure; a note says so. The paper
states no thresholds, so its rates are no yardstick for ours; random, attention and oracle rows are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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

BASIC_TYPES = tuple(kind for kind in FAILURE_TYPES if kind != "severe_failure")

Record = dict[str, Any]


@dataclass(frozen=True)
class Thresholds:
    """Where the audit draws its lines."""

    ambiguity: float = 0.1
    min_concordance: float = 0.5
    artifact_share: float = 0.25
    intended_weight_share: float = 0.5
    severe_count: int = 2
    max_error: float = 1.0
    """Of a value, in training deviations."""

    def __post_init__(self) -> None:
        for name in ("ambiguity", "min_concordance", "artifact_share", "intended_weight_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} lies in [0, 1], got {getattr(self, name)}.")
        if not 1 <= self.severe_count <= len(BASIC_TYPES):
            raise UsageError(
                f"severe_count counts 1 to {len(BASIC_TYPES)} failures, got {self.severe_count}."
            )


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
    """The audit of a fold's test bags; `artifacts` names the concepts that are artifacts, None asks the cohort."""
    tolerances = Tolerances(sufficiency_tolerance, necessity_tolerance)
    lines = Thresholds(
        ambiguity, min_concordance, artifact_share, intended_weight_share, severe_count
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
        records += [_failure_record(bag, one, tolerances, is_artifact, lines) for one in subsets]
    records = [
        {**record, **count_failures(record, lines)} for record in add_concordance(records, lines)
    ]
    return Finding(
        name="failures",
        rows=tuple(_failure_rows(records, fold)),
        slides=tuple(records),
        notes=tuple(_failure_notes(fold, records, by_pixels)),
    )


def artifacts_by_pixels(cohort: Path, bag: Bag, chosen: Selected) -> Selected | None:
    """Which of the chosen patches show an artifact in their slide; None unless every slide of the bag can be read."""
    paths = [find_slide_file(cohort, slide_id) for slide_id in bag.slide_ids]
    if bag.coords is None or bag.patch_size is None or None in paths:
        return None
    found = torch.zeros(len(bag), dtype=torch.bool)
    for slide_id, path in zip(bag.slide_ids, paths, strict=True):
        rows = chosen[bag.rows_of(slide_id)].nonzero().flatten().tolist()
        coords = bag.slide_coords(slide_id)
        if path is None or coords is None:
            continue
        try:
            with open_slide(path) as slide:
                shown = find_artifacts(slide, coords.astype(np.int64), int(bag.patch_size), rows)
        except GcemilError:
            # The audit is about the run; a slide that cannot be opened here leaves one kind of failure unknown.
            return None
        found[bag.rows_of(slide_id)] = torch.from_numpy(shown)
    return found


def _failure_record(
    bag: FoldBag,
    one: Measurement,
    tolerances: Tolerances,
    is_artifact: Selected | None,
    lines: Thresholds,
) -> Record:
    """Every type that one bag shows by itself; the concordance of a survival bag needs the others."""
    share = None if is_artifact is None else float(is_artifact[one.selected].double().mean())
    record = bag_record(bag, one, tolerances)
    shown = prompts = mismatch = None
    model = bag.fold.model
    if model is not None and bag.explanation is not None:
        # The anchor of highest mean response over the subset, the lower index where two are equal.
        first = int(bag.explanation.output.responses[one.selected].double().mean(dim=0).argmax())
        intended = intended_anchors(
            model.anchor_weights(one.outcome.full), lines.intended_weight_share
        )
        prompts = [
            prompt
            for prompt, used in zip(model.bank.prompts, intended.tolist(), strict=True)
            if used
        ]
        shown, mismatch = model.bank.prompts[first], not bool(intended[first])
    return {
        **record,
        "case_failure": case_failure(one.outcome.full, bag.spec.target, bag.fold.task, lines),
        "artifact_fraction": share,
        "artifact_evidence": None if share is None else share >= lines.artifact_share,
        "low_sufficiency": not record["sufficient"],
        "low_necessity": not record["necessary"],
        "shown_anchor": shown,
        "intended_anchors": prompts,
        "semantic_mismatch": mismatch,
    }


def case_failure(
    logits: Logits, target: int | float | tuple[float | None, ...], task: Task, lines: Thresholds
) -> bool | None:
    """Whether the class on X is wrong or undecided, or the value `max_error` or more away from the label.

    None for a risk, which is right or wrong only among others.
    """
    if isinstance(task, RegressionTask) and isinstance(target, float):
        return abs(float(logits[0]) - (target - task.mean) / task.deviation) >= lines.max_error
    if not isinstance(target, int):
        return None
    first, second = torch.softmax(logits.double(), dim=0).topk(2).values.tolist()
    return int(logits.argmax()) != target or first - second < lines.ambiguity


def intended_anchors(weights: AnchorWeights, weight_share: float) -> Bool[Tensor, "m"]:
    """The anchors that count for a prediction; all of them while the weights are still 0."""
    return weights.detach() >= weight_share * weights.detach().max()


def add_concordance(records: Sequence[Record], lines: Thresholds) -> list[Record]:
    """Survival: whether each bag's risk goes against the others; classification has its answer already."""
    if not records or "time" not in records[0]:
        return list(records)
    judged: list[Record] = []
    for key in dict.fromkeys((record["network"], record["rule"]) for record in records):
        own = [record for record in records if (record["network"], record["rule"]) == key]
        risks, times = (np.array([record[name] for record in own]) for name in ("phi_full", "time"))
        shares = ordered_share(risks, times, np.array([record["event"] == 1 for record in own]))
        for record, share in zip(own, shares.tolist(), strict=True):
            known = not np.isnan(share)
            failed = share < lines.min_concordance if known else None
            judged.append(
                {**record, "concordance": share if known else None, "case_failure": failed}
            )
    return judged


def ordered_share(
    risks: Float[np.ndarray, "n"], times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """Share of each bag's comparable pairs that its risk orders rightly, ties one half; NaN without a pair."""
    comparable = comparable_pairs(times, events)
    earlier = risks[events][:, None]
    right = comparable * ((earlier > risks) + 0.5 * (earlier == risks))
    pairs, wins = comparable.sum(axis=0).astype(np.float64), right.sum(axis=0)
    # A bag takes part as the one that lived on (columns) and, with an event, as the one that did not (rows).
    pairs[events] += comparable.sum(axis=1)
    wins[events] += right.sum(axis=1)
    return np.divide(wins, pairs, out=np.full(len(risks), np.nan), where=pairs > 0)


def count_failures(record: Record, lines: Thresholds) -> Record:
    """The basic failures of a slide, and whether they are many."""
    found = [kind for kind in BASIC_TYPES if record[kind]]
    return {"failures": found, "severe_failure": len(found) >= lines.severe_count}


def _failure_rows(records: Sequence[Record], fold: TrainedFold) -> Iterator[Row]:
    """The rate of every type, for every rule and network, over all bags and by class."""
    classes = fold.task.classes if isinstance(fold.task, ClassificationTask) else ()
    for network, rule in dict.fromkeys((record["network"], record["rule"]) for record in records):
        own = [
            record for record in records if (record["network"], record["rule"]) == (network, rule)
        ]
        for name in ("all", *classes):
            shares: list[Figures] = [
                {
                    f"{kind}_share": None if one[kind] is None else float(one[kind])
                    for kind in FAILURE_TYPES
                }
                for one in own
                if name in ("all", one.get("target"))
            ]
            if shares:
                labels = {"rule": rule, "network": network, "class": name}
                yield mean_row(labels, shares, {"audited_slides": float(len(shares))})


def _failure_notes(fold: TrainedFold, records: Sequence[Record], by_pixels: int) -> Iterator[str]:
    """What could not be known, and of how many bags."""
    n_bags = len({record["bag_id"] for record in records})
    if by_pixels:
        yield (
            f"Artifacts of {by_pixels} of {n_bags} bags are told by the pixels of their patches: glass, ink, out of focus."
        )
    for kind, remedy in {
        "case_failure": "a bag without a comparable pair cannot be ordered wrongly",
        "artifact_evidence": "the cohort does not say which patches show artifacts, and holds no slides to look at",
        "semantic_mismatch": "the run has no wrapper, so it has no anchors",
    }.items():
        unknown = {record["bag_id"] for record in records if record[kind] is None}
        if unknown:
            yield f"{kind.replace('_', ' ').capitalize()} is unknown for {len(unknown)} of {n_bags} bags: {remedy}."
    if fold.model is not None and fold.model.bank.kind == "prototypes":
        yield "The anchors are prototypes: a semantic mismatch speaks of clusters of patches, not of concepts."
