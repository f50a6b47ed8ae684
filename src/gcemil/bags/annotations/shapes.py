"""Annotations as other tools write them, and how much of each patch lies inside: ASAP polygons and mask images.

  <Annotation Type="Polygon" PartOfGroup="Tumor"><Coordinates><Coordinate Order="0" X="55486.6"
  Y="59360.2"/>...

Vertices stand in the order of `Order`, whatever their order in the file. The group says what a
polygon means: in CAMELYON16 `_0`, `_1` and `Tumor` are tumour, `_2`, `Exclusion` and `None` are not
(holes); in CAMELYON17 `metastases` and `normal`. A group of another name means what the group it is
part of means. Splines count as their control polygon.

  overlap_i = area of patch i inside the annotation / area of patch i

Both are exact. A patch edge inside a mask pixel takes its share of that pixel. The inside of an
outline that crosses itself is even-odd; exclusions are cut out of all tumour, so that a hole stays
a hole wherever it is in the file. A hole that belongs to one outline (GeoJSON) cuts that outline
alone: an island inside it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
import shapely
from jaxtyping import Bool, Float, Int, Shaped
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from gcemil.errors import InputError, error_text
from gcemil.files import read_text, require_file
from gcemil.slides.geojson import Points, merge_areas
from gcemil.slides.grid import box_shares

Role = Literal["tumour", "exclusion"]
Vertices = Float[np.ndarray, "_ 2"]

_GROUP_ROLES: dict[str, Role] = {
    "_0": "tumour",
    "_1": "tumour",
    "Tumor": "tumour",
    "metastases": "tumour",
    "_2": "exclusion",
    "Exclusion": "exclusion",
    "None": "exclusion",
    "normal": "exclusion",
}
_AREAS = {"Polygon", "Spline", "Rectangle"}
"""Types that enclose something; dots and measurements do not."""


@dataclass(frozen=True, eq=False)
class Annotation:
    """What one file marks on one slide, by class or group, in level-0 pixels."""

    areas: Mapping[str, shapely.Geometry]
    points: Mapping[str, Points]
    notes: tuple[str, ...] = ()
    """What was left out."""


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
    meaning = {**_GROUP_ROLES, **(roles or {})}
    polygons: dict[Role, list[tuple[str, shapely.Geometry]]] = {"tumour": [], "exclusion": []}
    notes = []
    for position, element in enumerate(root.iter("Annotation")):
        name, group = (
            element.get("Name") or f"annotation {position}",
            element.get("PartOfGroup", "None"),
        )
        kind, vertices = element.get("Type", "Polygon"), _read_vertices(element, path)
        if kind not in _AREAS or len(vertices) < 3:
            notes.append(f"'{name}' ({kind}, {len(vertices)} vertices) encloses no area")
            continue
        role = _find_role(group, parents, meaning, otherwise, path)
        polygons[role].append((group, shapely.Polygon(vertices)))
    holes = merge_areas(polygon for _, polygon in polygons["exclusion"])
    areas = {
        group: shapely.difference(
            merge_areas(one for name, one in polygons["tumour"] if name == group), holes
        )
        for group in dict.fromkeys(name for name, _ in polygons["tumour"])
    }
    return Annotation(areas, {}, tuple(notes))


def _read_vertices(element: ElementTree.Element, path: Path) -> Vertices:
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


def _find_role(
    group: str,
    parents: Mapping[str, str],
    meaning: Mapping[str, Role],
    otherwise: Role | None,
    path: Path,
) -> Role:
    """The meaning of the group, or of the nearest group around it that has one."""
    current, seen = group, set[str]()
    while current not in meaning and current in parents and current not in seen:
        seen.add(current)
        # Every group at the top is part of 'None', which says nothing about it.
        current = "" if parents[current] == "None" else parents[current]
    if (role := meaning.get(current, otherwise)) is None:
        raise InputError(
            f"{path}: group '{group}' is neither tumour nor exclusion; known are: "
            f"{', '.join(sorted(meaning))}. "
            f"Say what it means with roles={{'{group}': 'tumour'}} or 'exclusion'."
        )
    return role


Corners = Int[np.ndarray, "n 2"]
Overlap = Float[np.ndarray, "n"]
Canvas = Bool[np.ndarray, "height width"]

LARGEST_MASK = 32_000_000
"""Pixels of a mask that are held in memory; a pyramid is read at its finest page below that."""


@dataclass(frozen=True, eq=False)
class TumourMask:
    """Tumour pixels of a mask image and the level-0 pixels that one of them spans in x and y."""

    pixels: Canvas
    downsample: tuple[float, float]


def area_share(coords: Corners, patch_size: int, area: shapely.Geometry) -> Overlap:
    """Share of every patch inside the area."""
    parts = shapely.get_parts(area)
    shapely.prepare(parts)
    patches = shapely.box(*coords.T, *(coords + patch_size).T)
    patch, part = shapely.STRtree(parts).query(patches)
    share = shapely.contains(parts[part], patches[patch]).astype(np.float64)
    # Only a patch that an outline cuts needs its intersection, which takes long where there are
    # many vertices.
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
            "pixels at downsample "
            f"{mask.downsample[0]:g}. Give the downsample of the mask: level-0 width of the slide "
            "/ width of the mask."
        )
    return box_shares(mask.pixels, low, high)


def read_mask(
    path: Path, *, downsample: float | None = None, tumour_values: Sequence[int] | None = None
) -> TumourMask:
    """A PNG or TIFF mask. A TIFF pyramid knows its downsample; a single image has to be told."""
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
                    f"than {LARGEST_MASK:,}. "
                    "Write a mask of lower resolution."
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
            "level-0 pixels each "
            "spans. Give downsample (1 for a mask in full resolution)."
        )
    pixels = _find_tumour(values if values.ndim == 2 else values[..., 0], path, tumour_values)
    across, down = level0[0] / pixels.shape[1], level0[1] / pixels.shape[0]
    # For a pyramid the number given is that of its first page.
    scale = 1.0 if downsample is None else downsample
    return TumourMask(pixels, (across * scale, down * scale))


def _find_tumour(
    values: Shaped[np.ndarray, "height width"], path: Path, tumour_values: Sequence[int] | None
) -> Canvas:
    """White on black is understood; labels have to be named, for 1 is tumour in one file and tissue in another."""
    if values.dtype == bool:
        return values
    if tumour_values is not None:
        return np.isin(values, np.array(tumour_values))
    found = np.unique(values).tolist()
    if not set(found) <= {0, 255}:
        shown = ", ".join(str(value) for value in found[:8])
        raise InputError(
            f"{path} holds the values {shown}, not only 0 and 255. Say which mean tumour, for "
            f"example tumour_values=({found[-1]},)."
        )
    return values == 255
