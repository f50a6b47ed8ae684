"""How threshold and coverage target move the evidence: the two numbers of Algorithm 1, swept over the same gates.

One pass of the model per bag gives gates and responses; every pair of threshold and target then only recovers and pools
again, and each distinct subset is pooled once. A target of None is the threshold without repair. Recovery's other
settings (largest share of the bag, reachable targets, anchors that count) stay those of the run.

Random and oracle subsets have the size of the evidence in each cell and are judged by the same network. Their gap is
full_kept_gap, that of the evidence cd_gap: only the evidence has gates to be compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcemil.diagnostics.measurements import Groups, MeasuredGroup
from gcemil.diagnostics.snr import BagOutcome, score_where_defined
from gcemil.diagnostics.trained_fold import FoldBag, Measure, Pass, TrainedFold
from gcemil.diagnostics.truth import oracle_scores, precision, recall
from gcemil.errors import UsageError
from gcemil.explain import Explanation
from gcemil.findings import Figures, Finding, Labels, Row, mean_row
from gcemil.model import GceMil
from gcemil.recovery.recover import Recovery, members, ranking, recover
from gcemil.shapes import Selected

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
COVERAGE_TARGETS = (None, 0.5, 0.8, 0.9, 0.95, 0.99)

SweepCell = tuple[float, float | None]


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
    settings = {"thresholds": list(thresholds), "coverage_targets": list(coverage_targets)}
    if fold.model is None:
        return Finding("sweep", (), notes=("The run has no gates to sweep over.",), settings=settings)
    cells = [(threshold, target) for threshold in thresholds for target in coverage_targets]
    groups = Groups()
    generator = torch.Generator().manual_seed(fold.seed)
    while (bag := (yield "test")) is not None:
        random_order = torch.randperm(len(bag), generator=generator)
        sweep_bag(groups, fold, fold.model, bag, cells, random_order)
    rows = tuple(_cell_row(labels, group, fold) for labels, group in groups.items())
    notes = tuple(groups.explain_missing_metric(fold.task))
    return Finding("sweep", rows, notes=notes, settings=settings)


def sweep_bag(
    groups: Groups,
    fold: TrainedFold,
    model: GceMil,
    bag: FoldBag,
    cells: Sequence[SweepCell],
    random_order: Tensor,
) -> None:
    """Add one bag to every cell."""
    explanation = bag.explanation
    if explanation is None:
        return
    view, soft = bag.predict("wrapped"), explanation.output.soft.logits
    orders = {"random": random_order}
    if bag.truth is not None:
        orders["oracle"] = ranking(oracle_scores(bag.truth, bag.regions, explanation.output.full.scores))
    for threshold, target in cells:
        recovery = recover_at(model, explanation, threshold=threshold, coverage_target=target)
        size = int(recovery.selected.sum())
        subsets = {name: members(order[:size], n_patches=len(bag)) for name, order in orders.items()}
        for rule, selected in {"evidence": recovery.selected, **subsets}.items():
            outcome = view.outcome(selected, soft if rule == "evidence" else None)
            figures = _cell_figures(outcome, selected, bag.truth, fold)
            if rule == "evidence":
                figures["repaired_patches"] = float(len(recovery.added))
            wanted = "none" if target is None else f"{target:g}"
            labels = {"rule": rule, "threshold": f"{threshold:g}", "coverage_target": wanted}
            groups.add(labels, bag.target, outcome, figures)


def recover_at(
    model: GceMil, explanation: Explanation, *, threshold: float, coverage_target: float | None
) -> Recovery:
    """The evidence of the run's gates under another threshold and target, what repair adds unchecked."""
    output, settings = explanation.output, model.settings.recovery
    no_patch = torch.zeros_like(output.opened)
    return recover(
        output.gates,
        output.responses,
        model.anchor_weights(output.answer.logits),
        threshold=threshold,
        coverage_target=settings.coverage_target if coverage_target is None else coverage_target,
        max_fraction=settings.max_fraction,
        reachable=settings.reachable,
        min_weight_share=settings.min_weight_share,
        shortlist=no_patch if coverage_target is None else None,
    )


def _cell_figures(
    outcome: BagOutcome, selected: Selected, truth: Tensor | None, fold: TrainedFold
) -> Figures:
    outputs = fold.output_scale("wrapped").read(outcome)
    figures: Figures = {"evidence_fraction": outcome.fraction}
    figures |= (
        {"full_kept_gap": outputs.full_kept_gap} if outcome.gated is None else {"cd_gap": outputs.cd_gap}
    )
    if truth is not None and bool(truth.any()):
        figures |= {"precision": precision(selected, truth), "recall": recall(selected, truth)}
    return figures


def _cell_row(labels: Labels, group: MeasuredGroup, fold: TrainedFold) -> Row:
    metrics = group.metrics(score_where_defined(fold.task))
    values = {name: metrics[name] for name in ("keep_only_drop", "complement_degradation")}
    return mean_row(labels, group.records, values)
