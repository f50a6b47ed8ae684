"""A bag: the patches of one slide, or of all slides of one case, as arrays.

Features are rows of an encoder; coordinates are the top-left corner of each patch in level-0
pixels. A case with several slides is one bag: slides sorted by id, each moved to the right of the
one before so that no neighbourhood crosses a slide. A span remembers where a slide's rows lie and
how far it was moved, so evidence goes back per slide.

A training step takes sorted rows of a bag: single patches, or random 4x4 blocks of the patch grid,
so that neighbours exist in a sample of 512. Rows stay sorted because several hosts read raster
order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from gcemil.errors import BagError
from gcemil.units import LevelZeroPx

FeatureRows = Float[np.ndarray, "n d"]
CoordRows = Int[np.ndarray, "p 2"]
RowIndex = Int[np.ndarray, "k"]
Cells = Int[np.ndarray, "n 2"]
Marked = Bool[np.ndarray, "n"]
Numbers = Int[np.ndarray, "n"]

_BLOCK_SIDE = 4
_SLIDE_GAP_IN_PATCHES = 16
"""Empty patches between two slides of a case: wider than any neighbourhood a host looks at."""


@dataclass(frozen=True)
class SlideSpan:
    """Rows [start, stop) of a bag are of this slide; its x coordinates were moved by `shift`."""

    slide_id: str
    start: int
    stop: int
    shift: int = 0


@dataclass(frozen=True, eq=False)
class Bag:
    """The patches of one slide, or of all slides of one case, as arrays.

    `slide_bag` and `case_bag` make one.

    Args:
        bag_id: Name of the slide or case.
        features: One row per patch, (patches, width).
        coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
        patch_size: Side of a patch in level-0 pixels; None if unknown.
        spans: The rows of each slide.

    Raises:
        BagError: There is no patch, or features and coordinates differ in number.

    Example:
        >>> import gcemil, numpy
        >>> features = numpy.zeros((5, 8), dtype="float32")
        >>> slides = [gcemil.slide_bag(name, features) for name in ("a", "b")]
        >>> bag = gcemil.case_bag("P-1", slides)
        >>> len(bag), bag.rows_of("b"), bag.slide_coords("b")
        (10, slice(5, 10, None), None)
        >>> len(bag.take_rows(numpy.array([0, 7])))
        2
    """

    bag_id: str
    features: FeatureRows
    coords: CoordRows | None
    patch_size: LevelZeroPx | None
    spans: tuple[SlideSpan, ...]

    def __post_init__(self) -> None:
        if len(self.features) == 0:
            raise BagError(
                f"Bag '{self.bag_id}' has no patches. "
                "Leave it out of slides.csv or extract it again."
            )
        if self.coords is not None and len(self.coords) != len(self.features):
            raise BagError(
                f"Bag '{self.bag_id}': {len(self.coords)} coordinates for {len(self.features)} "
                "feature rows. Extract it again."
            )

    def __len__(self) -> int:
        return len(self.features)

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """The slides of the bag, in the order of their rows."""
        return tuple(span.slide_id for span in self.spans)

    def rows_of(self, slide_id: str) -> slice:
        """Find the rows of one slide.

        Args:
            slide_id: A slide of the bag.

        Returns:
            The rows as a slice.

        Raises:
            BagError: The bag has no such slide.
        """
        for span in self.spans:
            if span.slide_id == slide_id:
                return slice(span.start, span.stop)
        raise BagError(
            f"Bag '{self.bag_id}' has no slide '{slide_id}'. It has: {', '.join(self.slide_ids)}."
        )

    def slide_coords(self, slide_id: str) -> CoordRows | None:
        """Read the coordinates of one slide as its own file has them.

        Args:
            slide_id: A slide of the bag.

        Returns:
            Top-left corners in level-0 pixels, (patches of the slide, 2); None if unknown.

        Raises:
            BagError: The bag has no such slide.
        """
        rows = self.rows_of(slide_id)
        if self.coords is None:
            return None
        shift = next(span.shift for span in self.spans if span.slide_id == slide_id)
        return self.coords[rows] - np.array([shift, 0], dtype=self.coords.dtype)

    def take_rows(self, rows: RowIndex) -> Bag:
        """Restrict the bag to some of its patches.

        Args:
            rows: Sorted rows of the bag, (rows,).

        Returns:
            The smaller bag; a slide without a row left keeps an empty span.
        """
        # The rows are sorted, so a span keeps what lies between the places of its two ends.
        edges = [
            int(np.searchsorted(rows, edge))
            for span in self.spans
            for edge in (span.start, span.stop)
        ]
        spans = tuple(
            replace(span, start=start, stop=stop)
            for span, start, stop in zip(self.spans, edges[::2], edges[1::2], strict=True)
        )
        coords = None if self.coords is None else self.coords[rows]
        return replace(self, features=self.features[rows], coords=coords, spans=spans)


def slide_bag(
    slide_id: str,
    features: FeatureRows,
    coords: CoordRows | None = None,
    patch_size: LevelZeroPx | None = None,
) -> Bag:
    """Make the bag of one slide.

    Args:
        slide_id: Name of the slide, which is also that of the bag.
        features: One row per patch, (patches, width).
        coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
        patch_size: Side of a patch in level-0 pixels; None if unknown.

    Returns:
        The bag.

    Raises:
        BagError: There is no patch, or features and coordinates differ in number.

    Example:
        >>> import gcemil, numpy
        >>> len(gcemil.slide_bag("S-17", numpy.zeros((5, 8), dtype="float32")))
        5
    """
    return Bag(slide_id, features, coords, patch_size, (SlideSpan(slide_id, 0, len(features)),))


def case_bag(case_id: str, slides: Iterable[Bag]) -> Bag:
    """Make one bag of all slides of a case, sorted by slide id, side by side without touching.

    Args:
        case_id: Name of the case, which is also that of the bag.
        slides: Bags of one slide each.

    Returns:
        The bag; `spans` lists the rows of each slide.

    Raises:
        BagError: Some slides have coordinates and some have none.

    Example:
        >>> import gcemil, numpy
        >>> features = numpy.zeros((5, 8), dtype="float32")
        >>> slides = [gcemil.slide_bag(name, features) for name in ("b", "a")]
        >>> gcemil.case_bag("P-1", slides).slide_ids
        ('a', 'b')
    """
    ordered = sorted(slides, key=lambda bag: bag.bag_id)
    if len({bag.coords is None for bag in ordered}) > 1:
        raise BagError(
            f"Case '{case_id}': some slides have coordinates and some have none. "
            "Extract them the same way."
        )
    spans, coords, start, right_edge = [], [], 0, 0
    for position, bag in enumerate(ordered):
        shift = 0
        if bag.coords is not None:
            # The first slide stays; each further one begins a gap to the right of the one before.
            if position:
                shift = right_edge - int(bag.coords[:, 0].min())
            moved = bag.coords + np.array([shift, 0], dtype=bag.coords.dtype)
            coords.append(moved)
            right_edge = int(moved[:, 0].max()) + _SLIDE_GAP_IN_PATCHES * (
                bag.patch_size or coordinate_step(bag.coords)
            )
        spans.append(SlideSpan(bag.bag_id, start, start + len(bag), shift))
        start += len(bag)
    features = np.concatenate([bag.features for bag in ordered])
    moved_coords = np.concatenate(coords) if coords else None
    return Bag(case_id, features, moved_coords, ordered[0].patch_size, tuple(spans))


def sample_patches(n_patches: int, limit: int, generator: np.random.Generator) -> RowIndex:
    """At most `limit` patches, each equally likely."""
    if n_patches <= limit:
        return np.arange(n_patches)
    return np.sort(generator.choice(n_patches, size=limit, replace=False))


def sample_blocks(
    coords: CoordRows, step: int, limit: int, generator: np.random.Generator
) -> RowIndex:
    """At most `limit` patches as whole random 4x4 blocks of the grid; the last block is cut."""
    if len(coords) <= limit:
        return np.arange(len(coords))
    block = find_blocks(coords, step)
    rank = generator.permutation(block.max() + 1)[block]
    return np.sort(np.argsort(rank, kind="stable")[:limit])


def find_blocks(coords: CoordRows, step: int) -> Int[np.ndarray, "n"]:
    """A number per patch, equal for patches of one 4x4 block."""
    cells = coords // (step * _BLOCK_SIDE)
    _, block = np.unique(cells, axis=0, return_inverse=True)
    return np.asarray(block).reshape(-1)


def coordinate_step(coords: CoordRows) -> int:
    """The grid when the patch size is unknown; 1 for patches without neighbours."""
    return round(grid_stride(coords) or 1)


def grid_stride(coords: Shaped[np.ndarray, "n 2"]) -> float | None:
    """The most frequent step between neighbours of one row or column; None without neighbours.

    Tools that tile every tissue contour from its own corner leave arbitrary steps between contours,
    so the smallest step says nothing; patches that share a row or column belong to one grid.
    """
    steps = []
    for axis, other in ((0, 1), (1, 0)):
        ordered = coords[np.lexsort((coords[:, axis], coords[:, other]))]
        same_line = np.diff(ordered[:, other]) == 0
        steps.append(np.diff(ordered[:, axis])[same_line])
    distances = np.round(np.concatenate(steps).astype(np.float64), 2)
    values, counts = np.unique(distances[distances > 0], return_counts=True)
    return float(values[counts.argmax()]) if len(values) else None


def patch_cells(coords: Int[np.ndarray, "n 2"], step: int) -> Cells:
    """The grid cell (column, row) of each patch, from its top-left corner."""
    if step < 1:
        raise BagError(f"The grid step is at least one pixel, got {step}.")
    # Nearest cell rather than floor: contours tiled on their own grids are off by less than a step.
    corners = coords.astype(np.int64)
    moved = corners - corners.min(axis=0, initial=np.iinfo(np.int64).max)
    return (2 * moved + step) // (2 * step)


def connected_regions(cells: Cells, marked: Marked) -> Numbers:
    """The region of each marked patch, numbered from 1 in the order of first patches; 0 elsewhere.

    Two patches are connected when their cells touch at a side or at a corner, as CAMELYON16's
    organisers label lesions.
    """
    # Loaded here: most commands need a bag and none of its regions.
    import pandas as pd
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import KDTree

    region = np.zeros(len(cells), dtype=np.int64)
    rows = np.flatnonzero(marked)
    if len(rows):
        pairs = KDTree(cells[rows]).query_pairs(1, p=np.inf, output_type="ndarray")
        links = coo_array(
            (np.ones(len(pairs), dtype=np.int8), tuple(pairs.T)), shape=(len(rows),) * 2
        )
        _, label = connected_components(links, directed=False)
        region[rows] = pd.factorize(label)[0] + 1
    return region
