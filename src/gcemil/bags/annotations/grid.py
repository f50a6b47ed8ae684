"""Patches as cells of a grid, and the connected regions of marked cells.

Two marked patches are connected when their cells touch at a side or at a corner (8-neighbourhood, as CAMELYON16's
organisers label lesions). Only marked cells are stored: memory is linear in the patches, not in the slide.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from gcemil.errors import BagError

Cells = Int[np.ndarray, "n 2"]
Marked = Bool[np.ndarray, "n"]
Numbers = Int[np.ndarray, "n"]


def patch_cells(coords: Int[np.ndarray, "n 2"], step: int) -> Cells:
    """The grid cell (column, row) of each patch, from its top-left corner."""
    if step < 1:
        raise BagError(f"The grid step is at least one pixel, got {step}.")
    # Nearest cell rather than floor: contours tiled on their own grids are off by less than a step.
    corners = coords.astype(np.int64)
    moved = corners - corners.min(axis=0, initial=np.iinfo(np.int64).max)
    return (2 * moved + step) // (2 * step)


def connected_regions(cells: Cells, marked: Marked) -> Numbers:
    """The region of each marked patch, numbered from 1 in the order of first patches; 0 = not marked."""
    region = np.zeros(len(cells), dtype=np.int64)
    rows = np.flatnonzero(marked)
    if len(rows):
        label = linked(cells[rows])
        _, first, number = np.unique(label, return_index=True, return_inverse=True)
        order = np.empty(len(first), dtype=np.int64)
        order[np.argsort(first)] = np.arange(len(first))
        region[rows] = order[number] + 1
    return region


def linked(cells: Cells) -> Numbers:
    """A component number for every cell."""
    own = cells - cells.min(axis=0)
    # One empty column on either side keeps the end of a row from touching the start of the next.
    width = int(own[:, 0].max()) + 3
    keys, node = np.unique(own[:, 1] * width + own[:, 0] + 1, return_inverse=True)
    # Half of the eight neighbours: the other half are the same links seen from their other end.
    wanted = keys[:, None] + np.array([1, width - 1, width, width + 1])
    found = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    exists = keys[found] == wanted
    start = np.broadcast_to(np.arange(len(keys))[:, None], wanted.shape)[exists]
    links = coo_array((np.ones(len(start), dtype=np.int8), (start, found[exists])), shape=(len(keys),) * 2)
    _, label = connected_components(links, directed=False)
    return label[node].astype(np.int64)
