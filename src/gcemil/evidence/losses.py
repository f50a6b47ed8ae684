"""The terms of the training objective beside the task's and the host's own (Eq. 6).

One pure function each:
  budget      ReLU(mean pi - rho)^2
  grounding   KL(q || pi / sum pi), q_i ~ 1 - prod_m (1 - r_im)^{w_m}, q detached
  literal     mean (pi_i - (1 - prod_m (1 - r_im)))^2, as the paper words it
  necessity   -sum_c t_c log f_c(X_notS), t ~ nu^2, nu the mean of the complement's predictions
Terms that are the task's loss on another prediction (coverage, kept subset) use the task itself.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from gcemil.evidence.coverage import patch_concept_presence
from gcemil.evidence.gates import CLOSED_GATE
from gcemil.shapes import AnchorWeights, Gates, LogGates, Logits, Responses

Loss = Float[Tensor, ""]


def budget_excess_squared(gates: Gates, *, budget: float) -> Loss:
    """ReLU(mean pi - rho)^2 of one bag."""
    return torch.relu(gates.mean() - budget).square()


def grounding_divergence(
    log_gates: LogGates, responses: Responses, class_anchor_weights: AnchorWeights
) -> Loss:
    """KL(q || pi / sum pi): the gates as a distribution against where the label's concepts are.

    The weights are those of the label, relative to their largest. A gate that is truly 0 counts as
    CLOSED_GATE, which keeps the term finite. A bag without any response gives 0.
    """
    tiny = torch.finfo(responses.dtype).tiny
    with torch.no_grad():
        weights = class_anchor_weights / class_anchor_weights.max().clamp_min(tiny)
        presence = patch_concept_presence(responses, weights)
        target = presence / presence.sum().clamp_min(tiny)
    log_share = log_gates - torch.logsumexp(log_gates, dim=0)
    log_share = log_share.masked_fill(torch.isneginf(log_gates), math.log(CLOSED_GATE))
    return (torch.special.xlogy(target, target) - target * log_share).sum()


def grounding_squared_error(gates: Gates, responses: Responses) -> Loss:
    """The literal reading: gates against the per-patch noisy-OR, gradient to both sides."""
    presence = patch_concept_presence(responses, responses.new_ones(responses.shape[1]))
    return (gates - presence).square().mean()


class NullTarget(nn.Module):
    """t ~ nu^peak with nu a running mean of the complement's predictions, from uniform.

    Peaked, because an almost uniform output still leaks the class through its argmax.
    """

    running_mean: Tensor

    def __init__(self, n_outputs: int, *, momentum: float = 0.95, peak: float = 2.0) -> None:
        super().__init__()
        self.momentum = momentum
        self.peak = peak
        self.register_buffer("running_mean", torch.full((n_outputs,), 1.0 / n_outputs))

    def forward(self) -> Logits:
        """The current target; it sums to 1."""
        peaked = self.running_mean**self.peak
        return peaked / peaked.sum()

    def distance(self, removed: Logits) -> Loss:
        """-sum_c t_c log f_c(X_notS); then the complement enters the running mean."""
        distance = -(self().detach() * F.log_softmax(removed, dim=0)).sum()
        self.update(removed.detach())
        return distance

    @torch.no_grad()
    def update(self, removed_logits: Logits) -> None:
        """Add the prediction of one more complement to the running mean."""
        self.running_mean.lerp_(torch.softmax(removed_logits, dim=0), 1 - self.momentum)
