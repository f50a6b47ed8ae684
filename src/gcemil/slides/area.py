"""How much of a box a mask covers, for all boxes at once.

The integral of a mask over [0, x] x [0, y] is bilinear inside every pixel, so interpolating the table of its running sums
gives exact areas for boxes that begin and end anywhere.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

Starts = Float[np.ndarray, "n"]


def covered_share(
    mask: Bool[np.ndarray, "h w"], left: Starts, top: Starts, *, width: float, height: float
) -> Float[np.ndarray, "n"]:
    """Share of each box inside the mask; boxes in mask pixels, what lies outside the mask is not covered."""
    table = np.zeros((mask.shape[0] + 1, mask.shape[1] + 1))
    np.cumsum(np.cumsum(mask, axis=0, dtype=np.float64), axis=1, out=table[1:, 1:])
    right, bottom = left + width, top + height
    area = (
        _integral(table, bottom, right)
        - _integral(table, top, right)
        - _integral(table, bottom, left)
        + _integral(table, top, left)
    )
    # Differences of large sums; without rounding a full box could fall short of 1.
    return np.clip(np.round(area / (width * height), 9), 0, 1)


def _integral(table: Float[np.ndarray, "rows columns"], y: Starts, x: Starts) -> Starts:
    row, down = _split(y, table.shape[0])
    column, across = _split(x, table.shape[1])
    upper = table[row, column] * (1 - across) + table[row, column + 1] * across
    lower = table[row + 1, column] * (1 - across) + table[row + 1, column + 1] * across
    return upper * (1 - down) + lower * down


def _split(position: Starts, length: int) -> tuple[Int[np.ndarray, "n"], Starts]:
    """Whole and fractional part of a position on the table, held inside it."""
    inside = np.clip(position, 0, length - 1)
    whole = np.minimum(inside.astype(np.int64), length - 2)
    return whole, inside - whole
