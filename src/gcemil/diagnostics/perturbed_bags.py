"""Small random changes of a bag that should not change what its evidence is.

dropout s   a share s of the patches is missing, at least one stays
noise s     features + s * deviation * N(0, 1), the deviation that of each feature over the patches of the bag
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from gcemil.bags.bag import Bag, RowIndex
from gcemil.errors import UsageError


@dataclass(frozen=True, eq=False)
class PerturbedBag:
    bag: Bag
    rows: RowIndex
    """Where each of its patches stands in the bag it came from, sorted."""


def drop_patches(bag: Bag, share: float, *, generator: Generator) -> PerturbedBag:
    """The bag without a random share of its patches."""
    if not 0 <= share < 1:
        raise UsageError(f"The share of patches to drop lies in [0, 1), got {share}.")
    n_kept = max(1, round((1 - share) * len(bag)))
    rows = np.sort(generator.choice(len(bag), size=n_kept, replace=False))
    return PerturbedBag(bag.sampled(rows), rows)


def add_noise(bag: Bag, share: float, *, generator: Generator) -> PerturbedBag:
    """The bag with Gaussian noise of a share of each feature's own deviation."""
    if not share >= 0:
        raise UsageError(f"Noise is a share of a feature's deviation, at least 0, got {share}.")
    # float32, because float16 on disk would round small noise away; the deviation is 0 for a single patch.
    features = bag.features.astype(np.float32)
    noise = generator.standard_normal(features.shape, dtype=np.float32)
    noisy = features + np.float32(share) * features.std(axis=0) * noise
    return PerturbedBag(replace(bag, features=noisy), np.arange(len(bag)))


PERTURBATIONS: dict[str, Callable[..., PerturbedBag]] = {"dropout": drop_patches, "noise": add_noise}
