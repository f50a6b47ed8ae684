"""Which patches of a slide somebody has named: outlines, masks and points, by concept.

  outlines  <slide>.geojson (QuPath: the class is the concept; read by slides/geojson.py) or <slide>.xml (ASAP: the group is the
            concept; _2, Exclusion and None cut out of all others)
  masks     <concept>/<slide>.png (or .tif), white on black; or <slide>.png with the value of each concept given
  points    GeoJSON points, or a table of slide, x, y, concept: the patch that holds the point

A patch is an example of the concept that covers most of it, if that is at least `min_overlap` of
the patch. All positions are level-0 pixels of the whole file; GeoJSON counts from the image that
QuPath shows, and is moved by the slide's bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import shapely
from jaxtyping import Int
from numpy.typing import NDArray
from shapely.affinity import translate

from gcemil.bags.annotations.shapes import (
    Annotation,
    Corners,
    Overlap,
    area_share,
    mask_share,
    read_asap,
    read_mask,
)
from gcemil.bags.foreign.source import plain_id
from gcemil.bags.store import Bounds
from gcemil.bags.tables import has_columns, read_frame
from gcemil.errors import InputError
from gcemil.slides.geojson import GeoObject, Points, count_ignored, merge_areas, read_objects


def covered_share(coords: Corners, patch_size: int, annotation: Annotation) -> Overlap:
    """Share of every patch under the annotation, all of it where it holds a point."""
    share = area_share(coords, patch_size, merge_areas(annotation.areas.values()))
    for points in annotation.points.values():
        rows = patches_at(coords, patch_size, points)
        share[rows[rows >= 0]] = 1.0
    return share


def named_patches(
    coords: Corners, patch_size: int, annotation: Annotation, min_overlap: float
) -> dict[int, str]:
    """Row of the patch → its concept, from outlines and points."""
    shares = {name: area_share(coords, patch_size, area) for name, area in annotation.areas.items()}
    concepts = best_concept(shares, min_overlap)
    for name, points in annotation.points.items():
        for row in patches_at(coords, patch_size, points):
            if row >= 0:
                concepts.setdefault(int(row), name)
    return concepts


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
        mask = read_mask(
            path, downsample=downsample, tumour_values=(values[name],) if values else None
        )
        shares[name] = mask_share(coords, patch_size, mask)
    return best_concept(shares, min_overlap)


def best_concept(
    shares: Mapping[str, NDArray[np.floating[Any]]], min_overlap: float
) -> dict[int, str]:
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


def read_annotation(path: Path, origin: Bounds = (0, 0)) -> Annotation:
    """The concepts of an ASAP file, or of a GeoJSON file whose image begins at `origin`."""
    if path.suffix.lower() == ".xml":
        # Normal tissue is a concept as any other here.
        return read_asap(path, roles={"normal": "tumour"}, otherwise="tumour")
    return name_shapes(read_objects(path), origin)


def slide_of(path: Path) -> str:
    """The slide an annotation file speaks of: its name without its ending, without '_mask' and without the slide's ending."""
    return plain_id(path.stem.removesuffix("_mask"))


def name_shapes(objects: Sequence[GeoObject], origin: Bounds = (0, 0)) -> Annotation:
    """What the objects of a GeoJSON file mark, by class; `origin` is where the image that QuPath shows begins."""
    areas: dict[str, list[shapely.Geometry]] = {}
    points: dict[str, list[Points]] = {}
    for item in objects:
        if item.class_name and not item.area.is_empty:
            areas.setdefault(item.class_name, []).append(translate(item.area, *origin))
        if item.class_name and len(item.points):
            points.setdefault(item.class_name, []).append(
                item.points + np.array(origin, dtype=np.float64)
            )
    unnamed = sum(not item.class_name for item in objects)
    notes = [f"{unnamed} objects without a classification"] if unnamed else []
    notes += [f"{count} objects of kind '{kind}'" for kind, count in count_ignored(objects).items()]
    return Annotation(
        {name: merge_areas(parts) for name, parts in areas.items()},
        {name: np.concatenate(parts) for name, parts in points.items()},
        tuple(notes),
    )


def read_point_table(path: Path) -> dict[str, Annotation]:
    """Slide → its points by concept, from a table of slide, x, y, concept."""
    table = read_frame(path)
    slide = next((name for name in ("slide", "slide_id") if name in table), None)
    if slide is None or not has_columns(table, "x", "y", "concept"):
        raise InputError(
            f"{path} has the columns {', '.join(table)}; a table of examples has slide, x, y and "
            "concept."
        )
    positions = table[["x", "y"]].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~np.isfinite(positions).all(axis=1) | (table[slide] == "") | (table["concept"] == "")
    if bad.any():
        number = int(np.argmax(bad))
        values = table.iloc[number][[slide, "x", "y", "concept"]].to_dict()
        raise InputError(
            f"{path}, line {number + 2}: {values}; every example needs a slide, two numbers and a "
            "concept."
        )
    points: dict[str, dict[str, Points]] = {}
    for (name, concept), rows in table.groupby([slide, "concept"], sort=False).indices.items():
        points.setdefault(name, {})[concept] = positions[rows]
    return {name: Annotation({}, concepts) for name, concepts in points.items()}
