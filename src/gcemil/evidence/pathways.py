"""Risk pathways: coverage read as a Cox model (the paper's appendix on survival).

  P(z_m = 1 | S) = 1 - prod_{i in S} (1 - r_im) = v_m(S)            pathway m is present somewhere in S
  h(S) = sum_m beta_m v_m(S),   lambda(t | S) = lambda_0(t) e^h(S)

beta is signed: a pathway may protect. The baseline hazard absorbs any constant, so there is no bias.
"""

import torch
from torch import nn

from gcemil.evidence.coverage import WEIGHT_GAIN, RateScale
from gcemil.shapes import AnchorWeights, Coverage, Logits


class RiskPathways(nn.Module):
    """Log-risk as a sum over anchors, each term with a name a pathologist can read."""

    def __init__(self, n_anchors: int) -> None:
        super().__init__()
        self.raw_effects = nn.Parameter(torch.zeros(n_anchors))
        self.rate_scale = RateScale(n_anchors)

    @property
    def effects(self) -> AnchorWeights:
        """beta_m: the log hazard ratio of a fully covered pathway against an absent one."""
        return WEIGHT_GAIN * self.raw_effects

    def logits(self, rate: Coverage) -> Logits:
        """The risk read off the coverage rate alone: what teaches the effects, as for classes."""
        return (self.effects @ self.rate_scale(rate)).reshape(1)

    def forward(self, coverage: Coverage) -> Logits:
        """h, with the one-output axis that a host's risk has."""
        return self.contributions(coverage).sum(dim=0, keepdim=True)

    def contributions(self, coverage: Coverage) -> Coverage:
        """beta_m v_m: what each pathway adds to the log-risk."""
        return self.effects * coverage

    @property
    def anchor_weights(self) -> AnchorWeights:
        """|beta_m|: repair covers the pathways that move the risk, in either direction."""
        return self.effects.abs()
