"""Total curvature of the noisy-OR utility, and the share of the optimum that greedy selection cannot fall below.

  kappa = 1 - min_{i: U({i}) > 0} [U(V) - U(V without i)] / U({i})        0 <= kappa <= 1
  U(S_greedy) >= (1 - e^-kappa) / kappa * U(S_best)                       at equal size; the factor is 1 at kappa = 0

kappa = 0: no two patches show the same anchor. kappa = 1: some patch adds nothing to the rest, and the factor is the
classical 1 - 1/e. Repair starts from a subset S rather than from nothing; its curvature is that of the candidates
alone under the weights alpha_m (1 - v_m(S)), which is the same function of other arguments.
"""

import math

import torch

from gcemil.errors import UsageError
from gcemil.evidence.coverage import marginal_gains
from gcemil.shapes import AnchorWeights, Responses


def total_curvature(responses: Responses, anchor_weights: AnchorWeights) -> float:
    """kappa of U over these patches; a utility that is zero everywhere is linear, so its curvature is 0."""
    alone = responses @ anchor_weights
    last = marginal_gains(torch.ones_like(alone), responses, anchor_weights)
    useful = alone > 0
    if not bool(useful.any()):
        return 0.0
    # Both are sums of the same terms in different arithmetic: rounding can push their ratio just past 1.
    return 1.0 - min(1.0, float((last[useful] / alone[useful]).min()))


def greedy_bound_factor(curvature: float) -> float:
    """(1 - e^-kappa) / kappa: the guaranteed ratio of the greedy utility to the best one of the same size."""
    if not 0.0 <= curvature <= 1.0:
        raise UsageError(f"A curvature lies in [0, 1], got {curvature}. Take it from total_curvature.")
    return -math.expm1(-curvature) / curvature if curvature > 0.0 else 1.0
