"""Which patches of a bag a training step sees: sorted rows from a seeded generator.

Single patches, or random 4x4 blocks of the patch grid, so that neighbours exist in a sample of 512. Rows stay sorted
because several hosts read raster order.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from gcemil.bags.bag import CoordRows, RowIndex

BLOCK_SIDE = 4


def sampled_patches(n_patches: int, limit: int, generator: Generator) -> RowIndex:
    """At most `limit` patches, each equally likely."""
    if n_patches <= limit:
        return np.arange(n_patches)
    return np.sort(generator.choice(n_patches, size=limit, replace=False))


def sampled_blocks(coords: CoordRows, step: int, limit: int, generator: Generator) -> RowIndex:
    """At most `limit` patches as whole random 4x4 blocks of the grid; the last block is cut to the limit."""
    if len(coords) <= limit:
        return np.arange(len(coords))
    block = block_of_patch(coords, step)
    rank = generator.permutation(block.max() + 1)[block]
    return np.sort(np.argsort(rank, kind="stable")[:limit])


def block_of_patch(coords: CoordRows, step: int) -> Int[np.ndarray, "n"]:
    """A number per patch, equal for patches of one 4x4 block."""
    cells = coords // (step * BLOCK_SIDE)
    _, block = np.unique(cells, axis=0, return_inverse=True)
    return np.asarray(block).reshape(-1)
