"""Random streams by name, so that one part of a cohort can change without moving the draws of another."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.random import Generator


def stream(seed: int, *words: str | int) -> Generator:
    """The generator that belongs to this seed and these words, on every machine."""
    keys = [crc32(str(word).encode()) for word in words]
    return np.random.default_rng(np.random.SeedSequence([seed, *keys]))
