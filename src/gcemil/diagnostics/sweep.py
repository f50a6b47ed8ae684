"""How threshold and coverage target move the evidence: the two numbers of Algorithm 1, swept over the same gates.

One pass of the model per bag gives gates and responses; every pair of threshold and target then only recovers and pools
again, and each distinct subset is pooled once. A target of None is the threshold without repair. Recovery's other
settings (largest share of the bag, reachable targets, anchors that count) stay those of the run.

Random and oracle subsets have the size of the evidence in each cell and are judged by the same network. Their gap is
full_kept_gap, that of the evidence cd_gap: only the evidence has gates to be compared with.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from gcemil.diagnostics.measurements import Groups
from gcemil.diagnostics.snr import score_where_defined
from gcemil.diagnostics.trained_fold import FoldBag, Measure, Pass, TrainedFold
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
    groups = Groups()
    while (bag := (yield "test")) is not None:
        random_order = torch.randperm(len(bag), generator=generator)
        for threshold, target in itertools.product(thresholds, coverage_targets):
            _sweep_cell(groups, bag, threshold, target, random_order)
    rows = []
    for labels, group in groups.items():
        metrics = group.metrics(score_where_defined(fold.task))
        values = {name: metrics[name] for name in ("keep_only_drop", "complement_degradation")}
        rows.append(mean_row(labels, group.records, values))
    notes = tuple(groups.explain_missing_metric(fold.task))
    return Finding("sweep", tuple(rows), notes=notes)


def _sweep_cell(
    groups: Groups,
    bag: FoldBag,
    threshold: float,
    coverage_target: float | None,
    random_order: Tensor,
) -> None:
    """Evidence, random and oracle of one bag in one cell."""
    model, explanation = bag.fold.model, bag.explanation
    if model is None or explanation is None:
        return
    view, n_patches = bag.predict("wrapped"), len(bag)
    recovery = recover_at(model, explanation, threshold=threshold, coverage_target=coverage_target)
    size = int(recovery.selected.sum())
    subsets = {
        "evidence": recovery.selected,
        "random": members(random_order[:size], n_patches=n_patches),
    }
    if bag.truth is not None:
        scores = oracle_scores(bag.truth, bag.regions, explanation.output.full.scores)
        subsets["oracle"] = members(ranking(scores)[:size], n_patches=n_patches)
    for rule, selected in subsets.items():
        is_ours = rule == "evidence"
        outcome = view.outcome(selected, explanation.output.soft.logits if is_ours else None)
        outputs = bag.fold.output_scale("wrapped").read(outcome)
        figures: Figures = {"evidence_fraction": outcome.fraction}
        figures |= (
            {"cd_gap": outputs.cd_gap} if is_ours else {"full_kept_gap": outputs.full_kept_gap}
        )
        if bag.truth is not None and bool(bag.truth.any()):
            figures |= {
                "precision": precision(selected, bag.truth),
                "recall": recall(selected, bag.truth),
            }
        if is_ours:
            figures["repaired_patches"] = float(len(recovery.added))
        target = "none" if coverage_target is None else f"{coverage_target:g}"
        labels = {"rule": rule, "threshold": f"{threshold:g}", "coverage_target": target}
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
