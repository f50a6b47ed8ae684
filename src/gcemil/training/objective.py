"""What one step minimises: the task on a window of bags, the host's own losses, and the evidence terms (Eq. 6).

  task        (1 - u) L(f(X_pi)) + u L(f(X)), u = ungated_share; for each of the host's predictions, with its weight
  budget      lambda_b ReLU(mean pi - rho)^2
  grounding   lambda_g [L(utility of the coverage) + w KL(q || pi / sum pi)]
  sufficiency L(f(X_S)),  S hard, gradient straight through to the gates
  necessity   distance of f(X_notS) from what no evidence says
  bridge      what holds the bridge near its fit
The plain host has the first line alone, on X, and so has a host whose evidence is fitted afterwards.
A host that is trained jointly begins as the plain one does; then the weight of the evidence (everything that depends on gates and acts on
the host) grows from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcemil.config import EvidenceSettings
from gcemil.evidence.coverage import coverage_rate
from gcemil.evidence.gates import straight_through
from gcemil.evidence.losses import (
    NullRisk,
    NullTarget,
    budget_excess_squared,
    grounding_divergence,
    grounding_squared_error,
)
from gcemil.hosts.host import Host, HostOutput
from gcemil.model import Evidence, EvidenceOutput, GceMil
from gcemil.outputs import Output
from gcemil.tasks.task import Task

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class TrainingBag:
    """One sampled bag where the model is."""

    features: Tensor
    coords: Tensor | None
    patch_size: int | None
    target: Tensor


def host_terms(host: Host, task: Task, bags: Sequence[TrainingBag]) -> Terms:
    """The plain host on a window."""
    outputs = [host(bag.features, bag.coords, target=bag.target) for bag in bags]
    return {**task_terms(host.task_weights, task, outputs, bags), **mean_losses(outputs)}


def evidence_terms(
    model: GceMil,
    null: NullTarget | NullRisk,
    task: Task,
    bags: Sequence[TrainingBag],
    *,
    weight: float = 1.0,
) -> tuple[Terms, Sequence[Evidence]]:
    """The wrapped host on a window: every weighted term by name, and what the bags looked like.

    `weight` in [0, 1] is how much the evidence acts on a host that it teaches.
    """
    settings = model.settings
    outputs = [
        model(bag.features, bag.coords, patch_size=bag.patch_size, target=bag.target)
        for bag in bags
    ]
    soft, full = [output.soft for output in outputs], [output.full for output in outputs]
    gated_share = weight * (1 - settings.ungated_share)
    terms: Terms = {}
    for part, share in ((soft, gated_share), (full, 1 - gated_share)):
        if share > 0:
            for name, term in {
                **task_terms(model.host.task_weights, task, part, bags),
                **mean_losses(part),
            }.items():
                terms[name] = terms.get(name, 0.0) + share * term
    terms |= evidence_shape_terms(model, outputs)
    terms |= grounding_terms(model, task, outputs, bags)
    if weight > 0:
        terms |= {
            name: weight * term
            for name, term in subset_terms(model, null, task, outputs, bags).items()
        }
    return terms, outputs


def task_terms(
    weights: Mapping[str, float],
    task: Task,
    outputs: Sequence[HostOutput],
    bags: Sequence[TrainingBag],
) -> Terms:
    """The weighted task loss of the bag logits and of every auxiliary prediction; a window without events has none."""
    named: dict[str, list[tuple[Tensor, Tensor]]] = {"bag": []}
    for output, bag in zip(outputs, bags, strict=True):
        named["bag"].append((output.logits, bag.target))
        for name, logits in output.auxiliary_logits.items():
            named.setdefault(name, []).append((logits, bag.target))
    terms: Terms = {}
    for name, pairs in named.items():
        loss = task.loss(torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs]))
        if loss is not None:
            terms["task" if name == "bag" else f"task_{name}"] = weights[name] * loss
    return terms


def mean_losses(outputs: Sequence[HostOutput]) -> Terms:
    """The host's own losses, averaged over the window."""
    names = dict.fromkeys(name for output in outputs for name in output.losses)
    return {
        f"host_{name}": torch.stack([o.losses[name] for o in outputs if name in o.losses]).mean()
        for name in names
    }


def evidence_shape_terms(model: GceMil, outputs: Sequence[Evidence]) -> Terms:
    """Budget of the gates, and what holds the bridge."""
    settings = model.settings
    terms: Terms = {}
    if settings.budget_weight > 0:
        excess = [
            budget_excess_squared(output.gates, budget=opened_share(model, output))
            for output in outputs
        ]
        terms["budget"] = settings.budget_weight * torch.stack(excess).mean()
    if settings.bridge_weight > 0:
        terms["bridge"] = settings.bridge_weight * model.bridge.penalty()
    return terms


def grounding_terms(
    model: GceMil, task: Task, outputs: Sequence[Evidence], bags: Sequence[TrainingBag]
) -> Terms:
    """Gates tied to the anchors: the coverage must predict, and the gates must lie where the label's concepts are."""
    settings = model.settings
    if settings.grounding == "none" or settings.grounding_weight == 0:
        return {}
    terms: Terms = {}
    if settings.grounding == "literal":
        errors = [grounding_squared_error(output.gates, output.responses) for output in outputs]
        terms["grounding"] = settings.grounding_weight * torch.stack(errors).mean()
        # U_c of Eq. 5 is all that the paper's class-anchor weights are part of, so it is what they can learn from.
        logits = [model.utility(output.coverage) for output in outputs]
        return terms | utility_term(model, task, logits, bags)
    if model.is_grounded and settings.divergence_weight > 0:
        weights = model.utility.anchor_weights.detach()
        divergence = [
            grounding_divergence(
                output.log_gates,
                output.responses,
                model.output_kind.target_row(weights, bag.target),
            )
            for output, bag in zip(outputs, bags, strict=True)
        ]
        weight = settings.grounding_weight * settings.divergence_weight
        terms["grounding"] = weight * torch.stack(divergence).mean()
    rates = [coverage_rate(output.gates, output.responses) for output in outputs]
    return terms | utility_term(model, task, [model.utility.logits(rate) for rate in rates], bags)


def utility_term(
    model: GceMil, task: Task, logits: Sequence[Tensor], bags: Sequence[TrainingBag]
) -> Terms:
    """The task read off the coverage alone, which teaches the weights of the anchors; a window without events has none."""
    loss = task.loss(torch.stack(list(logits)), torch.stack([bag.target for bag in bags]))
    return {} if loss is None else {"utility": model.settings.grounding_weight * loss}


def subset_terms(
    model: GceMil,
    null: NullTarget | NullRisk,
    task: Task,
    outputs: Sequence[EvidenceOutput],
    bags: Sequence[TrainingBag],
) -> Terms:
    """The hard subset must predict; its complement must not."""
    settings = model.settings
    terms: Terms = {}
    if settings.sufficiency_weight > 0:
        kept = [kept_logits(model, output, bag) for output, bag in zip(outputs, bags, strict=True)]
        loss = task.loss(torch.stack(kept), torch.stack([bag.target for bag in bags]))
        if loss is not None:
            terms["sufficiency"] = settings.sufficiency_weight * loss
    weight = (
        settings.risk_necessity_weight if model.output_kind.is_number else settings.necessity_weight
    )
    if weight > 0:
        distances = [
            null.distance(output.full_logits, removed)
            for output, bag in zip(outputs, bags, strict=True)
            if (removed := removed_logits(model, output, bag)) is not None
        ]
        if distances:
            terms["necessity"] = weight * torch.stack(distances).mean()
    return terms


def opened_share(model: GceMil, output: Evidence) -> float:
    """Share of the patches that are meant to open: the budget, or more in a small bag."""
    return max(model.settings.budget, min(1.0, model.settings.min_patches / len(output.scores)))


def kept_logits(model: GceMil, output: EvidenceOutput, bag: TrainingBag) -> Tensor:
    """f(X_S) with the gradient of the soft gates."""
    return _hard(model, output, bag, output.gates, output.opened)


def removed_logits(model: GceMil, output: EvidenceOutput, bag: TrainingBag) -> Tensor | None:
    """f(X_notS) with the gradient of the closed gates; None where it would be less than half of the bag.

    S and the patches ranked next are taken out: a complement that still holds evidence, and is told to say nothing,
    would unteach the host what evidence is. A bag too small for that margin is not asked.
    """
    n_patches = len(output.scores)
    n_removed = round(model.settings.necessity_margin * opened_share(model, output) * n_patches)
    removed = output.opened.clone()
    removed[output.scores.detach().topk(min(n_removed, len(removed))).indices] = True
    if 2 * int(removed.sum()) > n_patches:
        return None
    return _hard(model, output, bag, 1 - output.gates, ~removed)


def _hard(
    model: GceMil, output: EvidenceOutput, bag: TrainingBag, gates: Tensor, selected: Tensor
) -> Tensor:
    log_gates = straight_through(gates, selected).log_gates
    return model.host.gated(bag.features, output.embedded, bag.coords, log_gates).logits


def create_null(settings: EvidenceSettings, output: Output) -> NullTarget | NullRisk:
    """The prediction without evidence: a distribution over the classes, or the mean risk or value."""
    return NullRisk() if output.is_number else NullTarget(output.n_outputs, peak=settings.null_peak)
