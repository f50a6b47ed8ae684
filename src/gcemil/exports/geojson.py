"""Patches and regions as QuPath objects in a GeoJSON FeatureCollection.

What QuPath requires of every object, and what happens otherwise:
  objectType inside `properties`            it becomes an annotation: slow, no measurement maps
  a classification has a name and a colour  the whole file is refused
  NaN is the string "NaN"                   a bare NaN is not JSON
  the id is a UUID                          it is ignored
  metadata are strings
  pixels count from the top left of the image as QuPath shows it: the slide's bounds are subtracted

An id is made of slide, model and patch (UUID version 5), so the same evidence gives the same file.

Patches are tiles; a region, the patches that touch, is an annotation, which people can select,
rename and measure. Its outline is exact, with holes, also where patches overlap or lie on shifted
grids. Patches that touch at a corner only make one region of two polygons.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Real

from gcemil.bags.store import Bounds
from gcemil.errors import BagError, UsageError
from gcemil.files import atomic_write
from gcemil.records import RegionVerdict, SlideEvidence
from gcemil.rules import RULES
from gcemil.slides.geojson import outline_squares

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "gcemil/patch")
NOT_FINITE = {"nan": "NaN", "inf": "inf", "-inf": "-inf"}

BLOCK = 1024
"""Objects whose text is made at once."""

PerPatch = Real[np.ndarray, "n"]


@dataclass(frozen=True)
class PatchClass:
    """A class of objects in QuPath."""

    name: str
    color: tuple[int, int, int]

    @classmethod
    def of_rule(cls, name: str, rule: str) -> PatchClass:
        """In the colour that the rule has in every figure."""
        red, green, blue = bytes.fromhex(RULES[rule].color.removeprefix("#"))
        return cls(name, (red, green, blue))


EVIDENCE = PatchClass.of_rule("GCE evidence", "evidence")
ATTENTION = PatchClass.of_rule("Attention top-k", "attention")
NO_EVIDENCE = PatchClass("No evidence", (120, 134, 145))
"""For pictures: selected patches that are not evidence."""
FURTHER_COLORS = ((0, 114, 178), (86, 180, 233), (230, 159, 0))
"""Colours of sets beside the evidence, in their order."""
UNSELECTED = PatchClass("Not selected", (160, 160, 160))


def describe_patches(
    slide_id: str,
    coords: Int[np.ndarray, "n 2"],
    selected: Bool[np.ndarray, "n"],
    *,
    patch_size: int,
    ranked_by: PerPatch,
    measurements: Mapping[str, PerPatch],
    model: str,
    selected_class: PatchClass = EVIDENCE,
    unselected_class: PatchClass | None = None,
    bounds: Bounds = (0, 0),
) -> Iterator[dict[str, Any]]:
    """One feature per selected patch, numbered from the highest `ranked_by`.

    The others are shown if they have a class. Arguments are checked at once; the features are made
    one by one, because they are far larger than the arrays.
    """
    corners = coords.astype(np.int64) - np.array(bounds, dtype=np.int64)
    _check_inside(corners, patch_size, bounds, slide_id)
    order = np.flatnonzero(selected)[np.argsort(-ranked_by[selected], kind="stable")]
    ranks = np.zeros(len(selected), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    shown = np.flatnonzero(selected) if unselected_class is None else np.arange(len(selected))
    rows = list_rows({name: values[shown] for name, values in measurements.items()}, len(shown))
    return (
        _describe_feature(
            f"{slide_id}\n{model}\n{patch}",
            {"type": "Polygon", "coordinates": [_square_ring(x, y, patch_size)]},
            "tile",
            f"{selected_class.name} #{rank}" if rank else f"patch {patch}",
            selected_class if rank else unselected_class or selected_class,
            measured,
            {"slide_id": slide_id, "model": model, "patch": str(patch)},
        )
        for patch, rank, (x, y), measured in zip(
            shown.tolist(), ranks[shown].tolist(), corners[shown].tolist(), rows, strict=True
        )
    )


def _describe_feature(
    key: str,
    geometry: dict[str, Any],
    object_type: str,
    name: str,
    object_class: PatchClass,
    measurements: Mapping[str, float | int | str],
    metadata: Mapping[str, str],
) -> dict[str, Any]:
    """One object as QuPath reads it; `key` makes its id."""
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(NAMESPACE, key)),
        "geometry": geometry,
        "properties": {
            "objectType": object_type,
            "isLocked": True,
            "name": name,
            "classification": {"name": object_class.name, "color": object_class.color},
            "measurements": measurements,
            "metadata": metadata,
        },
    }


def _square_ring(x: int, y: int, side: int) -> list[list[int]]:
    """A closed ring from the top left corner."""
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


def encode_list(
    head: Mapping[str, Any], name: str, entries: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    """A JSON object whose last member is a list, in parts; an entry per line."""
    yield json.dumps({**head, name: []}, allow_nan=False).removesuffix("]}")
    lines, start = (json.dumps(entry, allow_nan=False) for entry in entries), "\n"
    while block := list(islice(lines, BLOCK)):
        yield start + ",\n".join(block)
        start = ",\n"
    yield "\n]}\n"


def encode_features(features: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A FeatureCollection in parts."""
    return encode_list({"type": "FeatureCollection"}, "features", features)


def write_geojson(path: Path, features: Iterable[Mapping[str, Any]]) -> Path:
    """Write the features block by block, so that memory does not grow with the slide."""
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(encode_features(features))
    return path


def name_measurements(evidence: SlideEvidence) -> dict[str, PerPatch]:
    """The values of each patch, by the name that QuPath shows."""
    values: dict[str, PerPatch] = {
        "gate": evidence.gates,
        "attention_score": evidence.scores,
        "evidence_score": evidence.evidence_scores,
        "marginal_gain": evidence.marginal_gain,
    }
    for anchor, prompt in enumerate(evidence.prompts):
        name = f"anchor: {prompt}"
        # Two anchors may carry one prompt, two measurements may not carry one name.
        values[f"{name} ({anchor})" if name in values else name] = evidence.responses[:, anchor]
    return values


def list_rows(
    columns: Mapping[str, PerPatch], n_rows: int
) -> Iterator[dict[str, float | int | str]]:
    """The columns row by row as values for JSON."""
    values = [round_numbers(column) for column in columns.values()]
    rows = zip(*values, strict=True) if values else [()] * n_rows
    return (dict(zip(columns, row, strict=True)) for row in rows)


def round_numbers(values: PerPatch) -> list[float | int | str]:
    """JSON numbers with the digits of a float32, and QuPath's names for NaN and infinity."""
    if values.dtype.kind != "f":
        return [int(value) for value in values.tolist()]
    return [
        float(f"{value:.7g}") if math.isfinite(value) else NOT_FINITE[str(value)]
        for value in values.astype(np.float64).tolist()
    ]


def _check_inside(
    corners: Int[np.ndarray, "n 2"], patch_size: int, bounds: Bounds, slide_id: str
) -> None:
    if patch_size < 1:
        raise UsageError(f"A patch measures at least 1 level-0 pixel, got {patch_size}.")
    outside = np.flatnonzero((corners + patch_size <= 0).any(axis=1))
    if len(outside):
        x, y = corners[outside[0]].tolist()
        raise BagError(
            f"Slide '{slide_id}': with bounds {bounds[0]}, {bounds[1]} patch {outside[0]} would "
            f"lie at ({x}, {y}), outside the image. These bounds are of another slide, or the "
            "coordinates already count from them: use 0, 0."
        )


# Regions


@dataclass(frozen=True, eq=False)
class SlideRegions:
    """The regions of one slide, or of all slides of a bag."""

    number: Int[np.ndarray, "n"]
    """The region of each patch, 0 for none."""
    verdicts: tuple[RegionVerdict, ...]
    """In the order of their numbers, which a case counts over all its slides."""

    def of_slide(self, slide_id: str, rows: slice) -> SlideRegions:
        """Those of one slide of a case."""
        return SlideRegions(
            self.number[rows], tuple(one for one in self.verdicts if one.slide_id == slide_id)
        )

    def list_regions(self) -> list[dict[str, Any]]:
        """Every region with its verdict and its patches."""
        return [{**vars(one), "patches": self.rows_of(one).tolist()} for one in self.verdicts]

    def rows_of(self, region: RegionVerdict) -> Int[np.ndarray, "_"]:
        """The rows of its patches."""
        return np.flatnonzero(self.number == region.number)


def describe_regions(
    slide_id: str,
    regions: SlideRegions,
    coords: Int[np.ndarray, "n 2"],
    *,
    patch_size: int,
    measurements: Mapping[str, Real[np.ndarray, "n"]],
    model: str,
    region_class: PatchClass,
    bounds: Bounds,
) -> Iterator[dict[str, Any]]:
    """One GeoJSON feature per region; measurements of its patches are given as means."""
    corners = coords.astype(np.int64) - np.array(bounds, dtype=np.int64)
    for one in regions.verdicts:
        rows = regions.rows_of(one)
        polygons = [
            [[*ring.tolist(), ring[0].tolist()] for ring in rings]
            for rings in outline_squares(corners[rows], patch_size)
        ]
        geometry = {"type": "MultiPolygon", "coordinates": polygons}
        if len(polygons) == 1:
            geometry = {"type": "Polygon", "coordinates": polygons[0]}
        facts = {
            "patches": one.n_patches,
            "score mass": one.mass,
            "kept alone": one.kept,
            "without it": one.removed,
            "sufficient": one.sufficient,
            "necessary": one.necessary,
            **{f"mean {name}": values[rows].mean() for name, values in measurements.items()},
        }
        yield _describe_feature(
            f"{slide_id}\n{model}\nregion {int(rows[0])}",
            geometry,
            "annotation",
            f"{region_class.name} region {one.number}",
            region_class,
            {
                name: round_numbers(np.array([value]))[0]
                for name, value in facts.items()
                if value is not None
            },
            {"slide_id": slide_id, "model": model, "region": str(one.number)},
        )
