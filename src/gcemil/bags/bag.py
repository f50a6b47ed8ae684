"""A bag: the patches of one slide, or of all slides of one case, as arrays.

Features are rows of an encoder; coordinates are the top-left corner of each patch in level-0 pixels. A case with
several slides is one bag: slides sorted by id, each moved to the right of the one before so that no neighbourhood
crosses a slide. A span remembers where a slide's rows lie and how far it was moved, so evidence goes back per slide.
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

_SLIDE_GAP_IN_PATCHES = 16
"""Empty patches between two slides of a case: wider than any neighbourhood a host looks at."""


@dataclass(frozen=True)
class SlideSpan:
    """Rows [start, stop) of a bag come from this slide, whose x coordinates were moved by `shift`."""

    slide_id: str
    start: int
    stop: int
    shift: int = 0


@dataclass(frozen=True, eq=False)
class Bag:
    """Features and coordinates that fit together; anything else cannot be built."""

    bag_id: str
    features: FeatureRows
    coords: CoordRows | None
    patch_size: LevelZeroPx | None
    spans: tuple[SlideSpan, ...]

    def __post_init__(self) -> None:
        if len(self.features) == 0:
            raise BagError(
                f"Bag '{self.bag_id}' has no patches. Leave it out of slides.csv or extract it again."
            )
        if self.coords is not None and len(self.coords) != len(self.features):
            raise BagError(
                f"Bag '{self.bag_id}': {len(self.coords)} coordinates for {len(self.features)} feature rows. Extract it again."
            )
        if self.spans[-1].stop != len(self.features):
            raise BagError(
                f"Bag '{self.bag_id}': its slides end at row {self.spans[-1].stop} of {len(self.features)}."
            )

    def __len__(self) -> int:
        return len(self.features)

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """The slides of the bag, in the order of their rows."""
        return tuple(span.slide_id for span in self.spans)

    def rows_of(self, slide_id: str) -> slice:
        """The rows of one slide of the bag."""
        for span in self.spans:
            if span.slide_id == slide_id:
                return slice(span.start, span.stop)
        raise BagError(
            f"Bag '{self.bag_id}' has no slide '{slide_id}'. It has: {', '.join(self.slide_ids)}."
        )

    def slide_coords(self, slide_id: str) -> CoordRows | None:
        """Coordinates of one slide as they stand in its own file."""
        if self.coords is None:
            return None
        shift = next(span.shift for span in self.spans if span.slide_id == slide_id)
        return self.coords[self.rows_of(slide_id)] - np.array([shift, 0], dtype=self.coords.dtype)

    def take_rows(self, rows: RowIndex) -> Bag:
        """The bag restricted to sorted rows; a slide without a row left keeps an empty span."""
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
        The bag; `spans` tells which rows come from which slide.

    Raises:
        BagError: Some slides have coordinates and some have none.

    Example:
        >>> import gcemil, numpy
        >>> slides = [gcemil.slide_bag(name, numpy.zeros((5, 8), dtype="float32")) for name in ("b", "a")]
        >>> gcemil.case_bag("P-1", slides).slide_ids
        ('a', 'b')
    """
    ordered = sorted(slides, key=lambda bag: bag.bag_id)
    if any(bag.coords is None for bag in ordered) and any(
        bag.coords is not None for bag in ordered
    ):
        raise BagError(
            f"Case '{case_id}': some slides have coordinates and some have none. Extract them the same way."
        )
    spans, coords, start, right_edge = [], [], 0, 0
    for position, bag in enumerate(ordered):
        shift = 0
        if bag.coords is not None:
            # The first slide stays where it is; each further one begins a gap to the right of the one before.
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
    return Bag(
        case_id,
        features,
        np.concatenate(coords) if coords else None,
        ordered[0].patch_size,
        tuple(spans),
    )


def coordinate_step(coords: CoordRows) -> int:
    """The grid when the patch size is unknown; 1 for patches without neighbours."""
    return round(grid_stride(coords) or 1)


def grid_stride(coords: Shaped[np.ndarray, "n 2"]) -> float | None:
    """The most frequent step between neighbours of one row or column; None without neighbours.

    Tools that tile every tissue contour from its own corner leave arbitrary steps between contours, so the smallest
    step of a slide says nothing; patches that share a row or column exactly belong to one grid.
    """
    steps = []
    for axis, other in ((0, 1), (1, 0)):
        ordered = coords[np.lexsort((coords[:, axis], coords[:, other]))]
        same_line = np.diff(ordered[:, other]) == 0
        steps.append(np.diff(ordered[:, axis])[same_line])
    found = np.round(np.concatenate(steps).astype(np.float64), 2)
    values, counts = np.unique(found[found > 0], return_counts=True)
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
    """The region of each marked patch, numbered from 1 in the order of first patches; 0 = not marked.

    Two patches are connected when their cells touch at a side or at a corner, as CAMELYON16's organisers label lesions.
    Only marked cells are stored: memory is linear in the patches, not in the slide.
    """
    region = np.zeros(len(cells), dtype=np.int64)
    rows = np.flatnonzero(marked)
    if len(rows):
        label = _label_components(cells[rows])
        _, first, number = np.unique(label, return_index=True, return_inverse=True)
        order = np.empty(len(first), dtype=np.int64)
        order[np.argsort(first)] = np.arange(len(first))
        region[rows] = order[number] + 1
    return region


def _label_components(cells: Cells) -> Numbers:
    """A component number for every cell."""
    # Loaded here: most commands need a bag and none of its regions.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    relative = cells - cells.min(axis=0)
    # One empty column on either side keeps the end of a row from touching the start of the next.
    width = int(relative[:, 0].max()) + 3
    keys, node = np.unique(relative[:, 1] * width + relative[:, 0] + 1, return_inverse=True)
    # Half of the eight neighbours: the other half are the same links seen from their other end.
    wanted = keys[:, None] + np.array([1, width - 1, width, width + 1])
    found = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    exists = keys[found] == wanted
    start = np.broadcast_to(np.arange(len(keys))[:, None], wanted.shape)[exists]
    links = coo_array(
        (np.ones(len(start), dtype=np.int8), (start, found[exists])), shape=(len(keys),) * 2
    )
    _, label = connected_components(links, directed=False)
    return label[node].astype(np.int64)
