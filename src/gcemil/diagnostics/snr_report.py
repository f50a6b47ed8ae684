"""snr: every subset rule of a trained fold judged by S/N/R, over all bags, class by class and slide by slide.

A row has labels rule, network, class and comparison. The comparison says what X_S is held against, so that the two gaps
of the contract never meet in one row:

  full-kept   X against X_S and X_notS, for every rule: full_kept_gap, drops and degradations, sizes, truth
  soft-kept   X_pi against X_S, for gated evidence alone: cd_gap, gate margin and the recoverability bound

Every question is asked twice: of the task metric M (keep_only_drop, complement_degradation, cd_metric_gap) and of the
slide's output Phi (keep_only_effect, removal_effect, cd_gap). A signed difference of risks has no better side, so
survival has the absolute ones only. In the row of one class M is the F1 of that class over all bags, and figures per
slide are means over the bags of that class.

Rules that are judged (rules.py), each at the size of the recovered evidence:

  evidence    the wrapper's own, under the wrapped host
  attention   the highest raw scores of the host that is asked
  rivals      contribution, occlusion and single, where the host gives them at the cost of a pass
  random      one draw per bag, the same for both networks
  oracle      truth first, one region after another, then attention; only where the truth is known
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gcemil.diagnostics.attribution import Attribution
from gcemil.diagnostics.bounds import (
    Completeness,
    coverage_figures,
    estimate_completeness,
    recoverability_figures,
)
from gcemil.diagnostics.rules import RuleSubset, choose_attributions, rival_subsets, rule_subsets
from gcemil.diagnostics.snr import (
    BagOutcome,
    BagOutputs,
    Score,
    Tolerances,
    Verdict,
    bag_outcome,
    explain_missing_metric,
    gated_metrics,
    judge_subset,
    score_where_defined,
    subset_metrics,
)
from gcemil.diagnostics.trained_fold import FoldBag, Measure, NetworkName, Pass, TrainedFold
from gcemil.diagnostics.truth import NO_TRUTH, TRUTH_FIGURES, truth_figures
from gcemil.explain import Explanation
from gcemil.findings import Figures, Finding, Labels, Row, mean_row
from gcemil.model import GceMil
from gcemil.recovery.recover import subset_size
from gcemil.shapes import Logits
from gcemil.tasks.classification import confusion
from gcemil.tasks.task import ClassificationTask, Task, as_array, target_tensor

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


@dataclass(frozen=True, eq=False)
class Trial:
    """What is kept of one judged subset: four predictions, the target, and the slide's record."""

    outcome: BagOutcome
    target: Tensor
    record: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """Network and rule."""
        return self.record["network"], self.record["rule"]


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
    generator = torch.Generator().manual_seed(fold.seed)
    rivals = {network: choose_attributions(fold.host_of(network), RIVALS) for network in fold.networks}
    trials: list[Trial] = []
    while (bag := (yield "test")) is not None:
        for judged in judge_subsets(bag, fold, tolerances, generator=generator, budget=budget, rivals=rivals):
            record = _snr_record(bag, fold, judged, complete, budget=budget, slope_points=slope_points)
            trials.append(Trial(judged.outcome, target_tensor(bag.spec), record))
    return Finding(
        name="snr",
        rows=tuple(snr_rows(trials, fold.task, complete)),
        slides=tuple(one.record for one in trials),
        notes=tuple(_snr_notes(fold, trials, complete)),
        settings={
            **{f"{name}_tolerance": value for name, value in asdict(tolerances).items()},
            "budget": budget,
            "runaway_budgets": RUNAWAY_BUDGETS,
            "slope_points": slope_points,
            "seed": fold.seed,
        },
    )


def _snr_record(
    bag: FoldBag,
    fold: TrainedFold,
    judged: JudgedSubset,
    complete: Completeness | None,
    *,
    budget: float,
    slope_points: int,
) -> dict[str, Any]:
    """Everything that is known of one subset of one bag."""
    record = {
        **bag_record(bag, judged, fold.task),
        **_output_figures(judged, fold.task),
        **truth_figures(judged.selected, judged.scores, bag.truth, bag.regions),
    }
    explanation = bag.explanation
    if judged.rule != "evidence" or explanation is None or fold.model is None:
        return record
    return {
        **record,
        "no_evidence": not explanation.check.is_necessary,
        **_size_facts(fold.model, explanation, budget),
        **recoverability_figures(fold.model, bag, fold, explanation, judged.outputs, points=slope_points),
        **coverage_figures(fold.model, explanation, judged.outputs, complete),
    }


def _output_figures(judged: JudgedSubset, task: Task) -> Figures:
    """The interventions on Phi."""
    outputs = judged.outputs
    removed = outputs.removed
    signed = task.n_outputs > 1
    return {
        "full_kept_gap": outputs.full_kept_gap,
        "removal_gap": outputs.removal_gap,
        "cd_gap": outputs.cd_gap,
        "kept_output": outputs.kept if signed else None,
        "keep_only_effect": outputs.full - outputs.kept if signed else None,
        "removal_effect": outputs.full - removed if signed and removed is not None else None,
        "evidence_fraction": judged.outcome.fraction,
    }


def _size_facts(model: GceMil, explanation: Explanation, budget: float) -> dict[str, Any]:
    """How the evidence got its size, and whether it got out of hand."""
    gates, recovery = explanation.output.gates, explanation.recovery
    most = subset_size(len(gates), min(1.0, RUNAWAY_BUDGETS * budget))
    return {
        "empty": not bool((gates > model.settings.selection_threshold).any()),
        "runaway": int(recovery.selected.sum()) > most,
        "stop_reason": recovery.stop_reason.value,
    }


def snr_rows(trials: Sequence[Trial], task: Task, complete: Completeness | None) -> Iterator[Row]:
    """One row for every rule, network, class and comparison."""
    for network, rule in dict.fromkeys(one.key for one in trials):
        own = [one for one in trials if one.key == (network, rule)]
        outcomes, targets = [one.outcome for one in own], torch.stack([one.target for one in own])
        for name, members, score in _class_groups(own, task):
            labels = {"rule": rule, "network": network, "class": name}
            values = subset_metrics(outcomes, targets, score)
            if rule == "evidence" and complete is not None:
                values |= {"anchor_completeness": complete.eta, "output_slope": complete.output_slope}
            yield _add_slide_means({**labels, "comparison": "full-kept"}, values, members, FULL_KEPT)
            if rule == "evidence":
                values = gated_metrics(outcomes, targets, score)
                yield _add_slide_means({**labels, "comparison": "soft-kept"}, values, members, SOFT_KEPT)


def _class_groups(own: Sequence[Trial], task: Task) -> Iterator[tuple[str, Sequence[Trial], Score]]:
    """All bags, then the bags of each class that occurs; with the M by which each group is judged."""
    yield "all", own, score_where_defined(task)
    if not isinstance(task, ClassificationTask):
        return
    for index, name in enumerate(task.classes):
        members = [one for one in own if int(one.target) == index]
        if members:
            yield name, members, _class_f1(task, index)


def _add_slide_means(labels: Labels, values: Figures, members: Sequence[Trial], names: Sequence[str]) -> Row:
    """Figures of M beside means over slides; figures that the rule does not have are left out."""
    keys = {name: SHARES.get(name, name) for name in names}
    per_slide = [
        {
            name: None if one.record[key] is None else float(one.record[key])
            for name, key in keys.items()
            if key in one.record
        }
        for one in members
    ]
    return mean_row(labels, per_slide, values)


def _class_f1(task: ClassificationTask, class_index: int) -> Score:
    """F1 of one class against all others; None where it is neither true nor predicted."""

    def score(targets: Tensor, logits: Sequence[Logits]) -> float | None:
        matrix = confusion(as_array(targets), as_array(task.prediction(torch.stack(list(logits)))))
        occurrences = matrix[class_index].sum() + matrix[:, class_index].sum()
        return float(2 * matrix[class_index, class_index] / occurrences) if occurrences else None

    return score


def _snr_notes(fold: TrainedFold, trials: Sequence[Trial], complete: Completeness | None) -> Iterator[str]:
    """What a reader of the rows must know."""
    own = [one for one in trials if one.key == trials[0].key]
    targets = torch.stack([one.target for one in own])
    yield from explain_missing_metric(fold.task, targets, [one.outcome.full for one in own])
    if not any(one.record["rule"] == "oracle" for one in trials):
        yield NO_TRUTH
    if fold.model is None:
        yield "The run has no wrapper: 'wrapped' is its own host, and subsets hold the budget's share of each bag."
        return
    if complete is None or complete.bound(0.0) is None:
        yield "No finite eta fits the validation bags, so the coverage bound has no right-hand side."
    if fold.host.reweights_features:
        yield "This host multiplies features by gates: a gate of 0 is no removal, and the recoverability bound may be broken."


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgedSubset(RuleSubset):
    """A rule's subset, put to the test under one network."""

    network: NetworkName
    outcome: BagOutcome
    outputs: BagOutputs
    verdict: Verdict


def judge_subsets(
    bag: FoldBag,
    fold: TrainedFold,
    tolerances: Tolerances,
    *,
    generator: torch.Generator,
    budget: float,
    rivals: Mapping[NetworkName, Mapping[str, Attribution]] | None = None,
) -> Iterator[JudgedSubset]:
    """Every rule under every network, all of one size; `budget` gives it where there is no wrapper."""
    random = torch.rand(len(bag), generator=generator)
    for network in fold.networks:
        predicted = bag.predict(network)
        subsets = list(rule_subsets(bag, network, predicted.full, random, budget=budget))
        if rivals is not None:
            size = int(subsets[0].selected.sum())
            subsets += rival_subsets(predicted, rivals[network], size)
        for subset in subsets:
            full = predicted.full.logits
            outcome = bag_outcome(predicted.asked, subset.selected, subset.log_gates, full=full)
            outputs = fold.output_scale(network).read(outcome)
            yield JudgedSubset(
                **vars(subset),
                network=network,
                outcome=outcome,
                outputs=outputs,
                verdict=judge_subset(outputs, tolerances),
            )


def bag_record(bag: FoldBag, judged: JudgedSubset, task: Task) -> dict[str, Any]:
    """What identifies a judged subset in a list of slides, and the outputs and verdicts it has."""
    outputs = judged.outputs
    return {
        "bag_id": bag.spec.bag_id,
        "case_id": bag.spec.case_id,
        "slide_ids": list(bag.bag.slide_ids),
        "rule": judged.rule,
        "network": judged.network,
        **_named_target(task, bag.spec.target, judged.outcome.full),
        "n_patches": len(bag),
        "n_selected": int(judged.selected.sum()),
        "phi_full": outputs.full,
        "phi_soft": outputs.gated,
        "phi_kept": outputs.kept,
        "phi_removed": outputs.removed,
        **vars(judged.verdict),
        "both": judged.verdict.sufficient and judged.verdict.necessary,
    }


def _named_target(task: Task, target: int | tuple[float, int], logits: Logits) -> dict[str, Any]:
    """Target and prediction by class name, or time and event."""
    if isinstance(target, int):
        names = task.classes if isinstance(task, ClassificationTask) else ()
        return {"target": names[target], "predicted": names[int(logits.argmax())]}
    return {"time": target[0], "event": target[1]}
