"""Connected regions of an exact size, grown from a seed like a stain: the cheapest free neighbour joins next.

A region never touches another, not even at a corner, so the connected components of the evidence are its regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from gcemil.bags.simulated.fields import Cells

SEEDS_TRIED = 24

Neighbours = Int[np.ndarray, "n 8"]
RegionIds = Int[np.ndarray, "n"]

STEPS = ((-1, 0), (0, -1), (0, 1), (1, 0), (-1, -1), (-1, 1), (1, -1), (1, 1))
"""The four sides first, then the corners."""


def neighbour_table(cells: Cells) -> Neighbours:
    """For every cell the rows of its eight neighbours, -1 where there is no tissue."""
    height, width = cells.max(axis=0) + 1
    rows = np.full((height + 2, width + 2), -1, dtype=np.int64)
    rows[cells[:, 0] + 1, cells[:, 1] + 1] = np.arange(len(cells))
    return np.stack([rows[cells[:, 0] + 1 + down, cells[:, 1] + 1 + right] for down, right in STEPS], axis=1)


def grown_regions(neighbours: Neighbours, sizes: Sequence[int], generator: Generator) -> RegionIds | None:
    """Disjoint regions numbered from 1 in the order of `sizes`, 0 elsewhere; None when one of them finds no room."""
    region = np.zeros(len(neighbours), dtype=np.int64)
    free = np.ones(len(neighbours), dtype=bool)
    cost = 0.3 + generator.exponential(size=len(neighbours))
    for number, size in enumerate(sizes, start=1):
        members = placed(neighbours, free, cost, size, generator)
        if members is None:
            return None
        region[members] = number
        around = neighbours[members].ravel()
        free[members] = False
        free[around[around >= 0]] = False
    return region


def placed(
    neighbours: Neighbours,
    free: Bool[np.ndarray, "n"],
    cost: Float[np.ndarray, "n"],
    size: int,
    generator: Generator,
) -> list[int] | None:
    """Members of a region grown from the first of a few random seeds with room enough."""
    candidates = np.flatnonzero(free)
    if len(candidates) < size:
        return None
    for seed in generator.choice(candidates, size=min(SEEDS_TRIED, len(candidates)), replace=False):
        members = grown(neighbours, free, cost, int(seed), size)
        if len(members) == size:
            return members
    return None


def grown(
    neighbours: Neighbours, free: Bool[np.ndarray, "n"], cost: Float[np.ndarray, "n"], seed: int, size: int
) -> list[int]:
    """Up to `size` free cells around the seed, side by side, in the order of the cheapest path to them."""
    waiting = [(0.0, seed)]
    seen = {seed}
    members: list[int] = []
    while waiting and len(members) < size:
        path, cell = heappop(waiting)
        members.append(cell)
        for neighbour in neighbours[cell, :4].tolist():
            if neighbour >= 0 and free[neighbour] and neighbour not in seen:
                seen.add(neighbour)
                heappush(waiting, (path + float(cost[neighbour]), neighbour))
    return members
