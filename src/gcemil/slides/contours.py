"""Outlines of a mask along the edges of its pixels: exact, closed, holes included.

Every edge between a pixel inside and one outside is walked once with the inside on its right, so outer rings run
clockwise as seen on the screen and holes the other way round. Pixels that touch at a corner only are separate pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

Mask = Bool[np.ndarray, "h w"]
Ring = Int[np.ndarray, "_ 2"]


@dataclass(frozen=True, eq=False)
class Outline:
    """One connected piece: its outer ring and its holes as (x, y) corners, the first not repeated at the end."""

    outer: Ring
    holes: tuple[Ring, ...]


def trace_outlines(mask: Mask) -> list[Outline]:
    """Every piece of the mask, in raster order of its first pixel."""
    # Imported here: reading annotations needs the rings of this file, and starts without it.
    from scipy import ndimage

    pieces, count = ndimage.label(mask)
    padded = np.pad(pieces, 1)
    outer: dict[int, Ring] = {}
    holes: dict[int, list[Ring]] = {piece: [] for piece in range(1, count + 1)}
    following = _directed_edges(np.pad(mask, 1))
    while following:
        ring = np.array(_walk_ring(following, min(following)))
        piece = int(_pixel_on_the_right(padded, ring))
        if signed_area(ring) > 0:
            outer[piece] = _drop_straight_points(ring)
        else:
            holes[piece].append(_drop_straight_points(ring))
    return [Outline(outer[piece], tuple(holes[piece])) for piece in range(1, count + 1)]


def outline_squares(corners: Int[np.ndarray, "k 2"], side: int) -> list[Outline]:
    """The exact outlines of squares laid side by side or over each other, wherever they lie."""
    # Between two neighbouring edges nothing changes, so a pixel for each such strip is enough.
    x, y = (np.unique(np.concatenate([corners[:, axis], corners[:, axis] + side])) for axis in (0, 1))
    mask = np.zeros((len(y) - 1, len(x) - 1), dtype=bool)
    left, right = np.searchsorted(x, corners[:, 0]), np.searchsorted(x, corners[:, 0] + side)
    top, bottom = np.searchsorted(y, corners[:, 1]), np.searchsorted(y, corners[:, 1] + side)
    for x0, x1, y0, y1 in np.stack([left, right, top, bottom], axis=1).tolist():
        mask[y0:y1, x0:x1] = True

    def place(ring: Ring) -> Ring:
        return np.stack([x[ring[:, 0]], y[ring[:, 1]]], axis=1)

    return [
        Outline(place(one.outer), tuple(place(hole) for hole in one.holes)) for one in trace_outlines(mask)
    ]


def signed_area(ring: Int[np.ndarray, "k 2"] | Float[np.ndarray, "k 2"]) -> float:
    """Area by the shoelace rule: positive where the ring runs clockwise on the screen."""
    x, y = ring[:, 0].astype(np.float64), ring[:, 1].astype(np.float64)
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _directed_edges(padded: Bool[np.ndarray, "rows columns"]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Corner → where the edges that begin there lead; at most two."""
    above, below = padded[:-1], padded[1:]
    left, right = padded[:, :-1], padded[:, 1:]
    parts = []
    # A corner of the unpadded mask is one less than its index in the padded one.
    for at, (dx, dy), shift in (
        (~above & below, (1, 0), (-1, 0)),
        (above & ~below, (-1, 0), (0, 0)),
        (~left & right, (0, -1), (0, 0)),
        (left & ~right, (0, 1), (0, -1)),
    ):
        y, x = np.nonzero(at)
        begin = np.stack([x + shift[0], y + shift[1]], axis=1)
        parts.append(np.concatenate([begin, begin + np.array([dx, dy])], axis=1))
    following: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for x, y, to_x, to_y in np.concatenate(parts).tolist():
        following.setdefault((x, y), []).append((to_x, to_y))
    return following


def _walk_ring(
    following: dict[tuple[int, int], list[tuple[int, int]]], start: tuple[int, int]
) -> list[tuple[int, int]]:
    """One closed ring, taken out of the edges."""
    ring, here, heading = [start], start, (0, 0)
    while True:
        choices = following[here]
        # Where two pixels touch at a corner, turning right stays with the pixel the walk came along.
        right_turn = (here[0] - heading[1], here[1] + heading[0])
        there = right_turn if right_turn in choices else choices[0]
        choices.remove(there)
        if not choices:
            del following[here]
        if there == start:
            return ring
        heading, here = (there[0] - here[0], there[1] - here[1]), there
        ring.append(here)


def _pixel_on_the_right(padded: Int[np.ndarray, "rows columns"], ring: Ring) -> int:
    (x, y), (to_x, to_y) = ring[0].tolist(), ring[1].tolist()
    dx, dy = to_x - x, to_y - y
    # Half a step along the edge and half a step to its right, then back to padded pixels.
    return int(padded[(2 * y + dy + dx - 1) // 2 + 1, (2 * x + dx - dy - 1) // 2 + 1])


def _drop_straight_points(ring: Ring) -> Ring:
    """The ring without the points at which it goes straight on."""
    before, after = ring - np.roll(ring, 1, axis=0), np.roll(ring, -1, axis=0) - ring
    return ring[(before != after).any(axis=1)]
