"""Tissue masks of the user: `<slide id>.png`, or `<slide id>.geojson` from QuPath.

Both lie in the frame in which viewers show the slide: its origin is the corner of the scanned part.
A picture may have any size; what is not black is tissue. GeoJSON holds polygons in level-0 pixels,
of which holes are cut out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import shapely
from jaxtyping import Bool, Float

from gcemil.errors import InputError
from gcemil.files import read_picture
from gcemil.slides.geojson import merge_areas, read_objects, trace_outlines
from gcemil.slides.reader import Bounds, SlideReader, overview_size
from gcemil.slides.tissue import TissueMask

_MASK_MPP = 8.0
SUFFIXES = (".png", ".geojson", ".json")
_SHAPE_TOLERANCE = 0.02
_TISSUE_COLOR = [0, 170, 90]

Mask = Bool[np.ndarray, "h w"]
Corners = Float[np.ndarray, "_ 2"]


def find_mask_file(folder: Path, slide_id: str) -> Path:
    """The mask of a slide in a folder of masks."""
    for suffix in SUFFIXES:
        if (path := folder / f"{slide_id}{suffix}").is_file():
            return path
    raise InputError(
        f"{folder} holds no mask of slide '{slide_id}' "
        f"({', '.join(f'{slide_id}{suffix}' for suffix in SUFFIXES)}). "
        "Add one, or leave the slide out."
    )


def read_mask(path: Path, slide: SlideReader, *, mpp: float = _MASK_MPP) -> TissueMask:
    """The tissue that a picture or the polygons of a GeoJSON file mark, whatever their class."""
    if path.suffix.lower() == ".png":
        return TissueMask(_read_picture_mask(path, slide.bounds), slide.bounds)
    area = merge_areas(one.area for one in read_objects(path))
    if area.is_empty:
        raise InputError(
            f"{path} holds no polygon. Mark the tissue as an annotation in QuPath and export it "
            "again."
        )
    parts = shapely.get_parts(area)
    rings = [
        shapely.get_coordinates(ring) for part in parts for ring in (part.exterior, *part.interiors)
    ]
    return TissueMask(
        rasterise_rings(rings, slide.bounds, downsample=mpp / slide.mpp), slide.bounds
    )


def rasterise_rings(rings: Iterable[Corners], bounds: Bounds, *, downsample: float) -> Mask:
    """Rings in pixels of the scanned part as a mask whose pixels span `downsample` of them.

    A pixel is inside if its centre is, by the even-odd rule, so holes cut themselves out: every
    edge marks the first centre to its right in each row it crosses, and a pixel is inside after an
    odd number of marks.
    """
    width, height = overview_size(bounds, downsample)
    scale = np.array([width / bounds.width, height / bounds.height])
    scaled = [np.asarray(ring, dtype=np.float64) * scale for ring in rings]
    begin, end = (
        np.concatenate(scaled),
        np.concatenate([np.roll(ring, -1, axis=0) for ring in scaled]),
    )
    # An edge crosses the rows whose centre lies in [upper, lower): a shared vertex counts once.
    upper, lower = np.minimum(begin[:, 1], end[:, 1]), np.maximum(begin[:, 1], end[:, 1])
    first = np.clip(np.ceil(upper - 0.5), 0, height).astype(np.int64)
    counts = np.clip(np.ceil(lower - 0.5), 0, height).astype(np.int64) - first
    edge = np.repeat(np.arange(len(begin)), counts)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts) + first[edge]
    x, y = begin[edge].T
    to_x, to_y = end[edge].T
    crossing = x + (row + 0.5 - y) * (to_x - x) / (to_y - y)
    column = np.clip(np.ceil(crossing - 0.5), 0, width).astype(np.int64)
    marks = np.bincount(row * (width + 1) + column, minlength=height * (width + 1))
    return np.cumsum(marks.reshape(height, width + 1), axis=1)[:, :width] % 2 == 1


def tissue_geojson(tissue: TissueMask, name: str) -> dict[str, Any]:
    """The outlines of a mask as QuPath annotations, to be corrected there and used as a mask."""
    scale = np.array(tissue.scale)
    features = []
    for number, piece in enumerate(trace_outlines(tissue.kept)):
        rings = [(ring * scale).round(2).tolist() for ring in piece]
        features.append(
            {
                "type": "Feature",
                "id": str(uuid5(NAMESPACE_URL, f"{name}/tissue/{number}")),
                "geometry": {
                    "type": "Polygon",
                    "coordinates": [[*ring, ring[0]] for ring in rings],
                },
                "properties": {
                    "objectType": "annotation",
                    "name": f"tissue {number}",
                    "tissue_id": number,
                    "classification": {"name": "Tissue", "color": _TISSUE_COLOR},
                },
            }
        )
    return {"type": "FeatureCollection", "features": features}


def _read_picture_mask(path: Path, bounds: Bounds) -> Mask:
    kept: Mask = read_picture(path, "L") > 0
    height, width = kept.shape
    # The tolerance allows for a side that was rounded to whole pixels when the picture was made
    # small.
    wanted, given = bounds.width / bounds.height, width / height
    if abs(given / wanted - 1) > _SHAPE_TOLERANCE + 1 / min(width, height):
        raise InputError(
            f"The mask {path} is {width} x {height}, of another shape than the slide's "
            f"{bounds.width} x {bounds.height}. "
            "It must show the whole slide, in any size."
        )
    return kept
