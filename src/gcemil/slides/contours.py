"""Outlines of masks and squares along their edges: exact, closed, holes included.

Outer rings run clockwise as seen on the screen and holes the other way round. Pixels that touch at a corner only are
separate pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from jaxtyping import Bool, Int

Mask = Bool[np.ndarray, "h w"]
Ring = Int[np.ndarray, "_ 2"]


@dataclass(frozen=True, eq=False)
class Outline:
    """One connected piece: its outer ring and its holes as (x, y) corners, the first not repeated at the end."""

    outer: Ring
    holes: tuple[Ring, ...]


def trace_outlines(mask: Mask) -> list[Outline]:
    """Every piece of the mask, in raster order of its first pixel."""
    # A box for each run of pixels in a row.
    steps = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    (y, left), (_, right) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    return _outline_boxes(shapely.box(left, y, right, y + 1))


def outline_squares(corners: Int[np.ndarray, "k 2"], side: int) -> list[Outline]:
    """The outlines of squares side by side or over each other, wherever they lie."""
    x, y = corners.T
    return _outline_boxes(shapely.box(x, y, x + side, y + side))


def _outline_boxes(boxes: np.ndarray[tuple[int], np.dtype[np.object_]]) -> list[Outline]:
    """The pieces of the union of boxes."""
    pieces = [piece for piece in shapely.get_parts(shapely.union_all(boxes)) if not piece.is_empty]
    found = [
        Outline(
            _read_ring(piece.exterior, clockwise=True),
            tuple(_read_ring(hole, clockwise=False) for hole in piece.interiors),
        )
        for piece in pieces
    ]
    return sorted(found, key=lambda one: min(one.outer[:, ::-1].tolist()))


def _read_ring(ring: shapely.LinearRing, *, clockwise: bool) -> Ring:
    """Its corners from the leftmost on, without points on a straight edge."""
    # With y pointing down, clockwise on the screen is what shapely calls counter-clockwise.
    points = shapely.get_coordinates(ring)[:-1].astype(np.int64)
    if ring.is_ccw != clockwise:
        points = points[::-1]
    before, after = points - np.roll(points, 1, axis=0), np.roll(points, -1, axis=0) - points
    corners = points[(np.sign(before) != np.sign(after)).any(axis=1)]
    return np.roll(corners, -int(np.lexsort((corners[:, 1], corners[:, 0]))[0]), axis=0)
