"""From squares on the patch grid to tissue with grown borders.

Borders between background tissues wander over a good part of a square, since no truth hangs on them. A planned region fills
at least the core of its squares, which is more than half of each, and reaches at most RIM pixels beyond: a patch that a
plan calls evidence is evidence for the better part, and no other is. The tissue's outline never cuts into a region.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped, UInt8
from numpy.random import Generator
from PIL import Image
from scipy import ndimage

from gcemil.slides.drawn.noise import smooth_plane

PATCH = 256
FINE = 4
"""Level-0 pixels per pixel of the maps and masks: 2 micrometres."""
SQUARE = PATCH // FINE
CORE = 0.42
"""Half the width of a square's core, in squares; its corners are round, so it covers 0.62 of the square."""
RIM = 48
"""Level-0 pixels that a region may reach beyond its squares."""
MARGIN = 1
"""Empty squares around the tissue."""

Map = UInt8[np.ndarray, "h w"]
Mask = Bool[np.ndarray, "h w"]
Grid = Int[np.ndarray, "rows columns"]
Grid2 = Int[np.ndarray, "h w"]


@dataclass(frozen=True, eq=False)
class SquarePlan:
    """What each square of tissue holds, in the order of its (row, column) cells."""

    cells: Int[np.ndarray, "n 2"]
    texture: Int[np.ndarray, "n"]
    """Which recipe, from 0."""
    is_region: Bool[np.ndarray, "n"]
    """Planned regions, evidence or not; the rest is background."""
    evidence: Int[np.ndarray, "n"]
    """Number of the evidence region from 1, 0 elsewhere."""


@dataclass(frozen=True, eq=False)
class LabelMap:
    """Truth at 2 micrometres per pixel."""

    texture: Map
    """Recipe + 1, 0 where there is no tissue."""
    evidence: Map

    @property
    def tissue(self) -> Bool[np.ndarray, "h w"]:
        return self.texture > 0


def label_map(plan: SquarePlan, generator: Generator) -> LabelMap:
    """The plan with borders as tissue has them."""
    cells = plan.cells - plan.cells.min(axis=0) + MARGIN
    rows, columns = (cells.max(axis=0) + 1 + MARGIN).tolist()
    region = _on_grid(rows, columns, cells, np.where(plan.is_region, plan.texture + 1, 0))
    number = _on_grid(rows, columns, cells, plan.evidence)
    ground = _nearest_filled(_on_grid(rows, columns, cells, np.where(plan.is_region, 0, plan.texture + 1)))
    occupied = _on_grid(rows, columns, cells, np.ones(len(cells), dtype=np.int64)) > 0

    here = _grown(region > 0, generator)
    # A region spills over into squares beside it, whose label is that of the nearest region square.
    nearest = _nearest_filled(region), _nearest_region_number(region, number)
    texture = np.where(here, _enlarged(nearest[0]), _moved(ground, generator))
    evidence = np.where(here, _enlarged(nearest[1]), 0)
    tissue = here | _outline(occupied, generator)
    return LabelMap(np.where(tissue, texture, 0).astype(np.uint8), evidence.astype(np.uint8))


def _on_grid(rows: int, columns: int, cells: Int[np.ndarray, "n 2"], values: Int[np.ndarray, "n"]) -> Grid:
    grid = np.zeros((rows, columns), dtype=np.int64)
    grid[cells[:, 0], cells[:, 1]] = values
    return grid


def _nearest_filled(grid: Grid) -> Grid:
    """Every empty square takes after the nearest one that is not."""
    return grid[_nearest(grid > 0)] if grid.any() else grid + 1


def _nearest_region_number(region: Grid, number: Grid) -> Grid:
    return number[_nearest(region > 0)] if region.any() else number


def _nearest(filled: Bool[np.ndarray, "rows columns"]) -> tuple[Grid, Grid]:
    row, column = ndimage.distance_transform_edt(~filled, return_distances=False, return_indices=True)
    return row.astype(np.int64), column.astype(np.int64)


def _grown(planned: Bool[np.ndarray, "rows columns"], generator: Generator) -> Mask:
    """Planned squares with soft, ragged borders, held between the core of each square and a rim around it."""
    height, width = planned.shape[0] * SQUARE, planned.shape[1] * SQUARE
    ragged = 0.22 * smooth_plane(height, width, 22, generator) + 0.1 * smooth_plane(
        height, width, 7, generator
    )
    soft = _softened(planned, 0.22) + ragged > 0.5
    offset = (np.arange(SQUARE) + 0.5) / SQUARE - 0.5
    core = np.abs(offset[:, None]) ** 3 + np.abs(offset[None, :]) ** 3 < CORE**3
    large = _enlarged(planned)
    certain = large & np.tile(core, planned.shape)
    near = ndimage.distance_transform_edt(~large) <= RIM / FINE if planned.any() else large
    return certain | (soft & near)


def _moved(ground: Grid, generator: Generator) -> Grid2:
    """Background squares with borders that wander over a good part of a square."""
    rows, columns = ground.shape
    height, width = rows * SQUARE, columns * SQUARE
    found = []
    for axis, count in ((0, rows), (1, columns)):
        shift = 0.34 * smooth_plane(height, width, 46, generator) + 0.08 * smooth_plane(
            height, width, 12, generator
        )
        place = (np.arange(count * SQUARE) + 0.5) / SQUARE
        moved = (place[:, None] if axis == 0 else place[None, :]) + shift
        found.append(np.clip(moved, 0, count - 1e-3).astype(np.int64))
    return ground[found[0], found[1]]


def _outline(occupied: Bool[np.ndarray, "rows columns"], generator: Generator) -> Mask:
    """The occupied squares without their corners, ragged."""
    height, width = occupied.shape[0] * SQUARE, occupied.shape[1] * SQUARE
    ragged = 0.07 * smooth_plane(height, width, 30, generator) + 0.04 * smooth_plane(
        height, width, 7, generator
    )
    return _softened(occupied, 0.42) + np.clip(ragged, -0.2, 0.2) > 0.45


def _softened(squares: Bool[np.ndarray, "rows columns"], blur: float) -> Float32[np.ndarray, "h w"]:
    """Squares blurred over this share of a square, at the resolution of the map."""
    fine = 8
    small = ndimage.gaussian_filter(
        squares.repeat(fine, axis=0).repeat(fine, axis=1).astype(np.float32), blur * fine
    )
    size = (squares.shape[1] * SQUARE, squares.shape[0] * SQUARE)
    return np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BILINEAR))


def _enlarged(grid: Shaped[np.ndarray, "rows columns"]) -> Shaped[np.ndarray, "h w"]:
    return grid.repeat(SQUARE, axis=0).repeat(SQUARE, axis=1)
