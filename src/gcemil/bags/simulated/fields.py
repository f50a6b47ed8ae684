"""Smooth random fields on the patch grid: coarse standard normals, interpolated bilinearly, of variance 1 everywhere."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator

Cells = Int[np.ndarray, "n 2"]


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
