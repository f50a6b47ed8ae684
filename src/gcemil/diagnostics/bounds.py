"""bounds: the bounds of the paper's appendix in numbers. The first two are part of `snr`.

Recoverability:   |F(pi) - F(1_S)| <= L_X ||pi - 1_S||,   F the host's Phi under gates
  margin   min_i |pi_i - threshold|
  L_X      the largest Euclidean slope of F on the way from 1_S to pi (mean value theorem), taken at
           a few points, so L_X is estimated from below
  S        the recovered subset: the inequality holds for every 0/1 vector, also after repair

Coverage residual:   |Phi(X) - Phi(X_S)| <= L_q eta R(S),
                     R(S) = sum_m alpha_m prod_{i in S} (1 - r_im)
  eta      the largest ||g(X) - g(X_S)|| / R(S),             g the host's bag feature
  L_q      the largest |Phi(X) - Phi(X_S)| / ||g(X) - g(X_S)||
  Both are the largest over evidence, attention and random subsets of the validation bags. The paper
  assumes an additive g, whose difference is the sum of the omitted patches; attention is normalised
  anew when rows go, so the difference itself is taken.

slack = right-hand side - left-hand side. A negative slack on a test bag means that an estimate, or
an assumption, fails.

Greedy repair:   U(S_greedy) >= (1 - e^-kappa) / kappa * U(S_best)   at equal size; 1 at kappa = 0
  kappa    total curvature of U: 1 - min_{i: U({i}) > 0} [U(V) - U(V without i)] / U({i})
           0: no two patches show the same anchor. 1: some patch adds nothing to the rest; the
           factor is the classical 1 - 1/e. Repair starts from a subset S; its curvature is that of
           the candidates alone under the weights alpha_m (1 - v_m(S)).
  utility_share  U(S) / U(whole bag) of a subset, for the evidence and its rivals of the same size
  greedy_share   the same for the greedy subset of that size, so that
                 U(S_best) / U(whole bag) <= greedy_share / factor
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.diagnostics.rules import take_subsets
from gcemil.diagnostics.snr import BagOutputs
from gcemil.diagnostics.trained_fold import FoldBag, Measure, Pass, TrainedFold
from gcemil.errors import UsageError
from gcemil.evidence.coverage import anchor_coverage, marginal_gains
from gcemil.explanation import Explanation
from gcemil.findings import Figures, Finding, mean_rows
from gcemil.hosts.host import log_with_zero
from gcemil.model import GceMil
from gcemil.recovery import greedy_subset
from gcemil.shapes import AnchorWeights, Gates, LogGates, Responses, Selected

OutputUnder = Callable[[Tensor], Tensor]
"""F: Phi under log-gates, differentiable where the host is."""

NEAREST_TO_SUBSET = 0.01
"""Closed gates have no logarithm at the subset itself, but at this share of the way from it."""


def gate_slope(
    output_under: OutputUnder, gates: Gates, selected: Selected, *, points: int = 5
) -> float | None:
    """L_X on the way from the subset to the gates; None for a host without a gradient."""
    if points < 1:
        raise UsageError(f"A slope is looked for in at least one point, got {points}.")
    subset = selected.to(gates.dtype)
    moving = gates != subset
    slopes = []
    for share in torch.linspace(NEAREST_TO_SUBSET, 1.0, points).tolist():
        with torch.enable_grad():
            on_the_way = torch.lerp(subset, gates, share).requires_grad_()
            output = output_under(log_with_zero(on_the_way))
            if not output.requires_grad:
                return None
            (slope,) = torch.autograd.grad(output, on_the_way, allow_unused=True)
        if slope is None:
            return None
        slopes.append(float(slope[moving].double().norm()))
    return max(slopes)


def coverage_residual(
    selected: Selected, responses: Responses, anchor_weights: AnchorWeights
) -> float:
    """R(S): the anchor weight that the subset leaves uncovered."""
    missed = torch.log1p(-responses[selected].double()).sum(dim=0).exp()
    return float(missed @ anchor_weights.detach().double())


class Completeness(NamedTuple):
    """eta and L_q as some subsets show them."""

    eta: float
    """Infinite if a subset that covers every anchor still moves the bag feature."""
    output_slope: float

    def bound(self, residual: float) -> float | None:
        """L_q eta R(S); None if eta is infinite."""
        return self.output_slope * self.eta * residual if math.isfinite(self.eta) else None


def fit_completeness(variations: Sequence[tuple[float, float, float]]) -> Completeness | None:
    """The smallest eta and L_q for subsets with these residuals and moves of feature and output.

    None if none moves the bag feature.
    """
    moved = [one for one in variations if one[1] > 0]
    if not moved:
        return None
    return Completeness(
        eta=max(feature / residual if residual > 0 else math.inf for residual, feature, _ in moved),
        output_slope=max(output / feature for _, feature, output in moved),
    )


ROUNDING = 1e-6
"""A gap of rounding alone does not break a bound of 0."""


def recoverability_figures(bag: FoldBag, outputs: BagOutputs, *, points: int) -> Figures:
    """Margin, distance, right-hand side and slack of the recoverability bound of one bag."""
    fold, explanation = bag.fold, bag.explanation
    model = fold.model
    if model is None or explanation is None:
        return {}
    gates, selected = explanation.output.gates, explanation.recovery.selected
    full, embedded = explanation.output.answer.logits, explanation.output.embedded

    def output_under(log_gates: LogGates) -> Float[Tensor, ""]:
        logits = model.explained.gated(bag.features, embedded, bag.coords, log_gates).logits
        if fold.task.n_outputs == 1:
            return (logits[0] - fold.scale.mean) / fold.scale.deviation
        return torch.softmax(logits, dim=0)[int(full.argmax())]

    distance = float((gates.double() - selected.double()).norm())
    slope = gate_slope(output_under, gates, selected, points=points)
    bound = None if slope is None else slope * distance
    slack = None if bound is None or outputs.cd_gap is None else bound - outputs.cd_gap
    return {
        "gate_margin": float((gates.double() - model.settings.selection_threshold).abs().min()),
        "gate_distance": distance,
        "margin_bound": bound,
        "margin_slack": slack,
        "margin_broken": None if slack is None else slack < -ROUNDING,
    }


def coverage_figures(
    model: GceMil, explanation: Explanation, outputs: BagOutputs, complete: Completeness | None
) -> Figures:
    """Residual, right-hand side and slack of the coverage bound for the evidence of one bag."""
    weights = model.anchor_weights(explanation.output.answer.logits)
    residual = coverage_residual(
        explanation.recovery.selected, explanation.output.responses, weights
    )
    bound = None if complete is None else complete.bound(residual)
    slack = None if bound is None else bound - outputs.full_kept_gap
    return {
        "coverage_residual": residual,
        "coverage_bound": bound,
        "coverage_slack": slack,
        "coverage_broken": None if slack is None else slack < 0,
    }


@Measure
@torch.no_grad()
def estimate_completeness(fold: TrainedFold) -> Pass[Completeness | None]:
    """eta and L_q from the validation bags; None without a wrapper or without such bags."""
    if fold.model is None:
        return None
    observations: list[tuple[float, float, float]] = []
    scale = fold.output_scale("wrapped")
    while (bag := (yield "val")) is not None:
        full, interventions = bag.view.full, bag.view.interventions
        weights, responses = (
            fold.model.anchor_weights(full.logits),
            fold.model.responses(bag.features),
        )
        for subset in take_subsets(bag, "wrapped", budget=1.0):
            # Truth has no part in an estimate.
            if subset.rule != "oracle":
                kept = interventions.kept(subset.selected)
                moved = full.bag_feature.double() - kept.bag_feature.double()
                drop = scale.drops(full.logits, kept.logits.unsqueeze(0)).abs()
                residual = coverage_residual(subset.selected, responses, weights)
                observations.append((residual, float(moved.norm()), float(drop)))
    return fit_completeness(observations)


@Measure
def measure_bounds(fold: TrainedFold) -> Pass[Finding]:
    """Curvature, greedy bound and utility of every test bag, for the evidence and its rivals."""
    if fold.model is None:
        return Finding(
            "bounds", (), notes=("The run has no wrapper, so it has no coverage to bound.",)
        )
    slides: list[dict[str, Any]] = []
    while (bag := (yield "test")) is not None:
        slides += _bound_records(fold.model, bag)
    rows = mean_rows([{**record, "network": "wrapped"} for record in slides], ("rule", "network"))
    note = (
        "Curvature is 1 as soon as one patch adds nothing to all the others, and then the factor "
        "is 1 - 1/e: a bound for the worst case, far below what greedy selection reaches."
    )
    return Finding("bounds", rows, slides=tuple(slides), notes=(note,))


@torch.no_grad()
def _bound_records(model: GceMil, bag: FoldBag) -> list[dict[str, Any]]:
    """One record per rule: the utility of its subset."""
    weights = model.anchor_weights(bag.view.full.logits).double()
    responses = model.responses(bag.features).double()
    whole = float(anchor_coverage(torch.ones(len(bag), dtype=torch.float64), responses) @ weights)
    curvature = total_curvature(responses, weights)
    subsets = list(take_subsets(bag, "wrapped", budget=model.settings.budget))
    # All of a bag's rules take as many patches as its evidence.
    greedy = greedy_subset(responses, weights, int(subsets[0].selected.sum()))

    def share(chosen: Selected) -> float | None:
        return (
            float(anchor_coverage(chosen.double(), responses) @ weights) / whole
            if whole > 0
            else None
        )

    return [
        {
            "bag_id": bag.bag.bag_id,
            "rule": one.rule,
            "curvature": curvature,
            "greedy_factor": greedy_bound_factor(curvature),
            "utility_share": share(one.selected),
            "greedy_share": share(greedy),
        }
        for one in subsets
    ]


def total_curvature(responses: Responses, anchor_weights: AnchorWeights) -> float:
    """kappa of U over these patches; 0 for a utility that is zero everywhere."""
    alone = responses @ anchor_weights
    last = marginal_gains(torch.ones_like(alone), responses, anchor_weights)
    useful = alone > 0
    if not bool(useful.any()):
        return 0.0
    # Rounding can push the ratio just past 1.
    return 1.0 - min(1.0, float((last[useful] / alone[useful]).min()))


def greedy_bound_factor(curvature: float) -> float:
    """(1 - e^-kappa) / kappa: guaranteed ratio of the greedy utility to the best of its size."""
    return -math.expm1(-curvature) / curvature if curvature > 0.0 else 1.0
