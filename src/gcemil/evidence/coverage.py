"""Noisy-OR coverage: how surely the open patches show each anchor, and what a single patch adds.

  v_m(pi) = 1 - prod_i (1 - pi_i r_im)                       coverage of anchor m  (Eq. 4)
  U_c(pi) = sum_m alpha_cm v_m(pi),  alpha_cm >= 0           utility of class c    (Eq. 5)
  U_c(pi | pi_i = 1) - U_c(pi | pi_i = 0)
    = sum_m alpha_cm r_im prod_{j != i} (1 - pi_j r_jm)      marginal gain of patch i

U_c is linear in every single gate, so the marginal gain is also its partial derivative: the same product of the others
ranks patches in repair and carries the gradient in training.

Products are sums of log1p. A factor 1 - 1e-9 is 1 in float32, and 100,000 of them would count for nothing;
their logarithms add up to the 1e-4 they are worth.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gcemil.shapes import AnchorWeights, ClassAnchorWeights, Coverage, Gates, Logits, Responses


def anchor_coverage(gates: Gates, responses: Responses) -> Coverage:
    """v_m: the probability that at least one open patch shows anchor m."""
    return _NoisyOr.apply(gates.unsqueeze(1) * responses)  # type: ignore[no-untyped-call]


def utility(gates: Gates, responses: Responses, anchor_weights: AnchorWeights) -> Float[Tensor, ""]:
    """U_c for the anchor weights of one class."""
    return anchor_coverage(gates, responses) @ anchor_weights


def marginal_gains(gates: Gates, responses: Responses, anchor_weights: AnchorWeights) -> Gates:
    """U(gate i at 1) - U(gate i at 0) for every patch i; its own gate has no say in it."""
    return (responses * missed_by_the_others(gates, responses)) @ anchor_weights


def leave_one_out_losses(gates: Gates, responses: Responses, anchor_weights: AnchorWeights) -> Gates:
    """U(all gates) - U(all but gate i): what removing patch i would cost."""
    return gates * marginal_gains(gates, responses, anchor_weights)


def missed_by_the_others(gates: Gates, responses: Responses) -> Responses:
    """The probability that no patch but i shows anchor m, for every i and m."""
    return _product_of_the_others(gates.unsqueeze(1) * responses)


class ClassUtility(nn.Module):
    """Learnable class-anchor weights, kept non-negative by a softplus so that every U_c stays submodular."""

    def __init__(self, n_classes: int, n_anchors: int) -> None:
        super().__init__()
        self.raw_weights = nn.Parameter(torch.zeros(n_classes, n_anchors))
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(n_classes))

    @property
    def anchor_weights(self) -> ClassAnchorWeights:
        return F.softplus(self.raw_weights)

    def forward(self, coverage: Coverage) -> Logits:
        """U_c of every class (Eq. 5)."""
        return self.anchor_weights @ coverage

    def logits(self, coverage: Coverage) -> Logits:
        """scale * U_c + b_c: saturating utilities turned into logits a cross-entropy can fit."""
        return self.log_scale.exp() * self(coverage) + self.bias


class _NoisyOr(torch.autograd.Function):
    """1 - prod_i (1 - hit_im) with its true gradient.

    Autograd through the logarithm divides 0 by 0 at a hit of exactly 1, which a saturated sigmoid does reach.
    """

    @staticmethod
    def forward(ctx: Any, hits: Tensor) -> Tensor:
        ctx.save_for_backward(hits)
        return -torch.expm1(torch.log1p(-hits).sum(dim=0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_coverage: Tensor) -> Tensor:
        (hits,) = ctx.saved_tensors
        return grad_coverage * _product_of_the_others(hits)


def _product_of_the_others(hits: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """prod_{j != i} (1 - hit_jm)."""
    certain = hits == 1
    # "Total minus own" would be -inf + inf at a factor of 0, so zeros are counted and only the rest is summed.
    log_factors = torch.log1p(-hits).masked_fill(certain, 0.0)
    others = torch.exp(log_factors.sum(dim=0) - log_factors)
    certain_others = certain.sum(dim=0) - certain.int()
    return others.masked_fill(certain_others > 0, 0.0)
