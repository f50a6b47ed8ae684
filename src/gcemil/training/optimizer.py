"""The optimiser over what is to be learned, in two groups of rates.

  adamw             the common recipe
  adam              decay as part of the gradient: most of the hosts' authors
  lookahead_radam   Lookahead (Zhang et al., 2019) around RAdam, no decay of biases and norms: TransMIL's authors
Lookahead:  after every 6 steps  slow <- slow + (fast - slow) / 2,  fast <- slow
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gcemil.config import TrainSettings
from gcemil.training.schedule import HIGHEST_RATE

NARROW = ("utility.", "selector.attention_weight", "selector.contribution_weight", "selector.presence_weight")
"""Class-anchor weights and the weights of the score's terms, by their names in the wrapper."""
LOOKAHEAD_STEPS, LOOKAHEAD_SHARE = 6, 0.5


def create_optimizer(network: nn.Module, rate: float, settings: TrainSettings) -> torch.optim.Optimizer:
    """The optimiser the settings name; the fused step walks the weights once instead of once per operation.

    The rate of a group is its `base_rate` bent by the schedule. What reads anchors and scores is as narrow at any
    feature width, so a rate that was lowered for wide features is not for it.
    """
    learned = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    narrow = [weight for name, weight in learned.items() if name.startswith(NARROW)]
    wide = [weight for name, weight in learned.items() if not name.startswith(NARROW)]
    groups = [{"params": wide, "base_rate": rate}, {"params": narrow, "base_rate": max(rate, HIGHEST_RATE)}]
    groups = [group for group in groups if group["params"]]
    decay, betas = settings.weight_decay, settings.betas
    if settings.optimizer == "lookahead_radam":
        return LookaheadRAdam(
            without_decay_of_vectors(groups),
            lr=rate,
            betas=betas,
            weight_decay=decay,
            decoupled_weight_decay=True,
        )
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=rate, betas=betas, weight_decay=decay, fused=True)


def without_decay_of_vectors(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each group in two: weights, and the biases and norms that do not decay."""
    parts = []
    for group in groups:
        vectors = [weight for weight in group["params"] if weight.ndim <= 1]
        matrices = [weight for weight in group["params"] if weight.ndim > 1]
        parts += [{**group, "params": matrices}, {**group, "params": vectors, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]


class LookaheadRAdam(torch.optim.RAdam):
    """RAdam whose weights return, every few steps, half-way to where they last returned to.

    The slow weights stand in the optimiser's state, so that they are saved and resumed with it.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        weights = [
            weight for group in self.param_groups for weight in group["params"] if weight.grad is not None
        ]
        before = {weight: weight.clone() for weight in weights if "slow" not in self.state[weight]}
        # RAdam sets up the state of a weight that has none, so nothing is put there before its first step.
        loss = super().step(closure)
        for weight, start in before.items():
            self.state[weight]["slow"] = start
        for weight in weights:
            state = self.state[weight]
            if int(state["step"]) % LOOKAHEAD_STEPS == 0:
                state["slow"].lerp_(weight, LOOKAHEAD_SHARE)
                weight.copy_(state["slow"])
        return loss
