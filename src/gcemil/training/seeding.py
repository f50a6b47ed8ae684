"""Where randomness comes from: one seed, spread over folds and stages so that none shares a stream with another."""

from __future__ import annotations

import numpy as np
import torch


def stream_seed(seed: int, *path: int) -> int:
    """A seed for one place in a run, such as (fold, stage)."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint32)[0])


def seed_torch(seed: int) -> None:
    """Weights, dropout and every other draw of torch's global generator."""
    torch.manual_seed(seed)
