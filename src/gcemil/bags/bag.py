"""A bag: the patches of one slide, or of all slides of one case, as arrays.

Features are rows of an encoder; coordinates are the top-left corner of each patch in level-0 pixels. A case with
several slides is one bag: slides sorted by id, each moved to the right of the one before so that no neighbourhood
crosses a slide. A span remembers where a slide's rows lie and how far it was moved, so evidence goes back per slide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int, Shaped

from gcemil.errors import BagError
from gcemil.units import LevelZeroPx

FeatureRows = Float[np.ndarray, "n d"]
CoordRows = Int[np.ndarray, "p 2"]
RowIndex = Int[np.ndarray, "k"]

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
        raise BagError(f"Bag '{self.bag_id}' has no slide '{slide_id}'. It has: {', '.join(self.slide_ids)}.")

    def slide_coords(self, slide_id: str) -> CoordRows | None:
        """Coordinates of one slide as they stand in its own file."""
        if self.coords is None:
            return None
        shift = next(span.shift for span in self.spans if span.slide_id == slide_id)
        return self.coords[self.rows_of(slide_id)] - np.array([shift, 0], dtype=self.coords.dtype)

    def take_rows(self, rows: RowIndex) -> Bag:
        """The bag restricted to sorted rows; a slide without a row left keeps an empty span."""
        # The rows are sorted, so a span keeps what lies between the places of its two ends.
        edges = [int(np.searchsorted(rows, edge)) for span in self.spans for edge in (span.start, span.stop)]
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
    """The bag of one slide."""
    return Bag(slide_id, features, coords, patch_size, (SlideSpan(slide_id, 0, len(features)),))


def case_bag(case_id: str, slides: Iterable[Bag]) -> Bag:
    """One bag of all slides of a case, sorted by slide id, side by side without touching."""
    ordered = sorted(slides, key=lambda bag: bag.bag_id)
    if any(bag.coords is None for bag in ordered) and any(bag.coords is not None for bag in ordered):
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
        case_id, features, np.concatenate(coords) if coords else None, ordered[0].patch_size, tuple(spans)
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
