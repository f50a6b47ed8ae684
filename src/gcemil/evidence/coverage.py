"""Noisy-OR coverage: how surely the open patches show each anchor, and what a single patch adds.

  v_m(pi) = 1 - prod_i (1 - pi_i r_im)                       coverage of anchor m  (Eq. 4)
  U_c(pi) = sum_m alpha_cm v_m(pi),  alpha_cm >= 0           utility of class c    (Eq. 5)
  U_c(pi | pi_i = 1) - U_c(pi | pi_i = 0)
    = sum_m alpha_cm r_im prod_{j != i} (1 - pi_j r_jm)      marginal gain of patch i
  x_m(pi) = -log(1 - v_m(pi)) / sum_i pi_i                   coverage rate of one open patch

The class weights are learned from the rate, not from v: a hundred open patches cover every anchor,
so v is near 1 for all; the rate does not saturate and does not grow with the slide.

U_c is linear in every single gate, so the marginal gain is also its partial derivative: the same
product of the others ranks patches in repair and carries the gradient in training.

Products are sums of log1p. A factor 1 - 1e-9 is 1 in float32, and 100,000 of them would count for
nothing; their logarithms add up to the 1e-4 they are worth.

For survival, coverage is a Cox model of risk pathways (the paper's appendix on survival):

  P(z_m = 1 | S) = 1 - prod_{i in S} (1 - r_im) = v_m(S)            pathway m is present in S
  h(S) = sum_m beta_m v_m(S),   lambda(t | S) = lambda_0(t) e^h(S)

beta is signed: a pathway may protect. The baseline hazard absorbs any constant: there is no bias.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gcemil.shapes import AnchorWeights, ClassAnchorWeights, Coverage, Gates, Logits, Responses

WEIGHT_GAIN = 10.0
"""Adam moves a parameter by tenths; these weights must move by whole units."""


def anchor_coverage(gates: Gates, responses: Responses) -> Coverage:
    """v_m: the probability that at least one open patch shows anchor m."""
    return _NoisyOr.apply(gates.unsqueeze(1) * responses)  # type: ignore[no-untyped-call]


def coverage_rate(gates: Gates, responses: Responses) -> Coverage:
    """x_m: -log(1 - v_m) per open patch, so that slides of any size are comparable."""
    # A response of exactly 1 would make the rate infinite; 1 - 1e-6 already counts as 14 patches at
    # 0.6.
    log_missed = torch.log1p(-gates.unsqueeze(1) * responses.clamp(max=1 - 1e-6)).sum(dim=0)
    return -log_missed / gates.sum().clamp_min(torch.finfo(gates.dtype).tiny)


def utility(gates: Gates, responses: Responses, anchor_weights: AnchorWeights) -> Float[Tensor, ""]:
    """U_c for the anchor weights of one class."""
    return anchor_coverage(gates, responses) @ anchor_weights


def marginal_gains(gates: Gates, responses: Responses, anchor_weights: AnchorWeights) -> Gates:
    """U(gate i at 1) - U(gate i at 0) for every patch i; its own gate does not matter."""
    missed_by_the_others = _product_of_the_others(gates.unsqueeze(1) * responses)
    return (responses * missed_by_the_others) @ anchor_weights


def patch_concept_presence(responses: Responses, anchor_weights: AnchorWeights) -> Gates:
    """Weighted noisy-OR of each patch on its own: 1 - prod_m (1 - r_im)^{w_m}."""
    # xlog1py: an anchor of weight 0 counts for nothing even where its response is 1.
    return -torch.expm1(torch.special.xlog1py(anchor_weights, -responses).sum(dim=1))


class RateScale(nn.Module):
    """Standardises rates by the running mean and spread per anchor."""

    mean: Tensor
    square: Tensor
    seen: Tensor

    def __init__(self, n_anchors: int, *, momentum: float = 0.99) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(n_anchors))
        self.register_buffer("square", torch.ones(n_anchors))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rate: Coverage) -> Coverage:
        if self.training:
            seen = rate.detach()
            self.seen.add_(1)
            share = torch.maximum(1 / self.seen, torch.full_like(self.seen, 1 - self.momentum))
            self.mean.add_(share * (seen - self.mean))
            self.square.add_(share * (seen.square() - self.square))
        variance = (self.square - self.mean.square()).clamp_min(1e-8)
        # The first bags would be divided by almost no spread at all.
        return ((rate - self.mean) / variance.sqrt()).clamp(-4, 4)


class ClassUtility(nn.Module):
    """Learnable class-anchor weights; a softplus keeps them >= 0 and every U_c submodular."""

    def __init__(self, n_classes: int, n_anchors: int) -> None:
        super().__init__()
        self.raw_weights = nn.Parameter(torch.zeros(n_classes, n_anchors))
        self.bias = nn.Parameter(torch.zeros(n_classes))
        self.rate_scale = RateScale(n_anchors)

    @property
    def anchor_weights(self) -> ClassAnchorWeights:
        return F.softplus(WEIGHT_GAIN * self.raw_weights)

    def forward(self, coverage: Coverage) -> Logits:
        """U_c of every class (Eq. 5)."""
        return self.anchor_weights @ coverage

    def logits(self, rate: Coverage) -> Logits:
        """Class logits from the coverage rate alone, by which the weights are learned."""
        return self.anchor_weights @ self.rate_scale(rate) + self.bias


class RiskPathways(nn.Module):
    """Log-risk as a sum over named anchors."""

    def __init__(self, n_anchors: int) -> None:
        super().__init__()
        self.raw_effects = nn.Parameter(torch.zeros(n_anchors))
        self.rate_scale = RateScale(n_anchors)

    @property
    def effects(self) -> AnchorWeights:
        """beta_m: log hazard ratio of a deviation of the rate, or of a covered pathway."""
        return WEIGHT_GAIN * self.raw_effects

    def logits(self, rate: Coverage) -> Logits:
        """The risk from the coverage rate alone, by which the effects are learned."""
        return (self.effects @ self.rate_scale(rate)).reshape(1)

    def forward(self, coverage: Coverage) -> Logits:
        """h, with the one-output axis that a host's risk has."""
        return self.contributions(coverage).sum(dim=0, keepdim=True)

    def contributions(self, coverage: Coverage) -> Coverage:
        """beta_m v_m: what each pathway adds to the log-risk."""
        return self.effects * coverage

    @property
    def anchor_weights(self) -> ClassAnchorWeights:
        """|beta_m| in one row: pathways that move the risk in either direction."""
        return self.effects.abs().unsqueeze(0)


class _NoisyOr(torch.autograd.Function):
    """1 - prod_i (1 - hit_im) with its true gradient.

    Autograd through the logarithm divides 0 by 0 at a hit of exactly 1, which a saturated sigmoid
    does reach.
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
    # "Total minus own" would be -inf + inf at a factor of 0, so zeros are counted and only the rest
    # is summed.
    log_factors = torch.log1p(-hits).masked_fill(certain, 0.0)
    others = torch.exp(log_factors.sum(dim=0) - log_factors)
    certain_others = certain.sum(dim=0) - certain.int()
    return others.masked_fill(certain_others > 0, 0.0)
