"""Random streams, rates over time, and the optimiser.

One seed is spread over folds and stages so that none shares a stream with another. Learning rate
and temperature are functions of progress through a stage, from 0 to 1; nothing of them is saved.

  adamw             the common recipe
  adam              decay as part of the gradient: most of the hosts' authors
  lookahead_radam   Lookahead (Zhang et al., 2019) around RAdam, for TransMIL; biases do not decay

Lookahead:  after every 6 steps  slow <- slow + (fast - slow) / 2,  fast <- slow
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gcemil.config import TrainSettings
from gcemil.hosts.table import host_spec
from gcemil.runs.checkpoint import LoadedNetwork

NARROW_RATE = 2e-3
"""Least rate of the few weights that read anchors and scores."""
STEP = 0.2
"""The share of the rate that a step schedule keeps."""
READ_TEMPERATURE = 1e-6
"""After training, if the host was not trained with gates."""
NARROW = (
    "utility.",
    "selector.attention_weight",
    "selector.contribution_weight",
    "selector.presence_weight",
)
LOOKAHEAD_STEPS, LOOKAHEAD_SHARE = 6, 0.5


def stream_seed(seed: int, *path: int) -> int:
    """A seed for one place in a run, such as (fold, stage)."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint32)[0])


def scheduled_rate(settings: TrainSettings, base: float, progress: float) -> float:
    """The base rate bent by the schedule."""
    if settings.schedule == "constant":
        return base
    if settings.schedule == "step":
        return base if progress < 0.5 else STEP * base
    end = min(settings.final_rate, base)
    return end + 0.5 * (base - end) * (1 + math.cos(math.pi * progress))


def evidence_weight(warmup: float, ramp: float, progress: float) -> float:
    """How much the evidence acts on the host: not at all while it warms up, then more and more."""
    if progress < warmup:
        return 0.0
    return 1.0 if ramp == 0 else min(1.0, (progress - warmup) / ramp)


def annealed_temperature(end: float, progress: float) -> float:
    """Geometric from 1, so that each epoch sharpens the gate by the same factor."""
    return float(end**progress)


def reading_temperature(settings: TrainSettings) -> float:
    """Temperature of the gates after training; a jointly trained host keeps the final one."""
    evidence = settings.evidence
    if evidence is None or evidence.train_host or evidence.temperature_end is not None:
        return final_temperature(settings)
    return min(READ_TEMPERATURE, final_temperature(settings))


def final_temperature(settings: TrainSettings) -> float:
    """Where annealing ends: the value of the settings, else the one measured for the host."""
    chosen = None if settings.evidence is None else settings.evidence.temperature_end
    return host_spec(settings.host.name).temperature_end if chosen is None else chosen


def create_optimizer(
    network: nn.Module, rate: float, settings: TrainSettings
) -> torch.optim.Optimizer:
    """The optimiser the settings name; the rate of a group is its `base_rate` on the schedule."""
    learned = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    narrow = [weight for name, weight in learned.items() if name.startswith(NARROW)]
    wide = [weight for name, weight in learned.items() if not name.startswith(NARROW)]
    groups = [
        {"params": wide, "base_rate": rate},
        {"params": narrow, "base_rate": max(rate, NARROW_RATE)},
    ]
    groups = [group for group in groups if group["params"]]
    decay, betas = settings.weight_decay, settings.betas
    if settings.optimizer == "lookahead_radam":
        return LookaheadRAdam(
            _without_decay_of_vectors(groups),
            lr=rate,
            betas=betas,
            weight_decay=decay,
            decoupled_weight_decay=True,
        )
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=rate, betas=betas, weight_decay=decay, fused=True)


def clip_gradients(loaded: LoadedNetwork, largest: float | None) -> dict[str, Tensor]:
    """Clip host and wrapper each by its own norm; the norms before.

    Gates pass far larger gradients than a host does: under one norm the host would hardly learn.
    """
    own = set(map(id, loaded.host.parameters()))
    parts: dict[str, list[Tensor]] = {"host": [], "wrapper": []}
    for weight in loaded.network.parameters():
        if weight.grad is not None:
            parts["host" if id(weight) in own else "wrapper"].append(weight)
    limit = math.inf if largest is None else largest
    return {
        name: torch.nn.utils.clip_grad_norm_(weights, limit)
        for name, weights in parts.items()
        if weights
    }


def _without_decay_of_vectors(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each group in two: weights, and the biases and norms that do not decay."""
    parts = []
    for group in groups:
        vectors = [weight for weight in group["params"] if weight.ndim <= 1]
        matrices = [weight for weight in group["params"] if weight.ndim > 1]
        parts += [{**group, "params": matrices}, {**group, "params": vectors, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]


class LookaheadRAdam(torch.optim.RAdam):
    """RAdam whose weights return, every few steps, half-way to where they last returned to.

    The slow weights are part of the optimiser's state, and so they are saved and resumed with it.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        weights = [
            weight
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None
        ]
        before = {weight: weight.clone() for weight in weights if "slow" not in self.state[weight]}
        # RAdam sets up the state of a weight only if it has none.
        loss = super().step(closure)
        for weight, start in before.items():
            self.state[weight]["slow"] = start
        for weight in weights:
            state = self.state[weight]
            if int(state["step"]) % LOOKAHEAD_STEPS == 0:
                state["slow"].lerp_(weight, LOOKAHEAD_SHARE)
                weight.copy_(state["slow"])
        return loss
