"""Patch coordinates as a grid: half smoothing of scores and coordinates free of position and scale.

  s~ = 1/2 s + 1/2 mean of s over the 3 x 3 cells around the patch that the bag holds, its own included
An isolated patch keeps its score. Full smoothing would drown it, and it would stay in the complement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from gcemil.errors import UsageError
from gcemil.shapes import Coords, Scores

CELLS_PER_PATCH = 128
"""Cells of the bounding box for each patch, up to which sums run over the whole box; beyond it, neighbours are searched."""
SMALL_BAG = 2048
"""Patches up to which a search costs no more than the box."""


@dataclass(frozen=True)
class Neighbourhood:
    """Who is next to whom in one bag: computed once, used for every smoothing of that bag."""

    cells: _Box | _CellList
    patches_around: Float[Tensor, "n"]

    @classmethod
    def of(cls, coords: Coords, step: int | None = None) -> Neighbourhood:
        """Neighbours on the grid of the given step, by default the one the coordinates themselves show."""
        step = common_step(coords) if step is None else step
        if step < 1:
            raise UsageError(f"The grid step is at least one pixel, got {step}.")
        # Nearest cell rather than floor: contours tiled on their own grids are off by less than a step.
        places = (2 * (coords.long() - coords.amin(dim=0)) + step) // (2 * step)
        last_column, last_row = places.amax(dim=0).tolist()
        n_cells = (last_column + 1) * (last_row + 1)
        is_dense = len(coords) > SMALL_BAG and n_cells <= CELLS_PER_PATCH * len(coords)
        cells = _Box.of(places, last_column, last_row) if is_dense else _CellList.of(places, last_column)
        return cls(cells, cells.sums(torch.ones(len(coords), device=coords.device)))

    def mean(self, scores: Scores) -> Scores:
        """Mean over the 3 x 3 neighbourhood of every patch, differentiable in the scores."""
        return self.cells.sums(scores) / self.patches_around.to(scores.dtype)


@dataclass(frozen=True)
class _Box:
    """Every cell of the bounding box, row after row: nothing has to be sorted or searched."""

    cell_of_patch: Int[Tensor, "n"]
    n_rows: int
    n_columns: int

    @classmethod
    def of(cls, places: Int[Tensor, "n 2"], last_column: int, last_row: int) -> _Box:
        # One empty cell on every side, so that a border needs no rule of its own.
        n_columns = last_column + 3
        return cls((places[:, 1] + 1) * n_columns + places[:, 0] + 1, last_row + 3, n_columns)

    def sums(self, values: Scores) -> Scores:
        """Of every patch, the sum over the 3 x 3 cells around it."""
        box = values.new_zeros(self.n_rows * self.n_columns).index_add(0, self.cell_of_patch, values)
        box = box.view(self.n_rows, self.n_columns)
        across = box[:, :-2] + box[:, 1:-1] + box[:, 2:]
        around = F.pad(across[:-2] + across[1:-1] + across[2:], (1, 1, 1, 1))
        return around.flatten()[self.cell_of_patch]


@dataclass(frozen=True)
class _CellList:
    """The cells that hold a patch, sorted: for patches scattered over a wide slide."""

    cell_of_patch: Int[Tensor, "n"]
    around_cell: Int[Tensor, "cells 9"]
    """The cells around each cell; an absent one is numbered `cells`, where the sums are 0."""

    @classmethod
    def of(cls, places: Int[Tensor, "n 2"], last_column: int) -> _CellList:
        # One empty column on either side keeps the end of a row from touching the start of the next.
        width = last_column + 3
        cells, cell_of_patch = torch.unique(
            (places[:, 1] + 1) * width + places[:, 0] + 1, return_inverse=True
        )
        shifts = torch.tensor([row * width + column for row in (-1, 0, 1) for column in (-1, 0, 1)]).to(cells)
        wanted = cells.unsqueeze(1) + shifts
        found = torch.searchsorted(cells, wanted).clamp_max(len(cells) - 1)
        return cls(cell_of_patch, torch.where(cells[found] == wanted, found, len(cells)))

    def sums(self, values: Scores) -> Scores:
        """Of every patch, the sum over the 3 x 3 cells around it."""
        cells = values.new_zeros(len(self.around_cell) + 1).index_add(0, self.cell_of_patch, values)
        return cells[self.around_cell].sum(dim=1)[self.cell_of_patch]


def smoothed(scores: Scores, neighbourhood: Neighbourhood, *, share: float = 0.5) -> Scores:
    """The scores, `share` of each replaced by the mean of its neighbourhood."""
    return (1 - share) * scores + share * neighbourhood.mean(scores)


def common_step(coords: Coords) -> int:
    """The smallest gap between patches of one row or column that is at least half as frequent as the commonest gap.

    The mere minimum fails on slides tiled contour by contour, where two grids may lie a few pixels apart.
    """
    gaps = torch.cat(
        [_gaps_within_lines(coords[:, 1], coords[:, 0]), _gaps_within_lines(coords[:, 0], coords[:, 1])]
    )
    if len(gaps) == 0:
        gaps = torch.cat([torch.unique(coords[:, axis]).diff() for axis in (0, 1)])
    if len(gaps) == 0:
        return 1
    sizes, counts = torch.unique(gaps, return_counts=True)
    return int(sizes[2 * counts >= counts.max()][0])


def normalised_coords(coords: Coords) -> Float[Tensor, "n 2"]:
    """Centred on the bounding box, longer side from -1 to 1: shifting or scaling the slide changes nothing."""
    low = coords.amin(dim=0)
    extent = coords.amax(dim=0) - low
    # Integers until the division, so that a shift is exact even at 200,000 pixels.
    doubled = 2 * (coords - low) - extent
    return doubled.to(torch.float32) / extent.max().clamp_min(1).to(torch.float32)


def _gaps_within_lines(line: Int[Tensor, "n"], position: Int[Tensor, "n"]) -> Int[Tensor, "g"]:
    order = position.argsort()
    order = order[line[order].argsort(stable=True)]
    gaps, same_line = position[order].diff(), line[order].diff() == 0
    return gaps[same_line & (gaps > 0)]
