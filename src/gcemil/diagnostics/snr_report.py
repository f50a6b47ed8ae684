"""snr: every subset rule of a trained fold judged by S/N/R, over all bags, class by class and slide by slide.

A row has labels rule, network, class and comparison. The comparison says what X_S is held against, so that the two gaps
of the contract never meet in one row:

  full-kept   X against X_S and X_notS, for every rule: full_kept_gap, drops and degradations, sizes, truth
  soft-kept   X_pi against X_S, for gated evidence alone: cd_gap, gate margin and the recoverability bound

Every question is asked twice: of the task metric M (keep_only_drop, complement_degradation, cd_metric_gap) and of the
slide's output Phi (keep_only_effect, removal_effect, cd_gap). A signed difference of risks or values has no better side,
so survival and regression have the absolute ones only. In the row of one class M is the F1 of that class over all bags, and figures per
slide are means over the bags of that class.

Rules that are judged (rules.py), each at the size of the recovered evidence:

  evidence    the wrapper's own, under the wrapped host
  attention   the highest raw scores of the host that is asked
  rivals      contribution, occlusion and single, where the host gives them at the cost of a pass
  random      one draw per bag, the same for both networks
  oracle      truth first, one region after another, then attention; only where the truth is known
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
from gcemil.diagnostics.snr import Score, Tolerances, judge_subset, score_where_defined
from gcemil.diagnostics.trained_fold import FoldBag, Measure, Pass, TrainedFold
from gcemil.diagnostics.truth import NO_TRUTH, TRUTH_FIGURES
from gcemil.findings import Figures, Finding, Row, mean_row
from gcemil.outputs import create_output
from gcemil.recovery import subset_size
from gcemil.shapes import Logits
from gcemil.tasks.task import ClassificationTask, Task, as_array

RIVALS = ("contribution", "occlusion", "single")
"""Rankings of the host itself that cost no more than a pass; `budget` and `posthoc` ask the dearer ones too."""
RUNAWAY_BUDGETS = 2
"""Evidence of more than so many budgets has run away."""

SHARES = {
    "sufficient_share": "sufficient",
    "necessary_share": "necessary",
    "both_share": "both",
    "no_evidence_share": "no_evidence",
    "recoverable_share": "recoverable",
    "empty_share": "empty",
    "runaway_share": "runaway",
    "coverage_broken_share": "coverage_broken",
    "margin_broken_share": "margin_broken",
}
"""Figures that are the share of slides of which something is true."""
FULL_KEPT = (
    "full_kept_gap", "keep_only_effect", "kept_output", "removal_gap", "removal_effect", "sufficient_share",
    "necessary_share", "both_share", "no_evidence_share", "evidence_fraction", "empty_share", "runaway_share", *TRUTH_FIGURES,
    "coverage_residual", "coverage_bound", "coverage_slack", "coverage_broken_share",
)  # fmt: skip
SOFT_KEPT = (
    "cd_gap", "recoverable_share", "gate_margin", "gate_distance", "margin_bound", "margin_slack",
    "margin_broken_share",
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
    """S/N/R of a fold's test bags; `budget` None is the run's own, 5 % for a run without a wrapper."""
    tolerances = Tolerances(sufficiency_tolerance, necessity_tolerance, recoverability_tolerance)
    budget = fold.own_budget if budget is None else budget
    complete = yield from estimate_completeness.steps(fold)
    rivals = {
        network: choose_attributions(fold.host_of(network), RIVALS) for network in fold.networks
    }
    groups = Groups()
    slides: list[dict[str, Any]] = []
    while (bag := (yield "test")) is not None:
        for one in measure_rules(bag, budget=budget, rivals=rivals):
            record = _snr_record(
                bag, one, tolerances, complete, budget=budget, slope_points=slope_points
            )
            groups.add({"rule": one.rule, "network": one.network}, bag.target, one.outcome, record)
            slides.append(record)
    return Finding(
        name="snr",
        rows=tuple(snr_rows(groups, fold.task, complete)),
        slides=tuple(slides),
        notes=tuple(_snr_notes(fold, groups, complete)),
        settings={"budget": budget, "runaway_budgets": RUNAWAY_BUDGETS},
    )


def _snr_record(
    bag: FoldBag,
    one: Measurement,
    tolerances: Tolerances,
    complete: Completeness | None,
    *,
    budget: float,
    slope_points: int,
) -> dict[str, Any]:
    """Everything that is known of one subset of one bag."""
    model, explanation = bag.fold.model, bag.explanation
    record = {**bag_record(bag, one, tolerances), **one.figures}
    if one.rule != "evidence" or explanation is None or model is None:
        return record
    gates, recovery = explanation.output.gates, explanation.recovery
    return {
        **record,
        "no_evidence": not explanation.verdict.is_necessary,
        "empty": not bool((gates > model.settings.selection_threshold).any()),
        "runaway": record["n_selected"] > subset_size(len(bag), min(1.0, RUNAWAY_BUDGETS * budget)),
        "stop_reason": recovery.stop_reason.value,
        **recoverability_figures(bag, one.outputs, points=slope_points),
        **coverage_figures(model, explanation, one.outputs, complete),
    }


def snr_rows(groups: Groups, task: Task, complete: Completeness | None) -> Iterator[Row]:
    """One row for every rule, network, class that occurs and comparison."""
    scores: dict[str, Score] = {"all": score_where_defined(task)}
    if isinstance(task, ClassificationTask):
        scores |= {name: _class_f1(task, index) for index, name in enumerate(task.classes)}
    for labels, group in groups.items():
        for index, (name, score) in enumerate(scores.items(), start=-1):
            pairs = zip(group.records, group.targets, strict=True)
            records = [record for record, target in pairs if name == "all" or int(target) == index]
            if not records:
                continue
            own, values = {**labels, "class": name}, group.metrics(score)
            if labels["rule"] == "evidence" and complete is not None:
                values |= {
                    "anchor_completeness": complete.eta,
                    "output_slope": complete.output_slope,
                }
            yield mean_row(
                {**own, "comparison": "full-kept"}, _pick_figures(records, FULL_KEPT), values
            )
            if labels["rule"] == "evidence":
                values = group.gated_metrics(score)
                yield mean_row(
                    {**own, "comparison": "soft-kept"}, _pick_figures(records, SOFT_KEPT), values
                )


def _pick_figures(records: Sequence[dict[str, Any]], names: Sequence[str]) -> list[Figures]:
    """These figures of every slide; those that the rule does not have are left out."""
    keys = {name: SHARES.get(name, name) for name in names}
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
    """What a reader of the rows must know."""
    yield from groups.explain_missing_metric(fold.task)
    if not any(labels["rule"] == "oracle" for labels, _ in groups.items()):
        yield NO_TRUTH
    if fold.model is None:
        yield "The run has no wrapper: 'wrapped' is its own host, and subsets hold the budget's share of each bag."
        return
    if complete is None or complete.bound(0.0) is None:
        yield "No finite eta fits the validation bags, so the coverage bound has no right-hand side."
    if fold.host.reweights_features:
        yield "This host multiplies features by gates: a gate of 0 is no removal, and the recoverability bound may be broken."


def bag_record(bag: FoldBag, one: Measurement, tolerances: Tolerances) -> dict[str, Any]:
    """What identifies a measured subset in a list of slides, and the outputs and verdicts it has."""
    outputs, verdict = one.outputs, judge_subset(one.outputs, tolerances)
    task, target = bag.fold.task, bag.spec.target
    outcome, kind = one.outcome, create_output(bag.fold.cohort.card.task, task.n_outputs)
    truth: dict[str, Any]
    if isinstance(target, int):
        names = task.classes if isinstance(task, ClassificationTask) else ()
        truth = {"target": names[target], "predicted": names[int(one.outcome.full.argmax())]}
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
