"""GeoJSON as QuPath exports it: the one reader for tissue masks, truth, examples and reviews.

A file is a FeatureCollection, a bare list of features, one feature, or a geometry alone. Of every object are kept

  class_name   properties.classification, whose name may stand alone or as {"name": ...} or {"names": [...]}
  polygons     Polygon and MultiPolygon: rings, the outline first and then its holes
  points       Point and MultiPoint
  ignored      the kinds of geometry that mark neither an area nor a place: lines, or nothing at all

The type of an object (annotation, detection, tile, cell) makes no difference. Pixels are of full resolution and count from
the corner of the image as QuPath shows it, which is the scanned part of the slide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gcemil.errors import InputError
from gcemil.files import read_json

Ring = Float[np.ndarray, "_ 2"]
Points = Float[np.ndarray, "p 2"]
FARTHEST = 1e9
"""Pixels; beyond any slide."""
_REMEDY = "Export it from QuPath again."
_AREAS = ("Polygon", "MultiPolygon")
_PLACES = ("Point", "MultiPoint")


@dataclass(frozen=True, eq=False)
class GeoObject:
    """One object of a file and what it marks."""

    class_name: str
    """Empty for an object without a class."""
    polygons: tuple[tuple[Ring, ...], ...]
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
            f"{where} is no GeoJSON: it holds neither a FeatureCollection nor a list of features. {_REMEDY}"
        )
    return [_read_object(one, f"{where}: object {position}") for position, one in enumerate(content)]


def count_ignored(objects: Iterable[GeoObject]) -> dict[str, int]:
    """How many geometries mark nothing, by kind."""
    return dict(sorted(Counter(kind for one in objects for kind in one.ignored).items()))


def _read_object(given: Any, where: str) -> GeoObject:
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise InputError(f"{where} is no GeoJSON feature. {_REMEDY}")
    geometry = given.get("geometry") if given["type"] == "Feature" else given
    polygons: list[tuple[Ring, ...]] = []
    points: list[Points] = []
    ignored: list[str] = []
    for kind, coordinates in _walk_geometry(geometry, where):
        if kind in _AREAS:
            areas = [coordinates] if kind == "Polygon" else coordinates
            polygons += [_read_rings(rings, where) for rings in _as_list(areas, where)]
        elif kind in _PLACES:
            points.append(_read_positions([coordinates] if kind == "Point" else coordinates, where, 1))
        else:
            ignored.append(kind)
    places = np.concatenate(points) if points else np.zeros((0, 2))
    return GeoObject(_read_class(given, where), tuple(polygons), places, tuple(ignored))


def _walk_geometry(geometry: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Kind and coordinates of every simple geometry inside this one."""
    waiting = [geometry]
    while waiting:
        one = waiting.pop()
        if one is None:
            yield "no geometry", None
            continue
        if not isinstance(one, dict) or not isinstance(one.get("type"), str):
            raise InputError(f"{where} has a geometry without a type. {_REMEDY}")
        if one["type"] == "GeometryCollection":
            waiting += reversed(_as_list(one.get("geometries"), where))
        else:
            yield one["type"], one.get("coordinates")


def _read_class(given: dict[str, Any], where: str) -> str:
    properties = given.get("properties") or {}
    named = properties.get("classification") if isinstance(properties, dict) else None
    if isinstance(named, dict):
        parts = named.get("names")
        named = named.get("name") or (": ".join(map(str, parts)) if isinstance(parts, list) else "")
    if named is not None and not isinstance(named, str):
        raise InputError(f"{where} has a classification that is no name. {_REMEDY}")
    return (named or "").strip()


def _read_rings(rings: Any, where: str) -> tuple[Ring, ...]:
    """The outline first, then its holes."""
    found = _as_list(rings, where)
    if not found:
        raise InputError(f"{where} is a polygon without an outline. {_REMEDY}")
    return tuple(_read_positions(ring, where, 3) for ring in found)


def _as_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} has coordinates that are no numbers. {_REMEDY}")
    return value


def _read_positions(rows: Any, where: str, fewest: int) -> Points:
    try:
        found = np.array([[float(value) for value in row[:2]] for row in rows], dtype=np.float64)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise InputError(f"{where} has coordinates that are no numbers. {_REMEDY}") from error
    if found.ndim != 2 or found.shape[1:] != (2,) or len(found) < fewest or not np.isfinite(found).all():
        raise InputError(
            f"{where} has coordinates of shape {found.shape}, not at least {fewest} finite pairs. {_REMEDY}"
        )
    if (np.abs(found) >= FARTHEST).any():
        raise InputError(f"{where} reaches {np.abs(found).max():g}, farther than any slide. {_REMEDY}")
    return found
