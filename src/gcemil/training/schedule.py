"""Learning rate and temperature as functions of progress through a stage, from 0 to 1; nothing to save or resume."""

from __future__ import annotations

import math

from gcemil.config import TrainSettings
from gcemil.hosts.table import host_spec

LOWEST_RATE, HIGHEST_RATE = 2e-4, 2e-3
WIDTH_OF_HIGHEST_RATE = 128
STEP = 0.2
"""What a step schedule leaves of the rate."""


def base_learning_rate(feature_dim: int) -> float:
    """2e-3 at width 128 falling to the paper's 2e-4 from width 1280 on.

    An Adam step moves every weight by about the rate, so a pre-activation moves by about rate x width: equal steps
    in function space need a rate that falls as the width grows.
    """
    return min(HIGHEST_RATE, max(LOWEST_RATE, HIGHEST_RATE * WIDTH_OF_HIGHEST_RATE / feature_dim))


def scheduled_rate(settings: TrainSettings, base: float, progress: float) -> float:
    """The base rate bent by the schedule."""
    if settings.schedule == "constant":
        return base
    if settings.schedule == "step":
        return base if progress < 0.5 else STEP * base
    end = min(settings.final_rate, base)
    return end + 0.5 * (base - end) * (1 + math.cos(math.pi * progress))


def evidence_say(warmup: float, ramp: float, progress: float) -> float:
    """How much the evidence acts on the host: nothing while it warms up, then more and more."""
    if progress < warmup:
        return 0.0
    return 1.0 if ramp == 0 else min(1.0, (progress - warmup) / ramp)


def annealed_temperature(start: float, end: float, progress: float) -> float:
    """Geometric, so that each epoch sharpens the gate by the same factor."""
    return start * (end / start) ** progress


def final_temperature(settings: TrainSettings) -> float:
    """Where annealing ends: as the settings say, else as was measured for the host."""
    chosen = None if settings.evidence is None else settings.evidence.temperature_end
    return host_spec(settings.host.name).temperature_end if chosen is None else chosen
