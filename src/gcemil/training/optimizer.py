"""AdamW over what is to be learned, in two groups of rates."""

from __future__ import annotations

import torch
from torch import nn

from gcemil.training.schedule import HIGHEST_RATE

NARROW = ("utility.", "selector.attention_weight", "selector.contribution_weight", "selector.presence_weight")
"""Class-anchor weights and the weights of the score's terms, by their names in the wrapper."""


def create_optimizer(network: nn.Module, rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW over what is to be learned; the fused step walks the weights once instead of once per operation.

    The rate of a group is its `base_rate` bent by the schedule. What reads anchors and scores is as narrow at any
    feature width, so a rate that was lowered for wide features is not for it.
    """
    learned = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    narrow = [weight for name, weight in learned.items() if name.startswith(NARROW)]
    wide = [weight for name, weight in learned.items() if not name.startswith(NARROW)]
    groups = [{"params": wide, "base_rate": rate}, {"params": narrow, "base_rate": max(rate, HIGHEST_RATE)}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=rate, weight_decay=weight_decay, fused=True
    )
