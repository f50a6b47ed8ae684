"""One slide laid out on the patch grid: pieces of tissue, background, and the regions of its plan.

Tissue is the n highest cells of a landscape of a few ellipses with smooth noise. Background tissue
at a cell is the one with the highest smooth field plus log share. A patch shows its own concept for
1 - border_mixing and its eight neighbours' for border_mixing / 8 each (a neighbour without tissue
counts as itself), so patches at borders are mixed. The overlap of a patch is that same mixture of
the evidence mask: above 1/2 exactly where the patch is evidence.

Regions have an exact size and are connected: grown from a seed, the cheapest free neighbour joins
next. A region never touches another, not even at a corner, so the connected components of the
evidence are its regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from gcemil.errors import UsageError
from gcemil.simulation.plan import Region
from gcemil.simulation.profile import Dials, Profile

Cells = Int[np.ndarray, "n 2"]
Neighbours = Int[np.ndarray, "n 8"]
PatchIndex = Int[np.ndarray, "n"]
Composition = Float[np.ndarray, "n concepts"]
_SEEDS_TRIED, _LAYOUTS_TRIED = 24, 40
STEPS = ((-1, 0), (0, -1), (0, 1), (1, 0), (-1, -1), (-1, 1), (1, -1), (1, 1))
"""The four sides first, then the corners."""
_TISSUE_FILL = 0.4
"""Share of the canvas that is tissue."""


def smooth_fields(
    cells: Cells, scale: float, n_fields: int, generator: Generator
) -> Float[np.ndarray, "n {n_fields}"]:
    """Independent fields at these (row, column) cells, each varying over about `scale` cells."""
    position = cells / scale + generator.random(2)
    corner = position.astype(np.int64)
    within = position - corner
    grid = generator.standard_normal((*(corner.max(axis=0) + 2), n_fields))
    values = np.zeros((len(cells), n_fields))
    squares = np.zeros((len(cells), 1))
    for down in (0, 1):
        for right in (0, 1):
            share = np.where([down, right], within, 1 - within).prod(axis=1, keepdims=True)
            values += share * grid[corner[:, 0] + down, corner[:, 1] + right]
            squares += share**2
    return values / np.sqrt(squares)


def find_neighbours(cells: Cells) -> Neighbours:
    """For every cell the rows of its eight neighbours, -1 where there is no tissue."""
    height, width = cells.max(axis=0) + 1
    rows = np.full((height + 2, width + 2), -1, dtype=np.int64)
    rows[cells[:, 0] + 1, cells[:, 1] + 1] = np.arange(len(cells))
    return np.stack(
        [rows[cells[:, 0] + 1 + down, cells[:, 1] + 1 + right] for down, right in STEPS], axis=1
    )


def grow_regions(
    neighbours: Neighbours, sizes: Sequence[int], generator: Generator
) -> PatchIndex | None:
    """Disjoint regions numbered from 1 in the order of `sizes`; None when one finds no room."""
    region, free = np.zeros(len(neighbours), dtype=np.int64), np.ones(len(neighbours), dtype=bool)
    # The constant keeps regions compact, the random part makes them ragged.
    cost = 0.3 + generator.exponential(size=len(neighbours))
    for number, size in enumerate(sizes, start=1):
        members = _place_region(neighbours, free, cost, size, generator)
        if members is None:
            return None
        region[members] = number
        around = neighbours[members].ravel()
        free[members] = False
        # What lies around a region is taken as well, so that no two regions touch.
        free[around[around >= 0]] = False
    return region


def _place_region(
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
    count = min(_SEEDS_TRIED, len(candidates))
    for seed in generator.choice(candidates, size=count, replace=False).tolist():
        # Free cells around the seed, side by side, in the order of the cheapest path to them.
        waiting, seen = [(0.0, seed)], {seed}
        members: list[int] = []
        while waiting and len(members) < size:
            path, cell = heappop(waiting)
            members.append(cell)
            for neighbour in neighbours[cell, :4].tolist():
                if neighbour >= 0 and free[neighbour] and neighbour not in seen:
                    seen.add(neighbour)
                    heappush(waiting, (path + float(cost[neighbour]), neighbour))
        if len(members) == size:
            return members
    return None


@dataclass(frozen=True, eq=False)
class TissueLayout:
    """Where every patch lies and what it shows."""

    cells: Cells
    concept: PatchIndex
    region: PatchIndex
    """Evidence region, numbered from 1; 0 = no evidence."""
    composition: Composition
    overlap: Float[np.ndarray, "n"]

    @property
    def evidence(self) -> Bool[np.ndarray, "n"]:
        """Which patches are evidence."""
        return self.region > 0


def draw_layout(
    profile: Profile, dials: Dials, n_patches: int, regions: Sequence[Region], generator: Generator
) -> TissueLayout:
    """A slide that holds exactly these regions; tissue without room for them is drawn again."""
    number, sizes = None, [region.n_patches for region in regions]
    for _ in range(_LAYOUTS_TRIED):
        cells = draw_tissue_cells(n_patches, dials.pieces_max, generator)
        neighbours = find_neighbours(cells)
        number = grow_regions(neighbours, sizes, generator)
        if number is not None:
            break
    if number is None:
        raise UsageError(
            f"{len(regions)} disjoint regions of {sum(sizes)} patches in all find no room on a "
            f"slide of {n_patches}. Lower evidence_max, bystander_max or the rates, or simulate "
            "larger slides."
        )
    # Background tissue in coherent regions, in shares that differ from slide to slide.
    usual = np.log([tissue.share for tissue in profile.tissues])
    own = usual + dials.composition_spread * generator.standard_normal(len(usual))
    fields = smooth_fields(cells, dials.region_scale, len(usual), generator)
    names = [concept.name for concept in profile.concepts]
    shown = np.array([-1, *(names.index(region.concept) for region in regions)])
    concept = np.where(number > 0, shown[number], np.argmax(fields + own, axis=1))
    is_evidence = np.array([False, *(region.role == "evidence" for region in regions)])
    region = np.where(is_evidence, np.cumsum(is_evidence), 0)[number]
    mixing = dials.border_mixing
    return TissueLayout(
        cells=cells,
        concept=concept,
        region=region,
        composition=mix_concepts(concept, len(names), neighbours, mixing),
        overlap=mix_concepts((region > 0).astype(np.int64), 2, neighbours, mixing)[:, 1],
    )


def draw_tissue_cells(n_patches: int, pieces_max: int, generator: Generator) -> Cells:
    """Exactly `n_patches` (row, column) cells in raster order, in irregular pieces."""
    aspect = np.exp(generator.uniform(-0.4, 0.4))
    area = n_patches / _TISSUE_FILL
    height, width = (max(2, int(np.ceil(np.sqrt(area * side)))) for side in (aspect, 1 / aspect))
    canvas = np.stack(np.divmod(np.arange(height * width), width), axis=1)
    scale = max(2.0, np.sqrt(n_patches) / 4)
    landscape = 0.35 * smooth_fields(canvas, scale, 1, generator)[:, 0]
    position = canvas / np.array([height, width])
    n_pieces = int(generator.integers(1, pieces_max + 1))
    centres = generator.uniform(0.2, 0.8, size=(n_pieces, 2))
    radii = generator.uniform(0.15, 0.4, size=(n_pieces, 2))
    # The nearest piece counts: 0 at its centre, falling outwards.
    distances = (position[:, None] - centres) / radii
    landscape += (-(distances**2).sum(axis=2)).max(axis=1)
    chosen = np.sort(np.argsort(-landscape, kind="stable")[:n_patches])
    return canvas[chosen]


def mix_concepts(
    concept: PatchIndex, n_concepts: int, neighbours: Neighbours, mixing: float
) -> Composition:
    """Shares of every concept in each patch; rows add up to 1."""
    every = np.arange(len(concept))
    shares = np.zeros((len(concept), n_concepts))
    shares[every, concept] = 1 - mixing
    for side in range(neighbours.shape[1]):
        beside = np.where(neighbours[:, side] < 0, every, neighbours[:, side])
        shares[every, concept[beside]] += mixing / neighbours.shape[1]
    # Sums of eighths may exceed 1 by a rounding error.
    return np.clip(shares, 0, 1)
