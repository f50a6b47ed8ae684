"""GeoJSON as QuPath exports it: the one reader for tissue masks, truth, examples and reviews.

A file is a FeatureCollection, a bare list of features, one feature, or a geometry alone. Kept of
each object:

  class_name   properties.classification: a name, {"name": ...} or {"names": [...]}
  area         Polygon and MultiPolygon as one valid area, even-odd where an outline crosses itself
  points       Point and MultiPoint
  ignored      the kinds of geometry that mark neither an area nor a place: lines, or nothing at all

The type of an object (annotation, detection, tile, cell) makes no difference. Pixels are of full
resolution and count from the corner of the image as QuPath shows it, which is the scanned part of
the slide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from jaxtyping import Bool, Float, Int
from shapely.geometry import shape

from gcemil.errors import InputError, error_text
from gcemil.files import read_json

Points = Float[np.ndarray, "p 2"]
Ring = Int[np.ndarray, "_ 2"]
Piece = list[Ring]
"""Rings of (x, y) corners, the outer one first, without their first corner repeated."""
FARTHEST = 1e9
"""Pixels; beyond any slide."""
_REMEDY = "Export it from QuPath again."


@dataclass(frozen=True, eq=False)
class GeoObject:
    """One object of a file and what it marks."""

    class_name: str
    """Empty for an object without a class."""
    area: shapely.Geometry
    """Empty where it marks none."""
    points: Points
    ignored: tuple[str, ...]


def read_objects(path: Path) -> list[GeoObject]:
    """Every object of a file."""
    return parse_objects(read_json(path), path)


def parse_objects(content: Any, where: object) -> list[GeoObject]:
    """Every object of GeoJSON that was read already; `where` names it in messages."""
    if isinstance(content, dict):
        content = content.get("features", [content])
    if not isinstance(content, list):
        raise InputError(
            f"{where} is not GeoJSON: it holds neither a FeatureCollection nor a list of features. "
            f"{_REMEDY}"
        )
    return [
        _read_object(one, f"{where}: object {position}") for position, one in enumerate(content)
    ]


def count_ignored(objects: Iterable[GeoObject]) -> dict[str, int]:
    """How many geometries mark nothing, by kind."""
    return dict(sorted(Counter(kind for one in objects for kind in one.ignored).items()))


def _read_object(given: Any, where: str) -> GeoObject:
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise InputError(f"{where} is not a GeoJSON feature. {_REMEDY}")
    parts = _read_parts(given.get("geometry") if given["type"] == "Feature" else given, where)
    polygons = [part for part in parts if part.geom_type == "Polygon"]
    places = [part for part in parts if part.geom_type == "Point"]
    ignored = [part.geom_type for part in parts if part.geom_type not in {"Polygon", "Point"}]
    return GeoObject(
        _read_class(given, where),
        merge_areas(polygons),
        shapely.get_coordinates(places),
        tuple(ignored) if parts else ("no geometry",),
    )


def _read_parts(geometry: Any, where: str) -> list[shapely.Geometry]:
    """The simple geometries of this one, with coordinates that a slide can have."""
    if geometry is None:
        return []
    if not isinstance(geometry, dict) or not isinstance(geometry.get("type"), str):
        raise InputError(f"{where} has a geometry without a type. {_REMEDY}")
    try:
        parsed = shapely.force_2d(shape(geometry))
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        shapely.errors.ShapelyError,
    ) as error:
        raise InputError(
            f"{where} has a geometry that cannot be read ({error_text(error)}). {_REMEDY}"
        ) from error
    values = shapely.get_coordinates(parsed)
    if parsed.is_empty or not np.isfinite(values).all():
        raise InputError(
            f"{where} has a geometry without points, or one that is not finite. {_REMEDY}"
        )
    if (np.abs(values) >= FARTHEST).any():
        raise InputError(
            f"{where} reaches {np.abs(values).max():g}, farther than any slide. {_REMEDY}"
        )
    return _split(parsed)


def merge_areas(areas: Iterable[shapely.Geometry]) -> shapely.Geometry:
    """The union of polygons; the inside of one that is not valid is even-odd."""
    return shapely.disjoint_subset_union_all(
        [area if area.is_valid else _make_valid(area) for area in areas]
    )


def _make_valid(polygon: shapely.Polygon) -> shapely.Geometry:
    """The even-odd inside of the rings of a polygon."""
    rings = [
        shapely.make_valid(shapely.Polygon(ring)) for ring in (polygon.exterior, *polygon.interiors)
    ]
    areas = [shapely.union_all([part for part in _split(ring) if part.area]) for ring in rings]
    return reduce(shapely.symmetric_difference, areas)


def _split(geometry: shapely.Geometry) -> list[shapely.Geometry]:
    """The simple geometries inside this one, however deep."""
    parts = list(shapely.get_parts(geometry))
    if len(parts) == 1 and parts[0].geom_type == geometry.geom_type:
        return parts
    return [simple for part in parts for simple in _split(part)]


def _read_class(given: dict[str, Any], where: str) -> str:
    properties = given.get("properties") or {}
    named = properties.get("classification") if isinstance(properties, dict) else None
    if isinstance(named, dict):
        parts = named.get("names")
        named = named.get("name") or (": ".join(map(str, parts)) if isinstance(parts, list) else "")
    if named is not None and not isinstance(named, str):
        raise InputError(f"{where} has a classification that is not a name. {_REMEDY}")
    return (named or "").strip()


# Outlines


def trace_outlines(mask: Bool[np.ndarray, "h w"]) -> list[Piece]:
    """Every piece of the mask, in raster order of its first pixel, exact and with holes.

    Outer rings run clockwise as seen on the screen and holes the other way round. Pixels that touch
    at a corner only are separate pieces.
    """
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
