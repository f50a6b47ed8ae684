"""sweep: how threshold and coverage target, the two numbers of Algorithm 1, move the evidence.

One pass of the model per bag gives gates and responses; every pair of threshold and target then
only recovers and pools again, and each distinct subset is pooled once. A target of None is the
threshold without repair. The other settings of recovery stay those of the run.

Random and oracle subsets have the size of the evidence in each cell and are judged by the same
network. Their gap is full_kept_gap, that of the evidence cd_gap: only the evidence has gates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from gcemil.diagnostics.measurements import Groups
from gcemil.diagnostics.snr import score_where_defined, subset_metrics
from gcemil.diagnostics.trained_fold import Measure, Pass, TrainedFold
from gcemil.diagnostics.truth import oracle_scores, precision, recall
from gcemil.errors import UsageError
from gcemil.explanation import Explanation
from gcemil.findings import Figures, Finding, mean_row
from gcemil.model import GceMil
from gcemil.recovery import Recovery, members, ranking, recover

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
COVERAGE_TARGETS = (None, 0.5, 0.8, 0.9, 0.95, 0.99)


@Measure
def measure_sweep(
    fold: TrainedFold,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    coverage_targets: Sequence[float | None] = COVERAGE_TARGETS,
) -> Pass[Finding]:
    """Evidence, random and oracle in every cell of threshold x coverage target."""
    if not thresholds or not coverage_targets:
        raise UsageError("A sweep needs at least one threshold and one coverage target.")
    if fold.model is None:
        return Finding("sweep", (), notes=("The run has no gates to sweep over.",))
    generator = torch.Generator().manual_seed(fold.seed)
    groups, scale = Groups(), fold.output_scale("wrapped")
    while (bag := (yield "test")) is not None:
        if bag.explanation is None:
            continue
        view, output = bag.view, bag.explanation.output
        orders = {"random": torch.randperm(len(bag), generator=generator)}
        if bag.truth is not None:
            orders["oracle"] = ranking(oracle_scores(bag.truth, bag.regions, output.full.scores))
        for threshold, target in itertools.product(thresholds, coverage_targets):
            recovery = recover_at(
                fold.model, bag.explanation, threshold=threshold, coverage_target=target
            )
            size = int(recovery.selected.sum())
            subsets = {"evidence": recovery.selected} | {
                rule: members(order[:size], n_patches=len(bag)) for rule, order in orders.items()
            }
            for rule, selected in subsets.items():
                is_ours = rule == "evidence"
                outcome = view.outcome(selected, output.soft.logits if is_ours else None)
                outputs = scale.read(outcome)
                figures: Figures = {"evidence_fraction": outcome.fraction}
                if is_ours:
                    figures["cd_gap"] = outputs.cd_gap
                    figures["repaired_patches"] = float(len(recovery.added))
                else:
                    figures["full_kept_gap"] = outputs.full_kept_gap
                if bag.truth is not None and bag.has_true_evidence:
                    figures["precision"] = precision(selected, bag.truth)
                    figures["recall"] = recall(selected, bag.truth)
                labels = {
                    "rule": rule,
                    "threshold": f"{threshold:g}",
                    "coverage_target": "none" if target is None else f"{target:g}",
                }
                groups.add(labels, bag.target, outcome, figures)
    rows = []
    for group in groups.values():
        metrics = subset_metrics(group.outcomes, group.targets, score_where_defined(fold.task))
        values = {name: metrics[name] for name in ("keep_only_drop", "complement_degradation")}
        rows.append(mean_row(group.labels, group.records, values))
    notes = tuple(groups.explain_missing_metric(fold.task))
    return Finding("sweep", tuple(rows), notes=notes)


def recover_at(
    model: GceMil, explanation: Explanation, *, threshold: float, coverage_target: float | None
) -> Recovery:
    """The evidence of the run's gates under another threshold and target."""
    output, settings = explanation.output, model.settings.recovery
    return recover(
        output.gates,
        output.responses,
        model.anchor_weights(output.answer.logits),
        threshold=threshold,
        coverage_target=settings.coverage_target if coverage_target is None else coverage_target,
        max_fraction=settings.max_fraction,
        reachable=settings.reachable,
        min_weight_share=settings.min_weight_share,
        shortlist=torch.zeros_like(output.opened) if coverage_target is None else None,
    )
