"""Outlines of masks and squares along their edges: exact, holes included.

A piece is a list of rings of (x, y) corners, the outer one first, without their first corner
repeated. Outer rings run clockwise as seen on the screen and holes the other way round. Pixels that
touch at a corner only are separate pieces.
"""

from __future__ import annotations

import numpy as np
import shapely
from jaxtyping import Bool, Int

Ring = Int[np.ndarray, "_ 2"]
Piece = list[Ring]


def trace_outlines(mask: Bool[np.ndarray, "h w"]) -> list[Piece]:
    """Every piece of the mask, in raster order of its first pixel."""
    # A box for each run of pixels in a row.
    steps = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    (y, left), (_, right) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    return _outline_boxes(shapely.box(left, y, right, y + 1))


def outline_squares(corners: Int[np.ndarray, "k 2"], side: int) -> list[Piece]:
    """The outlines of squares side by side or over each other, wherever they lie."""
    x, y = corners.T
    return _outline_boxes(shapely.box(x, y, x + side, y + side))


def _outline_boxes(boxes: np.ndarray[tuple[int], np.dtype[np.object_]]) -> list[Piece]:
    """The pieces of the union of boxes, without points on a straight edge."""
    # With y pointing down, the order of a normalised ring is reversed on the screen.
    parts = shapely.get_parts(shapely.simplify(shapely.normalize(shapely.union_all(boxes)), 0))
    pieces = [
        [
            shapely.get_coordinates(ring)[:0:-1].astype(np.int64)
            for ring in (part.exterior, *part.interiors)
        ]
        for part in parts
        if not part.is_empty
    ]
    return sorted(pieces, key=lambda rings: min(rings[0][:, ::-1].tolist()))
