"""snr: every subset rule of a trained fold judged by S/N/R, over all bags, by class and by slide.

Rows have the labels rule, network, class and comparison; the last keeps the two gaps apart:

  full-kept   X against X_S and X_notS, for every rule: full_kept_gap, drops and degradations, sizes
  soft-kept   X_pi against X_S, for gated evidence alone: cd_gap, gate margin, recoverability bound

Effects are measured on the task metric M (keep_only_drop, complement_degradation, cd_metric_gap)
and on the output Phi (keep_only_effect, removal_effect, cd_gap). A signed difference of risks or
values has no better side, so only absolute ones are given for numbers. In the row of one class M is
the F1 of that class over all bags, and figures per slide are means over the bags of that class.

Rules (rules.py), each at the size of the recovered evidence: the evidence, attention, the rivals
that cost one pass (contribution, occlusion, single), random, and oracle if the truth is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor

from gcemil.diagnostics.bounds import (
    Completeness,
    coverage_figures,
    estimate_completeness,
    recoverability_figures,
)
from gcemil.diagnostics.measurements import Groups, Measurement, measure_rules
from gcemil.diagnostics.rules import choose_attributions
from gcemil.diagnostics.snr import (
    BagOutputs,
    Score,
    Tolerances,
    gated_metrics,
    judge_subset,
    score_where_defined,
    subset_metrics,
)
from gcemil.diagnostics.trained_fold import FoldBag, Measure, Pass, TrainedFold
from gcemil.diagnostics.truth import NO_TRUTH, TRUTH_FIGURES
from gcemil.findings import Figures, Finding, Row, mean_row
from gcemil.outputs import create_output
from gcemil.recovery import subset_size
from gcemil.shapes import Logits
from gcemil.tasks.task import ClassificationTask, Task, as_array

RIVALS = ("contribution", "occlusion", "single")
"""Rankings of the host that cost one pass; `budget` and `posthoc` have the dearer ones too."""
RUNAWAY_BUDGETS = 2
"""Evidence of more budgets than this has run away."""

FULL_KEPT = (
    "full_kept_gap", "keep_only_effect", "kept_output", "removal_gap", "removal_effect",
    "sufficient_share", "necessary_share", "both_share", "no_evidence_share", "evidence_fraction",
    "empty_share", "runaway_share", *TRUTH_FIGURES,
    "coverage_residual", "coverage_bound", "coverage_slack", "coverage_broken_share",
)  # fmt: skip
SOFT_KEPT = (
    "cd_gap", "recoverable_share", "gate_margin", "gate_distance",
    "margin_bound", "margin_slack", "margin_broken_share",
)  # fmt: skip


@Measure
def measure_snr(
    fold: TrainedFold,
    *,
    sufficiency_tolerance: float = 0.05,
    necessity_tolerance: float = 0.05,
    recoverability_tolerance: float = 0.01,
    budget: float | None = None,
    slope_points: int = 5,
) -> Pass[Finding]:
    """S/N/R of a fold's test bags; `budget` None is the run's own, or 5 % without a wrapper."""
    tolerances = Tolerances(sufficiency_tolerance, necessity_tolerance, recoverability_tolerance)
    budget = fold.own_budget if budget is None else budget
    complete = yield from estimate_completeness.steps(fold)
    rivals = choose_attributions(fold, RIVALS)
    groups = Groups()
    slides: list[dict[str, Any]] = []
    while (bag := (yield "test")) is not None:
        for one in measure_rules(bag, budget=budget, rivals=rivals):
            record = {**bag_record(bag, one, tolerances), **one.figures}
            if one.rule == "evidence":
                limit = subset_size(len(bag), min(1.0, RUNAWAY_BUDGETS * budget))
                record["runaway"] = record["n_selected"] > limit
                record |= _evidence_record(bag, one.outputs, complete, slope_points)
            groups.add({"rule": one.rule, "network": one.network}, bag.target, one.outcome, record)
            slides.append(record)
    return Finding(
        name="snr",
        rows=tuple(snr_rows(groups, fold.task, complete)),
        slides=tuple(slides),
        notes=tuple(_snr_notes(fold, groups, complete)),
        settings={"budget": budget, "runaway_budgets": RUNAWAY_BUDGETS},
    )


def _evidence_record(
    bag: FoldBag, outputs: BagOutputs, complete: Completeness | None, slope_points: int
) -> dict[str, Any]:
    """The figures that the recovered evidence alone has."""
    model, explanation = bag.fold.model, bag.explanation
    if explanation is None or model is None:
        return {}
    gates = explanation.output.gates
    return {
        "no_evidence": not explanation.verdict.is_necessary,
        "empty": not bool((gates > model.settings.selection_threshold).any()),
        "stop_reason": explanation.recovery.stop_reason.value,
        **recoverability_figures(bag, outputs, points=slope_points),
        **coverage_figures(model, explanation, outputs, complete),
    }


def snr_rows(groups: Groups, task: Task, complete: Completeness | None) -> Iterator[Row]:
    """One row for every rule, network, class that occurs and comparison."""
    scores: dict[str, Score] = {"all": score_where_defined(task)}
    if isinstance(task, ClassificationTask):
        scores |= {name: _class_f1(task, index) for index, name in enumerate(task.classes)}
    for group in groups.values():
        is_evidence = group.labels["rule"] == "evidence"
        for index, (name, score) in enumerate(scores.items(), start=-1):
            pairs = zip(group.records, group.targets, strict=True)
            records = [record for record, target in pairs if name == "all" or int(target) == index]
            if not records:
                continue
            labels = {**group.labels, "class": name}
            values = subset_metrics(group.outcomes, group.targets, score)
            if is_evidence and complete is not None:
                values |= {
                    "anchor_completeness": complete.eta,
                    "output_slope": complete.output_slope,
                }
            figures = _pick_figures(records, FULL_KEPT)
            yield mean_row({**labels, "comparison": "full-kept"}, figures, values)
            if is_evidence:
                values = gated_metrics(group.outcomes, group.targets, score)
                figures = _pick_figures(records, SOFT_KEPT)
                yield mean_row({**labels, "comparison": "soft-kept"}, figures, values)


def _pick_figures(records: Sequence[dict[str, Any]], names: Sequence[str]) -> list[Figures]:
    """These figures of every slide; `<name>_share` is the share of slides with a true `<name>`."""
    keys = {name: name.removesuffix("_share") for name in names}
    return [
        {
            name: None if one[key] is None else float(one[key])
            for name, key in keys.items()
            if key in one
        }
        for one in records
    ]


def _class_f1(task: ClassificationTask, class_index: int) -> Score:
    """F1 of one class against all others; None where it is neither true nor predicted."""

    def score(targets: Tensor, logits: Sequence[Logits]) -> float | None:
        predicted = as_array(task.prediction(torch.stack(list(logits)))).argmax(axis=1)
        (f1,) = f1_score(
            as_array(targets), predicted, labels=[class_index], average=None, zero_division=np.nan
        )
        return None if np.isnan(f1) else float(f1)

    return score


def _snr_notes(fold: TrainedFold, groups: Groups, complete: Completeness | None) -> Iterator[str]:
    yield from groups.explain_missing_metric(fold.task)
    if not any(group.labels["rule"] == "oracle" for group in groups.values()):
        yield NO_TRUTH
    if fold.model is None:
        yield (
            "The run has no wrapper: 'wrapped' is its own host, and subsets hold the budget's "
            "share of each bag."
        )
        return
    if complete is None or complete.bound(0.0) is None:
        yield (
            "No finite eta fits the validation bags, so the coverage bound has no right-hand side."
        )
    if fold.host.reweights_features:
        yield (
            "This host multiplies features by gates: a gate of 0 is not a removal, and the "
            "recoverability bound may be broken."
        )


def bag_record(bag: FoldBag, one: Measurement, tolerances: Tolerances) -> dict[str, Any]:
    """The entry of a measured subset in a list of slides: its bag, outputs and verdicts."""
    outputs, verdict = one.outputs, judge_subset(one.outputs, tolerances)
    task, target = bag.fold.task, bag.spec.target
    outcome, kind = one.outcome, create_output(bag.fold.cohort.card.task, task.n_outputs)
    truth: dict[str, Any]
    if isinstance(target, int):
        names = task.classes if isinstance(task, ClassificationTask) else ()
        truth = {"target": names[target], "predicted": names[int(outcome.full.argmax())]}
    elif isinstance(target, float):
        truth = {"target": target, "value": float(task.prediction(outcome.full))}
    else:
        truth = {"time": target[0], "event": target[1]}
    return {
        "bag_id": bag.spec.bag_id,
        "case_id": bag.spec.case_id,
        "slide_ids": list(bag.bag.slide_ids),
        "rule": one.rule,
        "network": one.network,
        **truth,
        "n_patches": len(bag),
        "n_selected": int(one.selected.sum()),
        "phi_full": outputs.full,
        "phi_soft": outputs.gated,
        "phi_kept": outputs.kept,
        "phi_removed": outputs.removed,
        # A number has no class to keep.
        "keeps_class": None if kind.is_number else kind.same_class(outcome.full, outcome.kept),
        "changes_class": None
        if kind.is_number or outcome.removed is None
        else not kind.same_class(outcome.full, outcome.removed),
        **vars(verdict),
        "both": verdict.sufficient and verdict.necessary,
    }
