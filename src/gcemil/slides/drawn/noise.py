"""Randomness in the plane: smooth fields, jittered points and the cells around them, at any positions at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int
from numpy.random import Generator
from PIL import Image

Positions = Float32[np.ndarray, "n"]
Plane = Float32[np.ndarray, "h w"]


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
    v, u = _eased(down - whole_down), _eased(across - whole_across)
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


def nearest_two(
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


def _eased(share: Positions) -> Positions:
    return share * share * (np.float32(3) - np.float32(2) * share)
