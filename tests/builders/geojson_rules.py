"""What QuPath accepts, written down once more and independently of what writes it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

OBJECT_TYPES = {"annotation", "detection", "tile", "cell", "tmaCore", "root"}
INSIDE_PROPERTIES = {
    "objectType",
    "object_type",
    "name",
    "classification",
    "measurements",
    "metadata",
    "isLocked",
}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def violations(text: str) -> list[str]:
    """Everything QuPath would refuse, ignore or take for something else; empty for a good file."""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        return [f"no strict JSON: {error}"]
    if isinstance(value, dict):
        if value.get("type") != "FeatureCollection" or not isinstance(value.get("features"), list):
            return ["neither a FeatureCollection nor an array"]
        features = value["features"]
    elif isinstance(value, list):
        features = value
    else:
        return ["neither a FeatureCollection nor an array"]
    found = [
        f"feature {n}: {problem}"
        for n, feature in enumerate(features)
        for problem in _feature(feature)
    ]
    ids = [feature.get("id") for feature in features if isinstance(feature, dict)]
    return found + (["two features share an id"] if len(set(ids)) < len(ids) else [])


def _feature(feature: Any) -> list[str]:
    if not isinstance(feature, dict) or feature.get("type") != "Feature":
        return ["its type is not Feature"]
    problems = [
        f"{key} stands outside properties" for key in sorted(INSIDE_PROPERTIES & set(feature))
    ]
    if not isinstance(feature.get("id"), str) or not UUID.fullmatch(feature["id"]):
        problems.append("the id is no UUID")
    properties = feature.get("properties")
    if not isinstance(properties, dict):
        return [*problems, "no properties"]
    return [*problems, *_geometry(feature.get("geometry")), *_properties(properties)]


def _geometry(geometry: Any) -> list[str]:
    if not isinstance(geometry, dict) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        return ["the geometry is no polygon"]
    problems = []
    is_one = geometry["type"] == "Polygon"
    polygons = [geometry["coordinates"]] if is_one else geometry["coordinates"]
    for ring in (ring for polygon in polygons for ring in polygon):
        if not all(isinstance(point, list) and len(point) == 2 for point in ring):
            problems.append("a point is not a pair")
            continue
        if not all(type(number) is int for point in ring for number in point):
            problems.append("a coordinate is no whole pixel")
        if len(ring) < 4 or ring[0] != ring[-1]:
            problems.append("a ring is not closed")
        elif _area(ring) == 0:
            problems.append("a ring has no area")
        if max(x for x, _ in ring) <= 0 or max(y for _, y in ring) <= 0:
            problems.append("a ring lies outside the image")
    return problems


def _properties(properties: dict[str, Any]) -> list[str]:
    problems = []
    if properties.get("objectType") not in OBJECT_TYPES:
        problems.append("no objectType that QuPath knows: imported as an annotation")
    if not isinstance(properties.get("isLocked", False), bool):
        problems.append("isLocked is no boolean")
    if "classification" in properties:
        problems += _classification(properties["classification"])
    problems += _measurements(properties.get("measurements", {}))
    metadata = properties.get("metadata", {})
    if not all(isinstance(item, str) for item in metadata.values()):
        problems.append("a metadata value is no string")
    return problems


def _classification(value: Any) -> list[str]:
    if isinstance(value, str):
        return []
    if not isinstance(value, dict) or not ({"name", "names"} & set(value)):
        return ["the classification has no name"]
    color = value.get("color")
    if color is None:
        return ["the classification has no colour: QuPath refuses the file"]
    if not (
        isinstance(color, list)
        and len(color) == 3
        and all(type(channel) is int and 0 <= channel <= 255 for channel in color)
    ):
        return ["the colour is not [r, g, b]"]
    return []


def _measurements(value: Any) -> list[str]:
    pairs = (
        [(entry["name"], entry["value"]) for entry in value]
        if isinstance(value, list)
        else value.items()
    )
    return [
        f"measurement '{name}' is {number!r}"
        for name, number in pairs
        if type(number) not in (int, float) and number not in ("NaN", "inf", "-inf")
    ]


def _area(ring: list[list[int]]) -> float:
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(ring)) / 2


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
