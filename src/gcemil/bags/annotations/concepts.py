"""Which patches of a slide somebody has named: outlines, masks and points, by concept.

  outlines  <slide>.geojson (QuPath: the class is the concept; read by slides/geojson.py) or <slide>.xml (ASAP: the group is the
            concept; _2, Exclusion and None cut out of all others)
  masks     <concept>/<slide>.png (or .tif), white on black; or <slide>.png with the value of each concept given
  points    GeoJSON points, or a table of slide, x, y, concept: the patch that holds the point

A patch is an example of the concept that covers most of it, if that is at least `min_overlap` of the patch. All positions
are level-0 pixels of the whole file; GeoJSON counts from the image that QuPath shows, and is moved by the slide's bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from shapely.affinity import translate

from gcemil.bags.annotations.shapes import (
    AnnotatedPolygon,
    Corners,
    Overlap,
    Role,
    mask_overlap,
    polygon_overlap,
    read_asap,
    read_mask,
)
from gcemil.bags.arrays import Bounds
from gcemil.bags.foreign.source import plain_id
from gcemil.bags.tables import has_columns, list_rows, read_frame
from gcemil.errors import InputError
from gcemil.slides.geojson import GeoObject, Points, count_ignored, read_objects

ROLES: dict[str, Role] = {"normal": "tumour"}
"""Normal tissue is a concept as any other here."""


@dataclass(frozen=True, eq=False)
class NamedShapes:
    """What one file says of one slide, by concept."""

    polygons: Mapping[str, tuple[AnnotatedPolygon, ...]]
    points: Mapping[str, Points]
    notes: tuple[str, ...] = ()
    """What was left out."""


def covered_share(
    coords: Corners, patch_size: int, shapes: NamedShapes, roles: Mapping[str, Role] | None = None
) -> Overlap:
    """Share of every patch under the shapes, all of it where it holds a point; `roles` says which classes count."""
    chosen: Mapping[str, Role] = (
        dict.fromkeys([*shapes.polygons, *shapes.points], "tumour") if roles is None else roles
    )
    named = [(name, one) for name, own in shapes.polygons.items() for one in own if name in chosen]
    share = polygon_overlap(coords, patch_size, [replace(one, role=chosen[name]) for name, one in named])
    for name, points in shapes.points.items():
        if chosen.get(name) == "tumour":
            rows = patches_at(coords, patch_size, points)
            share[rows[rows >= 0]] = 1.0
    return share


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
    shares = {}
    for name, path in masks.items():
        mask = read_mask(path, downsample=downsample, tumour_values=(values[name],) if values else None)
        shares[name] = mask_overlap(coords, patch_size, mask)
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
    rows = np.full(len(points), -1)
    for index, point in enumerate(points):
        from_corner = point - coords
        inside = np.flatnonzero(((from_corner >= 0) & (from_corner < patch_size)).all(axis=1))
        if len(inside):
            away = np.abs(from_corner[inside] - patch_size / 2).sum(axis=1)
            rows[index] = inside[np.argmin(away)]
    return rows


def read_named_shapes(path: Path, origin: Bounds = (0, 0)) -> NamedShapes:
    """The outlines of an ASAP file, or of a GeoJSON file whose image begins at `origin`."""
    if path.suffix.lower() != ".xml":
        return name_shapes(read_objects(path), origin)
    found, skipped = read_asap(path, roles=ROLES, otherwise="tumour")
    holes = [one for one in found if one.role == "exclusion"]
    groups = dict.fromkeys(one.group for one in found if one.role == "tumour")
    polygons = {name: (*(one for one in found if one.group == name), *holes) for name in groups}
    return NamedShapes(polygons, {}, tuple(skipped))


def slide_of(path: Path) -> str:
    """The slide an annotation file speaks of: its name without its ending, without '_mask' and without the slide's ending."""
    return plain_id(path.stem.removesuffix("_mask"))


def name_shapes(objects: Sequence[GeoObject], origin: Bounds = (0, 0)) -> NamedShapes:
    """What the objects of a GeoJSON file mark, by class; `origin` is where the image that QuPath shows begins."""
    polygons: dict[str, list[AnnotatedPolygon]] = {}
    points: dict[str, list[Points]] = {}
    shift = np.array(origin, dtype=np.float64)
    for position, one in enumerate(objects):
        if not one.class_name:
            continue
        if not one.area.is_empty:
            own = AnnotatedPolygon(
                f"object {position}", one.class_name, "tumour", translate(one.area, *origin)
            )
            polygons.setdefault(one.class_name, []).append(own)
        if len(one.points):
            points.setdefault(one.class_name, []).append(one.points + shift)
    unnamed = sum(not one.class_name for one in objects)
    notes = [f"{unnamed} objects without a classification"] if unnamed else []
    notes += [f"{count} objects of kind '{kind}'" for kind, count in count_ignored(objects).items()]
    return NamedShapes(
        {name: tuple(own) for name, own in polygons.items()},
        {name: np.concatenate(own) for name, own in points.items()},
        tuple(notes),
    )


def read_point_table(path: Path) -> dict[str, NamedShapes]:
    """Slide → its points by concept, from a table of slide, x, y, concept."""
    table = read_frame(path)
    slide = next((name for name in ("slide", "slide_id") if name in table), None)
    if slide is None or not has_columns(table, "x", "y", "concept"):
        raise InputError(
            f"{path} has the columns {', '.join(table)}; a table of examples has slide, x, y and concept."
        )
    found: dict[str, dict[str, list[Sequence[float]]]] = {}
    for number, row in enumerate(list_rows(table), start=2):
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
