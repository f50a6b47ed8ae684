"""Which patches of a slide somebody has named: outlines, masks and points, by concept.

  outlines  <slide>.geojson (QuPath: the classification is the concept, holes are holes) or <slide>.xml (ASAP: the group is the
            concept; _2, Exclusion and None cut out of all others)
  masks     <concept>/<slide>.png (or .tif), white on black; or <slide>.png with the value of each concept given
  points    GeoJSON points, or a table of slide, x, y, concept: the patch that holds the point

A patch is an example of the concept that covers most of it, if that is at least `min_overlap` of the patch. All positions
are level-0 pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from gcemil.bags.annotations.shapes import (
    AnnotatedPolygon,
    Role,
    mask_overlap,
    polygon_overlap,
    read_asap,
    read_mask,
)
from gcemil.bags.tables import read_raw_table
from gcemil.errors import InputError
from gcemil.files import read_json

Corners = Int[np.ndarray, "n 2"]
Points = Float[np.ndarray, "p 2"]
ROLES: dict[str, Role] = {"normal": "tumour"}
"""Normal tissue is a concept as any other here."""
NO_CONCEPT = -1


@dataclass(frozen=True, eq=False)
class NamedShapes:
    """What one file says of one slide, by concept."""

    polygons: Mapping[str, tuple[AnnotatedPolygon, ...]]
    points: Mapping[str, Points]
    notes: tuple[str, ...] = ()


def named_patches(
    coords: Corners, patch_size: int, shapes: NamedShapes, min_overlap: float
) -> dict[int, str]:
    """Row of the patch → its concept, from outlines and points."""
    shares = {name: polygon_overlap(coords, patch_size, own) for name, own in shapes.polygons.items()}
    found = best_concept(shares, min_overlap)
    for name, points in shapes.points.items():
        for row in patches_at(coords, patch_size, points):
            if row >= 0:
                found.setdefault(int(row), name)
    return found


def masked_patches(
    coords: Corners,
    patch_size: int,
    masks: Mapping[str, Path],
    *,
    downsample: float | None,
    values: Mapping[str, int],
    min_overlap: float,
) -> dict[int, str]:
    """Row of the patch → its concept, from one mask per concept or one mask with values."""
    shares = {
        name: mask_overlap(
            coords,
            patch_size,
            read_mask(path, downsample=downsample, tumour_values=(values[name],) if values else None),
        )
        for name, path in masks.items()
    }
    return best_concept(shares, min_overlap)


def best_concept(shares: Mapping[str, NDArray[np.floating[Any]]], min_overlap: float) -> dict[int, str]:
    """The concept of largest share for every patch that has one; the first of equals."""
    if not shares:
        return {}
    names, table = list(shares), np.stack(list(shares.values()), axis=1)
    best = table.argmax(axis=1)
    rows = np.flatnonzero(table.max(axis=1) >= min_overlap)
    return {int(row): names[best[row]] for row in rows}


def patches_at(coords: Corners, patch_size: int, points: Points) -> Int[np.ndarray, "p"]:
    """The patch that holds each point, of several the one whose centre is nearest; -1 where there is none."""
    rows = np.full(len(points), NO_CONCEPT)
    for index, point in enumerate(points):
        from_corner = point - coords
        inside = np.flatnonzero(((from_corner >= 0) & (from_corner < patch_size)).all(axis=1))
        if len(inside):
            away = np.abs(from_corner[inside] - patch_size / 2).sum(axis=1)
            rows[index] = inside[np.argmin(away)]
    return rows


def read_named_shapes(path: Path) -> NamedShapes:
    """The outlines of a GeoJSON or ASAP file."""
    if path.suffix.lower() == ".xml":
        return _read_asap_groups(path)
    return _read_geojson(path)


def _read_asap_groups(path: Path) -> NamedShapes:
    found = read_asap(path, roles=ROLES, otherwise="tumour")
    holes = tuple(one for one in found.polygons if one.role == "exclusion")
    groups = dict.fromkeys(one.group for one in found.polygons if one.role == "tumour")
    polygons = {
        group: (*(one for one in found.polygons if one.group == group and one.role == "tumour"), *holes)
        for group in groups
    }
    return NamedShapes(polygons, {}, found.skipped)


def _read_geojson(path: Path) -> NamedShapes:
    content = read_json(path)
    features = content.get("features") if isinstance(content, dict) and "features" in content else content
    if isinstance(features, dict):
        features = [features]
    if not isinstance(features, list):
        raise InputError(
            f"{path} is no GeoJSON: it holds neither a FeatureCollection nor a list of features."
        )
    polygons: dict[str, list[AnnotatedPolygon]] = {}
    points: dict[str, list[Points]] = {}
    unnamed = 0
    for position, feature in enumerate(features):
        concept, kind, coordinates = _feature_parts(feature, path, position)
        if not concept:
            unnamed += 1
        elif kind in ("Point", "MultiPoint"):
            rows = [coordinates] if kind == "Point" else coordinates
            points.setdefault(concept, []).append(_positions(rows, path, position, 1))
        elif kind in ("Polygon", "MultiPolygon"):
            for rings in [coordinates] if kind == "Polygon" else coordinates:
                polygons.setdefault(concept, []).extend(_rings(rings, concept, path, position))
    notes = [f"{unnamed} objects without a classification"] if unnamed else []
    return NamedShapes(
        {name: tuple(own) for name, own in polygons.items()},
        {name: np.concatenate(own) for name, own in points.items()},
        tuple(notes),
    )


def _feature_parts(feature: Any, path: Path, position: int) -> tuple[str, str, Any]:
    """Classification, kind of geometry and coordinates of one object."""
    try:
        properties = feature.get("properties") or {}
        named = properties.get("classification") or ""
        if isinstance(named, dict):
            named = named.get("name") or ": ".join(named.get("names") or ())
        geometry = feature.get("geometry") or {}
        return str(named).strip(), str(geometry.get("type")), geometry.get("coordinates")
    except (AttributeError, TypeError) as error:
        raise InputError(f"{path}: object {position} is no GeoJSON feature. Export it again.") from error


def _rings(rings: Any, concept: str, path: Path, position: int) -> Iterable[AnnotatedPolygon]:
    """The outline first, then its holes."""
    if not isinstance(rings, list) or not rings:
        raise InputError(f"{path}: object {position} is a polygon without an outline. Export it again.")
    for index, ring in enumerate(rings):
        role: Role = "exclusion" if index else "tumour"
        vertices = _positions(ring, path, position, 3)
        yield AnnotatedPolygon(f"object {position}", concept, role, vertices)


def _positions(rows: Any, path: Path, position: int, fewest: int) -> Points:
    try:
        found = np.array([[float(value) for value in row[:2]] for row in rows], dtype=np.float64)
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: object {position} has coordinates that are no numbers. Export it again."
        ) from error
    if found.ndim != 2 or found.shape[1:] != (2,) or len(found) < fewest or not np.isfinite(found).all():
        raise InputError(
            f"{path}: object {position} has coordinates of shape {found.shape}, not at least {fewest} finite pairs. Export it again."
        )
    return found


def read_point_table(path: Path) -> dict[str, NamedShapes]:
    """Slide → its points by concept, from a table of slide, x, y, concept."""
    table = read_raw_table(path)
    slide = next((name for name in ("slide", "slide_id") if table.has(name)), None)
    if slide is None or not table.has("x", "y", "concept"):
        raise InputError(
            f"{path} has the columns {', '.join(table.columns)}; a table of examples has slide, x, y and concept."
        )
    found: dict[str, dict[str, list[Sequence[float]]]] = {}
    for number, row in enumerate(table.rows, start=2):
        try:
            point = (float(row["x"]), float(row["y"]))
        except ValueError:
            point = (np.nan, np.nan)
        if not np.isfinite(point).all() or not row[slide] or not row["concept"].strip():
            raise InputError(
                f"{path}, line {number}: slide '{row[slide]}', x '{row['x']}', y '{row['y']}', concept '{row['concept']}'; every "
                "example needs a slide, two numbers and a concept."
            )
        found.setdefault(row[slide], {}).setdefault(row["concept"].strip(), []).append(point)
    return {
        name: NamedShapes({}, {concept: np.array(own) for concept, own in concepts.items()})
        for name, concepts in found.items()
    }
