"""From squares on the patch grid to tissue with grown borders, and the randomness in the plane that this takes.

Borders between background tissues wander over a good part of a square, since no truth hangs on them. A planned region fills
at least the core of its squares, which is more than half of each, and reaches at most RIM pixels beyond: a patch that a
plan calls evidence is evidence for the better part, and no other is. The tissue's outline never cuts into a region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped, UInt8
from numpy.random import Generator
from PIL import Image
from scipy import ndimage

Positions = Float32[np.ndarray, "n"]
Plane = Float32[np.ndarray, "h w"]


PATCH = 256
FINE = 4
"""Level-0 pixels per pixel of the maps and masks: 2 micrometres."""
SQUARE = PATCH // FINE
CORE = 0.42
"""Half the width of a square's core, in squares; its corners are round, so it covers 0.62 of the square."""
_RIM = 48
"""Level-0 pixels that a region may reach beyond its squares."""
MARGIN = 1
"""Empty squares around the tissue."""
Map = UInt8[np.ndarray, "h w"]
Mask = Bool[np.ndarray, "h w"]
Grid = Int[np.ndarray, "rows columns"]
Grid2 = Int[np.ndarray, "h w"]


def smooth_plane(height: int, width: int, scale: float, generator: Generator) -> Plane:
    """A field of about standard normal values that varies over `scale` pixels, at every pixel."""
    rows, columns = int(height / scale) + 5, int(width / scale) + 5
    coarse = generator.standard_normal((rows, columns), dtype=np.float32)
    # One grid square inside the margin, so that the interpolation never looks beyond the grid.
    left, top = 1 + generator.random(2)
    box = (left, top, left + width / scale, top + height / scale)
    plane = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC, box=box)
    # Between grid points a mean of many varies less; the factor brings the average back to 1.
    return np.float32(1.3) * np.asarray(plane)


def mix_planes(height: int, width: int, parts: Sequence[tuple[float, float]], generator: Generator) -> Plane:
    """The sum of such fields, each of a strength and a scale."""
    planes = [strength * smooth_plane(height, width, scale, generator) for strength, scale in parts]
    return np.add.reduce(planes)


def smooth_field(y: Positions, x: Positions, scale: float, generator: Generator) -> Positions:
    """A field of about standard normal values that varies over `scale` pixels, at these positions."""
    if not len(y):
        return np.zeros(0, np.float32)
    shift = generator.random(2, dtype=np.float32)
    down, across = y / np.float32(scale) + shift[0], x / np.float32(scale) + shift[1]
    whole_down, whole_across = np.floor(down), np.floor(across)
    row, column = whole_down.astype(np.int32), whole_across.astype(np.int32)
    width = int(column.max()) + 2
    grid = generator.standard_normal((int(row.max()) + 2) * width, dtype=np.float32)
    v, u = _ease(down - whole_down), _ease(across - whole_across)
    corner = row * np.int32(width) + column
    upper = grid[corner] + u * (grid[corner + 1] - grid[corner])
    corner += width
    lower = grid[corner] + u * (grid[corner + 1] - grid[corner])
    # Between grid points a mean of four varies less; 1.5 brings the average back to 1.
    return np.float32(1.5) * (upper + v * (lower - upper))


@dataclass(frozen=True, eq=False)
class Scatter:
    """One point per square of a grid, moved about at random: evenly spread, never regular."""

    spacing: float
    rows: int
    columns: int
    y: Float32[np.ndarray, "rows columns"]
    x: Float32[np.ndarray, "rows columns"]


def scatter(height: int, width: int, spacing: float, jitter: float, generator: Generator) -> Scatter:
    """Points over a canvas and a little beyond; `jitter` 1 lets a point lie anywhere in its square."""
    rows, columns = int(height / spacing) + 4, int(width / spacing) + 4
    moved = generator.random((2, rows, columns), dtype=np.float32) - np.float32(0.5)
    row = np.arange(-1.5, rows - 1.5, dtype=np.float32)[:, None]
    column = np.arange(-1.5, columns - 1.5, dtype=np.float32)[None, :]
    # Every other row is shifted by half a square, as bricks are, so that no columns show.
    brick = np.float32(0.5) * (np.arange(rows) % 2).astype(np.float32)[:, None]
    return Scatter(
        spacing,
        rows,
        columns,
        ((row + np.float32(jitter) * moved[0]) * np.float32(spacing)).astype(np.float32),
        ((column + brick - 0.25 + np.float32(jitter) * moved[1]) * np.float32(spacing)).astype(np.float32),
    )


def find_nearest_two(
    points: Scatter, y: Positions, x: Positions
) -> tuple[Positions, Positions, Int[np.ndarray, "n"]]:
    """Distance to the nearest and the second nearest point, and which the nearest is."""
    row = (y / np.float32(points.spacing)).astype(np.int32) + 2
    column = (x / np.float32(points.spacing)).astype(np.int32) + 2
    first = np.full(len(y), np.inf, np.float32)
    second = first.copy()
    nearest = np.zeros(len(y), np.int32)
    flat_y, flat_x = points.y.ravel(), points.x.ravel()
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            index = np.clip(row + down, 0, points.rows - 1) * np.int32(points.columns)
            index += np.clip(column + right, 0, points.columns - 1)
            squared = (flat_y[index] - y) ** 2 + (flat_x[index] - x) ** 2
            np.minimum(second, np.maximum(squared, first), out=second)
            closer = squared < first
            nearest[closer] = index[closer]
            np.minimum(first, squared, out=first)
    return np.sqrt(first), np.sqrt(second), nearest


def _ease(share: Positions) -> Positions:
    return share * share * (np.float32(3) - np.float32(2) * share)


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
        """Where there is tissue."""
        return self.texture > 0


def grow_label_map(plan: SquarePlan, generator: Generator) -> LabelMap:
    """The plan with borders as tissue has them."""
    cells = plan.cells - plan.cells.min(axis=0) + MARGIN
    rows, columns = (cells.max(axis=0) + 1 + MARGIN).tolist()
    region = _place_on_grid(rows, columns, cells, np.where(plan.is_region, plan.texture + 1, 0))
    number = _place_on_grid(rows, columns, cells, plan.evidence)
    ground = _fill_from_nearest(
        _place_on_grid(rows, columns, cells, np.where(plan.is_region, 0, plan.texture + 1))
    )
    occupied = _place_on_grid(rows, columns, cells, np.ones(len(cells), dtype=np.int64)) > 0

    here = _grow_borders(region > 0, generator)
    # A region spills over into squares beside it, whose label is that of the nearest region square.
    texture = np.where(here, _enlarge_grid(_fill_from_nearest(region)), _move_borders(ground, generator))
    number = number[_find_nearest(region > 0)] if region.any() else number
    evidence = np.where(here, _enlarge_grid(number), 0)
    tissue = here | _draw_outline(occupied, generator)
    return LabelMap(np.where(tissue, texture, 0).astype(np.uint8), evidence.astype(np.uint8))


def _place_on_grid(
    rows: int, columns: int, cells: Int[np.ndarray, "n 2"], values: Int[np.ndarray, "n"]
) -> Grid:
    grid = np.zeros((rows, columns), dtype=np.int64)
    grid[cells[:, 0], cells[:, 1]] = values
    return grid


def _fill_from_nearest(grid: Grid) -> Grid:
    """Every empty square takes after the nearest one that is not."""
    return grid[_find_nearest(grid > 0)] if grid.any() else grid + 1


def _find_nearest(filled: Bool[np.ndarray, "rows columns"]) -> tuple[Grid, Grid]:
    row, column = ndimage.distance_transform_edt(~filled, return_distances=False, return_indices=True)
    return row.astype(np.int64), column.astype(np.int64)


def _grow_borders(planned: Bool[np.ndarray, "rows columns"], generator: Generator) -> Mask:
    """Planned squares with soft, ragged borders, held between the core of each square and a rim around it."""
    height, width = planned.shape[0] * SQUARE, planned.shape[1] * SQUARE
    ragged = mix_planes(height, width, ((0.22, 22), (0.1, 7)), generator)
    soft = _blur_squares(planned, 0.22) + ragged > 0.5
    offset = (np.arange(SQUARE) + 0.5) / SQUARE - 0.5
    core = np.abs(offset[:, None]) ** 3 + np.abs(offset[None, :]) ** 3 < CORE**3
    large = _enlarge_grid(planned)
    certain = large & np.tile(core, planned.shape)
    near = ndimage.distance_transform_edt(~large) <= _RIM / FINE if planned.any() else large
    return certain | (soft & near)


def _move_borders(ground: Grid, generator: Generator) -> Grid2:
    """Background squares with borders that wander over a good part of a square."""
    rows, columns = ground.shape
    height, width = rows * SQUARE, columns * SQUARE
    found = []
    for axis, count in ((0, rows), (1, columns)):
        shift = mix_planes(height, width, ((0.34, 46), (0.08, 12)), generator)
        place = (np.arange(count * SQUARE) + 0.5) / SQUARE
        moved = (place[:, None] if axis == 0 else place[None, :]) + shift
        found.append(np.clip(moved, 0, count - 1e-3).astype(np.int64))
    return ground[found[0], found[1]]


def _draw_outline(occupied: Bool[np.ndarray, "rows columns"], generator: Generator) -> Mask:
    """The occupied squares without their corners, ragged."""
    height, width = occupied.shape[0] * SQUARE, occupied.shape[1] * SQUARE
    ragged = mix_planes(height, width, ((0.07, 30), (0.04, 7)), generator)
    return _blur_squares(occupied, 0.42) + np.clip(ragged, -0.2, 0.2) > 0.45


def _blur_squares(squares: Bool[np.ndarray, "rows columns"], blur: float) -> Float32[np.ndarray, "h w"]:
    """Squares blurred over this share of a square, at the resolution of the map."""
    fine = 8
    small = ndimage.gaussian_filter(
        squares.repeat(fine, axis=0).repeat(fine, axis=1).astype(np.float32), blur * fine
    )
    size = (squares.shape[1] * SQUARE, squares.shape[0] * SQUARE)
    return np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BILINEAR))


def _enlarge_grid(grid: Shaped[np.ndarray, "rows columns"]) -> Shaped[np.ndarray, "h w"]:
    return grid.repeat(SQUARE, axis=0).repeat(SQUARE, axis=1)
