"""Sufficiency, Necessity, Recoverability of discrete evidence, measured by intervention (paper, metric table).

  keep_only_drop          M(X) - M(X_S)                     sufficiency, lower is better
  evidence_sufficiency    M(X_S)                            sufficiency, higher is better
  complement_degradation  M(X) - M(X_notS)                  necessity, higher is better
  cd_gap                  mean |Phi(X_pi) - Phi(X_S)|       recoverability of gates, lower is better
  full_kept_gap           mean |Phi(X) - Phi(X_S)|          for every subset rule, lower is better

M is the task metric over all bags; Phi is the probability of the class predicted on X, or the risk in units of the
training risks. cd_gap needs gates; full_kept_gap does not. They are different quantities and never share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.errors import UsageError
from gcemil.explain import bag_tensors, recovered
from gcemil.interventions import Interventions, class_probability, standardised_risk
from gcemil.model import GceMil
from gcemil.shapes import LogGates, Logits, Selected
from gcemil.tasks.task import ClassificationTask, SurvivalTask, Task


@dataclass(frozen=True)
class SnrScores:
    """One subset rule on one set of bags."""

    keep_only_drop: float
    evidence_sufficiency: float
    complement_degradation: float | None
    """None when every subset is a whole bag, so that no complement exists."""
    cd_gap: float | None
    full_kept_gap: float
    evidence_fraction: float
    n_bags: int
    n_whole_bags: int
    """Bags whose subset is the whole bag; they have no complement and do not count in the degradation."""


@dataclass(frozen=True, eq=False)
class BagOutcome:
    """The four predictions for one bag and one subset."""

    full: Logits
    kept: Logits
    removed: Logits | None
    gated: Logits | None
    fraction: float


@dataclass(frozen=True)
class RiskScale:
    """Mean and deviation of the training fold's risks."""

    mean: float = 0.0
    deviation: float = 1.0


def bag_outcome(bench: Interventions, selected: Selected, log_gates: LogGates | None = None) -> BagOutcome:
    """Put one subset to the test."""
    removed = bench.removed(selected)
    return BagOutcome(
        full=bench.full().logits,
        kept=bench.kept(selected).logits,
        removed=None if removed is None else removed.logits,
        gated=None if log_gates is None else bench.gated(log_gates).logits,
        fraction=float(selected.double().mean()),
    )


def snr_scores(
    outcomes: Sequence[BagOutcome], targets: Tensor, task: Task, *, scale: RiskScale | None = None
) -> SnrScores:
    """The scores of one rule from its outcomes, bag by bag."""
    if not outcomes:
        raise UsageError("S/N/R needs at least one bag.")
    has_complement = torch.tensor([outcome.removed is not None for outcome in outcomes])
    full = task_metric(task, targets, [outcome.full for outcome in outcomes])
    kept = task_metric(task, targets, [outcome.kept for outcome in outcomes])
    gaps = [gap(o.full, o.full, o.kept, task, scale or RiskScale()) for o in outcomes]
    cd_gaps = [
        gap(o.full, o.gated, o.kept, task, scale or RiskScale()) for o in outcomes if o.gated is not None
    ]
    return SnrScores(
        keep_only_drop=full - kept,
        evidence_sufficiency=kept,
        complement_degradation=degradation(outcomes, targets, has_complement, task),
        cd_gap=sum(cd_gaps) / len(cd_gaps) if cd_gaps else None,
        full_kept_gap=sum(gaps) / len(gaps),
        evidence_fraction=sum(outcome.fraction for outcome in outcomes) / len(outcomes),
        n_bags=len(outcomes),
        n_whole_bags=int((~has_complement).sum()),
    )


@torch.no_grad()
def snr(
    model: GceMil,
    bags: Iterable[Bag],
    targets: Tensor,
    *,
    scale: RiskScale | None = None,
    classes: tuple[str, ...] | None = None,
) -> SnrScores:
    """S/N/R of a trained wrapper's own recovered evidence; the model must be in evaluation mode."""
    outcomes = []
    for bag in bags:
        features, coords = bag_tensors(bag, model.anchors.device)
        output = model(features, coords, step=bag.patch_size)
        bench = Interventions(model.host, features, coords, embedded=output.embedded)
        outcomes.append(bag_outcome(bench, recovered(model, output).selected, output.log_gates))
    names = classes or tuple(str(index) for index in range(model.n_outputs))
    task: Task = SurvivalTask() if model.n_outputs == 1 else ClassificationTask(names)
    return snr_scores(outcomes, targets, task, scale=scale)


def degradation(
    outcomes: Sequence[BagOutcome], targets: Tensor, has_complement: Tensor, task: Task
) -> float | None:
    """M(X) - M(X_notS) over the bags that have a complement."""
    if not bool(has_complement.any()):
        return None
    counted = targets[has_complement]
    full = task_metric(task, counted, [o.full for o in outcomes if o.removed is not None])
    removed = task_metric(task, counted, [o.removed for o in outcomes if o.removed is not None])
    return full - removed


def task_metric(task: Task, targets: Tensor, logits: Sequence[Any]) -> float:
    stacked = torch.stack([one.cpu() for one in logits])
    return task.metrics(targets, task.prediction(stacked))[task.task_metric]


def gap(full: Logits, one: Logits, other: Logits, task: Task, scale: RiskScale) -> float:
    """|Phi - Phi| of two predictions for one bag; the class is the one predicted on X."""
    if task.n_outputs == 1:
        risks = [standardised_risk(x, mean=scale.mean, deviation=scale.deviation) for x in (one, other)]
        return abs(risks[0] - risks[1])
    predicted = int(full.argmax())
    return abs(class_probability(one, predicted) - class_probability(other, predicted))
