"""Annotations of other tools, and the patches they mark: ASAP, QuPath, masks and points.

  outlines  <slide>.xml (ASAP) or <slide>.geojson (QuPath, read by slides/geojson.py)
  masks     PNG or TIFF: white on black, or labels of which some are named
  points    GeoJSON points, or a table of slide, x, y, concept: the patch that holds the point

In ASAP the group of a polygon is its meaning: in CAMELYON16 `_0`, `_1` and `Tumor` are tumour,
`_2`, `Exclusion` and `None` are not (holes); in CAMELYON17 `metastases` and `normal`. A group of
another name has the meaning of the group it is part of. Vertices are in the order of `Order`.
Splines count as their control polygon.

  overlap_i = area of patch i inside the annotation / area of patch i

The overlap is exact. A patch edge inside a mask pixel takes its share of that pixel. The inside of
an outline that crosses itself is even-odd; exclusions are cut out of all tumour, so that a hole
stays a hole wherever it is in the file. A hole of one outline (GeoJSON) cuts that outline alone: an
island inside it counts.

A patch is an example of the concept that covers most of it, if that is at least `min_overlap` of
the patch. Positions are level-0 pixels of the whole file; GeoJSON counts from the image that QuPath
shows, and is moved by the slide's bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import shapely
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile
from shapely.affinity import translate

from gcemil.bags.foreign.source import plain_id
from gcemil.bags.store import Bounds
from gcemil.bags.tables import has_columns, read_frame
from gcemil.errors import InputError, error_text
from gcemil.files import read_text, require_file
from gcemil.slides.geojson import GeoObject, Points, count_ignored, merge_areas, read_objects
from gcemil.slides.grid import box_shares

Role = Literal["tumour", "exclusion"]
Corners = Int[np.ndarray, "n 2"]
Overlap = Float[np.ndarray, "n"]
Canvas = Bool[np.ndarray, "height width"]

_GROUP_ROLES: dict[str, Role] = {
    **dict.fromkeys(("_0", "_1", "Tumor", "metastases"), "tumour"),
    **dict.fromkeys(("_2", "Exclusion", "None", "normal"), "exclusion"),
}
_AREAS = {"Polygon", "Spline", "Rectangle"}
"""Types that enclose something; dots and measurements do not."""
LARGEST_MASK = 32_000_000
"""Pixels of a mask that are held in memory; a pyramid is read at its finest page below that."""


@dataclass(frozen=True, eq=False)
class Annotation:
    """What one file marks on one slide, by class or group, in level-0 pixels."""

    areas: Mapping[str, shapely.Geometry]
    points: Mapping[str, Points]
    notes: tuple[str, ...] = ()
    """What was left out."""


@dataclass(frozen=True, eq=False)
class TumourMask:
    """Tumour pixels of a mask image, and the level-0 pixels that one of them spans in x and y."""

    pixels: Canvas
    downsample: tuple[float, float]


# Files


def read_annotation(path: Path, origin: Bounds = (0, 0)) -> Annotation:
    """The concepts of an ASAP file, or of a GeoJSON file whose image begins at `origin`."""
    if path.suffix.lower() == ".xml":
        # Normal tissue is a concept as any other here.
        return read_asap(path, roles={"normal": "tumour"}, otherwise="tumour")
    return name_shapes(read_objects(path), origin)


def find_slide_id(path: Path) -> str:
    """The slide of an annotation file: its name without '_mask' and known extensions."""
    return plain_id(path.stem.removesuffix("_mask"))


def read_asap(
    path: Path, *, roles: Mapping[str, Role] | None = None, otherwise: Role | None = None
) -> Annotation:
    """The tumour of an ASAP file by group, without the exclusions.

    `roles` adds the meaning of further groups, or changes it; the rest mean `otherwise`.
    """
    try:
        root = ElementTree.fromstring(read_text(path))
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(
            f"{path} is not valid XML ({error}). Export the annotations again."
        ) from error
    if root.tag != "ASAP_Annotations":
        raise InputError(
            f"{path} is not an ASAP file: its root is <{root.tag}>, not <ASAP_Annotations>."
        )
    parents = {group.get("Name", ""): group.get("PartOfGroup", "") for group in root.iter("Group")}
    meaning: dict[str, Role] = {**_GROUP_ROLES, **(roles or {})}
    polygons: dict[Role, dict[str, list[shapely.Geometry]]] = {"tumour": {}, "exclusion": {}}
    notes = []
    for position, element in enumerate(root.iter("Annotation")):
        name = element.get("Name") or f"annotation {position}"
        group, kind = element.get("PartOfGroup", "None"), element.get("Type", "Polygon")
        vertices = _read_vertices(element, path)
        if kind not in _AREAS or len(vertices) < 3:
            notes.append(f"'{name}' ({kind}, {len(vertices)} vertices) encloses no area")
            continue
        role = meaning.get(_find_known_group(group, parents, meaning), otherwise)
        if role is None:
            raise InputError(
                f"{path}: group '{group}' is neither tumour nor exclusion; known are: "
                f"{', '.join(sorted(meaning))}. Give its meaning with "
                f"roles={{'{group}': 'tumour'}} or 'exclusion'."
            )
        polygons[role].setdefault(group, []).append(shapely.Polygon(vertices))
    holes = merge_areas(one for own in polygons["exclusion"].values() for one in own)
    areas = {
        group: shapely.difference(merge_areas(own), holes)
        for group, own in polygons["tumour"].items()
    }
    return Annotation(areas, {}, tuple(notes))


def _read_vertices(element: ElementTree.Element, path: Path) -> Float[np.ndarray, "_ 2"]:
    """Level-0 pixels (x, y), sorted by `Order`."""
    points = element.findall("./Coordinates/Coordinate")
    try:
        rows = np.array(
            [[float(point.attrib[name]) for name in ("Order", "X", "Y")] for point in points]
        )
    except (KeyError, ValueError):
        rows = np.array([[np.nan]])
    if not np.isfinite(rows).all():
        raise InputError(
            f"{path}: annotation '{element.get('Name')}' has a coordinate without a finite number "
            "in Order, X or Y."
        )
    rows = rows.reshape(-1, 3)
    return rows[np.argsort(rows[:, 0], kind="stable"), 1:]


def _find_known_group(group: str, parents: Mapping[str, str], meaning: Mapping[str, Role]) -> str:
    """The group, or the nearest group around it that has a meaning."""
    seen = set[str]()
    while group not in meaning and group not in seen:
        seen.add(group)
        # Every group at the top is part of 'None', which has no meaning there.
        parent = parents.get(group, "")
        group = "" if parent == "None" else parent
    return group


def name_shapes(objects: Sequence[GeoObject], origin: Bounds = (0, 0)) -> Annotation:
    """What the objects of a GeoJSON file mark, by class; its image begins at `origin`."""
    areas: dict[str, list[shapely.Geometry]] = {}
    points: dict[str, list[Points]] = {}
    for item in objects:
        if item.class_name and not item.area.is_empty:
            areas.setdefault(item.class_name, []).append(translate(item.area, *origin))
        if item.class_name and len(item.points):
            moved = item.points + np.array(origin, dtype=np.float64)
            points.setdefault(item.class_name, []).append(moved)
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
            f"{path} has the columns {', '.join(table)}; "
            "a table of examples has slide, x, y and concept."
        )
    positions = table[["x", "y"]].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~np.isfinite(positions).all(axis=1) | (table[slide] == "") | (table["concept"] == "")
    if bad.any():
        number = int(np.argmax(bad))
        values = table.iloc[number][[slide, "x", "y", "concept"]].to_dict()
        raise InputError(
            f"{path}, line {number + 2}: {values}; "
            "every example needs a slide, two numbers and a concept."
        )
    points: dict[str, dict[str, Points]] = {}
    for (name, concept), rows in table.groupby([slide, "concept"], sort=False).indices.items():
        points.setdefault(name, {})[concept] = positions[rows]
    return {name: Annotation({}, concepts) for name, concepts in points.items()}


def read_mask(
    path: Path, *, downsample: float | None = None, tumour_values: Sequence[int] | None = None
) -> TumourMask:
    """A PNG or TIFF mask. The downsample of a single image is given; a TIFF pyramid states it."""
    require_file(path)
    try:
        # Image.open refuses a pyramid for the size of its first page, which is never decoded here.
        is_tiff = path.suffix.lower() in {".tif", ".tiff"}
        with TiffImageFile(path) if is_tiff else Image.open(path, formats=("PNG",)) as image:
            level0 = image.size
            # The finest page that fits in memory.
            for page in range(getattr(image, "n_frames", 1)):
                image.seek(page)
                if image.size[0] * image.size[1] <= LARGEST_MASK:
                    break
            else:
                raise InputError(
                    f"{path}: its smallest page has {image.size[0]} x {image.size[1]} pixels, more "
                    f"than {LARGEST_MASK:,}. Write a mask of lower resolution."
                )
            is_pyramid = image.size != level0
            values = np.asarray(image)
    except InputError:
        raise
    except Exception as error:
        # Damaged pictures make Pillow raise almost anything, SyntaxError and TypeError among them.
        raise InputError(
            f"{path} cannot be read as a PNG or TIFF mask ({error_text(error)})."
        ) from error
    if downsample is None and not is_pyramid:
        raise InputError(
            f"{path} has one page of {level0[0]} x {level0[1]} pixels, which does not say how many "
            "level-0 pixels each spans. Give downsample (1 for a mask in full resolution)."
        )
    pixels = _find_tumour(values if values.ndim == 2 else values[..., 0], path, tumour_values)
    # For a pyramid the number given is that of its first page.
    scale = 1.0 if downsample is None else downsample
    height, width = pixels.shape
    return TumourMask(pixels, (level0[0] / width * scale, level0[1] / height * scale))


def _find_tumour(
    values: Shaped[np.ndarray, "height width"], path: Path, tumour_values: Sequence[int] | None
) -> Canvas:
    """White on black is understood; labels have to be named, for 1 may be tumour or tissue."""
    if values.dtype == bool:
        return values
    if tumour_values is not None:
        return np.isin(values, np.array(tumour_values))
    present = np.unique(values).tolist()
    if not set(present) <= {0, 255}:
        raise InputError(
            f"{path} holds the values {', '.join(map(str, present[:8]))}, not only 0 and 255. "
            f"Name those of tumour, for example tumour_values=({present[-1]},)."
        )
    return values == 255


# Patches


def area_share(coords: Corners, patch_size: int, area: shapely.Geometry) -> Overlap:
    """Share of every patch inside the area."""
    parts = shapely.get_parts(area)
    shapely.prepare(parts)
    patches = shapely.box(*coords.T, *(coords + patch_size).T)
    patch, part = shapely.STRtree(parts).query(patches)
    share = shapely.contains(parts[part], patches[patch]).astype(np.float64)
    # Only a patch that an outline cuts needs its intersection, which takes long.
    cut = np.flatnonzero((share == 0) & shapely.intersects(parts[part], patches[patch]))
    pieces = [
        shapely.clip_by_rect(
            parts[part[row]], *coords[patch[row]], *(coords[patch[row]] + patch_size)
        )
        for row in cut
    ]
    share[cut] = shapely.area(pieces) / patch_size**2
    return np.bincount(patch, weights=share, minlength=len(coords)).clip(max=1.0)


def mask_share(coords: Corners, patch_size: int, mask: TumourMask) -> Overlap:
    """Share of every patch inside the mask's tumour; beyond its border there is none."""
    low = coords / np.array(mask.downsample)
    high = (coords + patch_size) / np.array(mask.downsample)
    height, width = mask.pixels.shape
    outside = (low >= (width, height)).any(axis=1)
    if outside.any():
        raise InputError(
            f"The patch at {coords[outside][0].tolist()} lies outside a mask of {width} x {height} "
            f"pixels at downsample {mask.downsample[0]:g}. Give the downsample of the mask: "
            "level-0 width of the slide / width of the mask."
        )
    return box_shares(mask.pixels, low, high)


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
    concepts = _choose_concepts(shares, min_overlap)
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
        chosen = (values[name],) if values else None
        mask = read_mask(path, downsample=downsample, tumour_values=chosen)
        shares[name] = mask_share(coords, patch_size, mask)
    return _choose_concepts(shares, min_overlap)


def _choose_concepts(
    shares: Mapping[str, NDArray[np.floating[Any]]], min_overlap: float
) -> dict[int, str]:
    """The concept of largest share for every patch that has one; the first of equals."""
    if not shares:
        return {}
    table = pd.DataFrame(shares)
    best = table.idxmax(axis=1)[table.max(axis=1) >= min_overlap]
    return {int(row): str(name) for row, name in best.items()}


def patches_at(coords: Corners, patch_size: int, points: Points) -> Int[np.ndarray, "p"]:
    """The patch that holds each point, of several the one with the nearest centre; else -1."""
    rows = np.full(len(points), -1)
    for index, point in enumerate(points):
        from_corner = point - coords
        inside = np.flatnonzero(((from_corner >= 0) & (from_corner < patch_size)).all(axis=1))
        if len(inside):
            away = np.abs(from_corner[inside] - patch_size / 2).sum(axis=1)
            rows[index] = inside[np.argmin(away)]
    return rows
