"""What one step minimises: the task on a window of bags, the host's losses, the evidence (Eq. 6).

  task        (1 - u) L(f(X_pi)) + u L(f(X)), u = ungated_share; for each prediction of the host
  budget      lambda_b ReLU(mean pi - rho)^2
  grounding   lambda_g [L(utility of the coverage) + w KL(q || pi / sum pi)]
  sufficiency L(f(X_S)),  S hard, gradient straight through to the gates
  necessity   distance of f(X_notS) from the prediction without evidence; classes only
  bridge      distance of the bridge from its fit

The plain host, and a host whose evidence is fitted afterwards, have the task alone, on X. A host
that is trained jointly begins as the plain one; then the weight of the evidence grows from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcemil.evidence.coverage import coverage_rate
from gcemil.evidence.gates import straight_through
from gcemil.evidence.losses import (
    NullTarget,
    budget_excess_squared,
    grounding_divergence,
    grounding_squared_error,
)
from gcemil.hosts.host import Host, HostOutput
from gcemil.model import Evidence, EvidenceOutput, GceMil
from gcemil.tasks.task import Task

Terms = dict[str, Tensor]
NECESSITY_MARGIN = 3.0
"""Training removes this many times the budget before the complement must predict nothing."""


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
    return task_terms(host, task, outputs, bags)


def evidence_terms(
    model: GceMil,
    null: NullTarget | None,
    task: Task,
    bags: Sequence[TrainingBag],
    *,
    weight: float = 1.0,
) -> tuple[Terms, Sequence[Evidence]]:
    """The wrapped host on a window: every weighted term by name, and the outputs.

    `weight` in [0, 1] is how much the evidence acts on a host that is trained jointly.
    """
    outputs = [
        model(bag.features, bag.coords, patch_size=bag.patch_size, target=bag.target)
        for bag in bags
    ]
    soft, full = [output.soft for output in outputs], [output.full for output in outputs]
    gated_share = weight * (1 - model.settings.ungated_share)
    terms: Terms = {}
    for part, share in ((soft, gated_share), (full, 1 - gated_share)):
        if share > 0:
            for name, term in task_terms(model.host, task, part, bags).items():
                terms[name] = terms.get(name, 0.0) + share * term
    terms |= evidence_shape_terms(model, outputs)
    terms |= grounding_terms(model, task, outputs, bags)
    if weight > 0:
        subset = subset_terms(model, null, task, outputs, bags)
        terms |= {name: weight * term for name, term in subset.items()}
    return terms, outputs


def task_terms(
    host: Host, task: Task, outputs: Sequence[HostOutput], bags: Sequence[TrainingBag]
) -> Terms:
    """The weighted task loss of every prediction of the host, and the mean of its own losses."""
    named: dict[str, list[tuple[Tensor, Tensor]]] = {"bag": []}
    for output, bag in zip(outputs, bags, strict=True):
        for name, logits in {"bag": output.logits, **output.auxiliary_logits}.items():
            named.setdefault(name, []).append((logits, bag.target))
    terms: Terms = {}
    for name, pairs in named.items():
        loss = task.loss(torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs]))
        # A window without events has no loss.
        if loss is not None:
            terms["task" if name == "bag" else f"task_{name}"] = host.task_weights[name] * loss
    for name in dict.fromkeys(name for output in outputs for name in output.losses):
        own = [output.losses[name] for output in outputs if name in output.losses]
        terms[f"host_{name}"] = torch.stack(own).mean()
    return terms


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
    """Gates tied to the anchors: coverage must predict, gates lie where concepts are."""
    settings, terms = model.settings, Terms()
    if settings.grounding == "none" or settings.grounding_weight == 0:
        return terms
    if settings.grounding == "literal":
        errors = [grounding_squared_error(output.gates, output.responses) for output in outputs]
        terms["grounding"] = settings.grounding_weight * torch.stack(errors).mean()
        # The class-anchor weights of the paper are part of U_c (Eq. 5) alone, and learn from it.
        logits = [model.utility(output.coverage) for output in outputs]
    else:
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
        logits = [model.utility.logits(rate) for rate in rates]
    loss = task.loss(torch.stack(logits), torch.stack([bag.target for bag in bags]))
    if loss is not None:
        terms["utility"] = settings.grounding_weight * loss
    return terms


def subset_terms(
    model: GceMil,
    null: NullTarget | None,
    task: Task,
    outputs: Sequence[EvidenceOutput],
    bags: Sequence[TrainingBag],
) -> Terms:
    """The hard subset must predict; its complement must not."""
    settings, terms = model.settings, Terms()
    if settings.sufficiency_weight > 0:
        kept = [
            _gate_hard(model, output, bag, output.gates, output.opened)
            for output, bag in zip(outputs, bags, strict=True)
        ]
        loss = task.loss(torch.stack(kept), torch.stack([bag.target for bag in bags]))
        if loss is not None:
            terms["sufficiency"] = settings.sufficiency_weight * loss
    if null is not None and settings.necessity_weight > 0:
        distances = [
            null.distance(removed)
            for output, bag in zip(outputs, bags, strict=True)
            if (removed := removed_logits(model, output, bag)) is not None
        ]
        if distances:
            terms["necessity"] = settings.necessity_weight * torch.stack(distances).mean()
    return terms


def opened_share(model: GceMil, output: Evidence) -> float:
    """Share of the patches that are meant to open: the budget, or more in a small bag."""
    return max(model.settings.budget, min(1.0, model.settings.min_patches / len(output.scores)))


def removed_logits(model: GceMil, output: EvidenceOutput, bag: TrainingBag) -> Tensor | None:
    """f(X_notS) with the gradient of the closed gates; None if it is less than half of the bag.

    S and the patches ranked next are removed: a complement that still holds evidence, and must
    predict nothing, would unteach the host what evidence is.
    """
    n_patches = len(output.scores)
    n_removed = round(NECESSITY_MARGIN * opened_share(model, output) * n_patches)
    removed = output.opened.clone()
    removed[output.scores.detach().topk(min(n_removed, len(removed))).indices] = True
    if 2 * int(removed.sum()) > n_patches:
        return None
    return _gate_hard(model, output, bag, 1 - output.gates, ~removed)


def _gate_hard(
    model: GceMil, output: EvidenceOutput, bag: TrainingBag, gates: Tensor, selected: Tensor
) -> Tensor:
    """Logits of the selected patches with the gradient of the soft gates."""
    log_gates = straight_through(gates, selected).log_gates
    return model.host.gated(bag.features, output.embedded, bag.coords, log_gates).logits
