"""Patch coordinates as a grid: half smoothing of scores and coordinates free of position and scale.

  s~ = 1/2 s + 1/2 mean of s over the 3 x 3 cells around the patch that the bag holds, its own included
An isolated patch keeps its score. Full smoothing would drown it, and it would stay in the complement.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.errors import UsageError
from gcemil.shapes import Coords, Scores


@dataclass(frozen=True)
class Neighbourhood:
    """Who is next to whom in one bag: computed once, used for every smoothing of that bag."""

    cell_of_patch: Int[Tensor, "n"]
    around_cell: Int[Tensor, "cells 9"]
    """The cells around each cell; an absent one is numbered `cells`, where the sums are 0."""
    patches_around: Float[Tensor, "cells"]

    @classmethod
    def of(cls, coords: Coords, step: int | None = None) -> "Neighbourhood":
        """Neighbours on the grid of the given step, by default the one the coordinates themselves show."""
        step = common_step(coords) if step is None else step
        if step < 1:
            raise UsageError(f"The grid step is at least one pixel, got {step}.")
        keys, width = _cell_keys(coords, step)
        cells, cell_of_patch, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        around = _cells_around(cells, width)
        padded = torch.cat([counts, counts.new_zeros(1)])
        return cls(cell_of_patch, around, padded[around].sum(dim=1).to(torch.float32))

    def mean(self, scores: Scores) -> Scores:
        """Mean over the 3 x 3 neighbourhood of every patch, differentiable in the scores."""
        sums = scores.new_zeros(len(self.around_cell) + 1).index_add(0, self.cell_of_patch, scores)
        means = sums[self.around_cell].sum(dim=1) / self.patches_around.to(scores.dtype)
        return means[self.cell_of_patch]


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


def _cell_keys(coords: Coords, step: int) -> tuple[Int[Tensor, "n"], int]:
    # Nearest cell rather than floor: contours tiled on their own grids are off by less than a step.
    cells = (2 * (coords.long() - coords.amin(dim=0)) + step) // (2 * step)
    # One empty column on either side keeps the end of a row from touching the start of the next.
    width = int(cells[:, 0].max()) + 3
    return (cells[:, 1] + 1) * width + cells[:, 0] + 1, width


def _cells_around(cells: Int[Tensor, "cells"], width: int) -> Int[Tensor, "cells 9"]:
    """Position in the sorted `cells` of each of the nine keys around every cell."""
    # The cells are sorted and distinct, so the three of a row lie side by side: one search finds them all.
    rows = width * torch.tensor([-1, 0, 1]).to(cells)
    keys = cells.unsqueeze(1) + rows - 1
    place = torch.searchsorted(cells, keys)
    padded = torch.cat([cells, cells.new_full((1,), -1)])
    around = []
    for column in range(3):
        is_there = padded[place] == keys + column
        around.append(torch.where(is_there, place, len(cells)))
        place = place + is_there
    return torch.stack(around, dim=2).flatten(1)
