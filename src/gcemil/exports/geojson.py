"""Patches and regions as QuPath objects: a FeatureCollection of tiles, or of annotations, with classes, colours and measurements.

What QuPath wants of every object, and what happens otherwise:
  objectType inside `properties`            it becomes an annotation: slow by the thousand, no measurement maps
  a classification has a name and a colour  the whole file is refused
  NaN is the string "NaN"                   a bare NaN is no JSON
  the id is a UUID                          it is ignored
  metadata are strings
  pixels count from the top left of the image as QuPath shows it: the slide's bounds are subtracted

An id is made of slide, model and patch (UUID version 5), so the same evidence gives the same file.

Patches are tiles; a region, the patches that touch, is an annotation, which people can select, rename and measure. Its outline
is exact, with holes, also where patches overlap or lie on shifted grids. Patches that touch at a corner only make one region of
two polygons.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Real

from gcemil.bags.arrays import Bounds
from gcemil.errors import BagError, UsageError
from gcemil.files import whole_file
from gcemil.records import RegionVerdict, SlideEvidence
from gcemil.rules import RULES
from gcemil.slides.contours import Outline, Ring, outline_squares

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "gcemil/patch")
BLOCK = 1024
"""Objects whose text is made at once."""
VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""The two bits by which a UUID says how it is laid out."""
ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
NOT_FINITE = {"nan": "NaN", "inf": "inf", "-inf": "-inf"}

PerPatch = Real[np.ndarray, "n"]


def _parse_color(color: str) -> tuple[int, int, int]:
    """#rrggbb as three numbers."""
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red, green, blue


@dataclass(frozen=True)
class PatchClass:
    """A class of objects in QuPath."""

    name: str
    color: tuple[int, int, int]


EVIDENCE = PatchClass("GCE evidence", _parse_color(RULES["evidence"].color))
ATTENTION = PatchClass("Attention top-k", _parse_color(RULES["attention"].color))
UNSELECTED = PatchClass("Not selected", (160, 160, 160))


@dataclass(frozen=True, eq=False)
class PatchCollection:
    """The objects of one slide, checked; their text is made block by block, because it is far larger than the arrays."""

    slide_id: str
    model: str
    patches: Int[np.ndarray, "k"]
    """Their rows in the slide."""
    corners: Int[np.ndarray, "k 2"]
    patch_size: int
    ranks: Int[np.ndarray, "k"]
    """From 1; 0 for a patch that was not selected."""
    measurements: Mapping[str, PerPatch]
    selected_class: PatchClass
    unselected_class: PatchClass | None

    def __len__(self) -> int:
        return len(self.patches)

    def blocks(self) -> Iterator[str]:
        """The whole file in parts: one object per line, so that two files can be compared."""
        yield '{"type":"FeatureCollection","features":[\n'
        for start in range(0, len(self), BLOCK):
            lines = self._lines(slice(start, start + BLOCK))
            yield ",\n".join(lines) + (",\n" if start + BLOCK < len(self) else "\n")
        yield "]}\n"

    def _lines(self, rows: slice) -> Iterator[str]:
        patches, ranks = self.patches[rows].tolist(), self.ranks[rows].tolist()
        left, top = self.corners[rows].T.tolist()
        right, bottom = (self.corners[rows] + self.patch_size).T.tolist()
        measured = {name: format_column(values[rows]) for name, values in self.measurements.items()}
        template = self._template({name: place for name, (place, _) in measured.items()})
        return map(
            template.__mod__,
            zip(
                _make_uuids(self.slide_id, self.model, patches),
                # A closed ring from the top left corner.
                left, top, right, top, right, bottom, left, bottom, left, top,
                self._titles(ranks, patches),
                *(column for _, column in measured.values()),
                patches,
                strict=True,
            ),
        )  # fmt: skip

    def _template(self, measured: Mapping[str, str]) -> str:
        """One object with a place for everything that differs between patches."""
        places = ",".join(f"{format_constant(name)}:{place}" for name, place in measured.items())
        return (
            '{"type":"Feature","id":"%s","geometry":{"type":"Polygon","coordinates":'
            "[[[%d,%d],[%d,%d],[%d,%d],[%d,%d],[%d,%d]]]},"
            '"properties":{"objectType":"tile","isLocked":true,%s,'
            f'"measurements":{{{places}}},'
            f'"metadata":{{"slide_id":{format_constant(self.slide_id)},"model":{format_constant(self.model)},"patch":"%d"}}}}}}'
        )

    def _titles(self, ranks: list[int], patches: list[int]) -> Iterator[str]:
        """Name and class of every object."""
        name = format_json(self.selected_class.name)[:-1]
        chosen, other = (
            f'"classification":{format_json({"name": one.name, "color": list(one.color)})}'
            for one in (self.selected_class, self.unselected_class or self.selected_class)
        )
        for rank, patch in zip(ranks, patches, strict=True):
            yield f'"name":{name} #{rank}",{chosen}' if rank else f'"name":"patch {patch}",{other}'


def collect_patches(
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
) -> PatchCollection:
    """The selected patches, numbered from the highest `ranked_by`; the others too, where they are given a class."""
    corners = coords.astype(np.int64) - np.array(bounds, dtype=np.int64)
    _check_inside(corners, patch_size, bounds, slide_id)
    order = np.flatnonzero(selected)[np.argsort(-ranked_by[selected], kind="stable")]
    ranks = np.zeros(len(selected), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    shown = np.flatnonzero(selected) if unselected_class is None else np.arange(len(selected))
    return PatchCollection(
        slide_id=slide_id,
        model=model,
        patches=shown,
        corners=corners[shown],
        patch_size=patch_size,
        ranks=ranks[shown],
        measurements={name: values[shown] for name, values in measurements.items()},
        selected_class=selected_class,
        unselected_class=unselected_class,
    )


def write_geojson(path: Path, collection: PatchCollection) -> Path:
    """Write the patches block by block, so that memory does not grow with the slide."""
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(collection.blocks())
    return path


def name_measurements(evidence: SlideEvidence) -> dict[str, PerPatch]:
    """Everything a record knows of each patch, by the name QuPath will show."""
    found: dict[str, PerPatch] = {
        "gate": evidence.gates,
        "attention_score": evidence.scores,
        "evidence_score": evidence.evidence_scores,
        "marginal_gain": evidence.marginal_gain,
    }
    for anchor, prompt in enumerate(evidence.prompts):
        name = f"anchor: {prompt}"
        # Two anchors may carry one prompt, two measurements may not carry one name.
        found[name if name not in found else f"{name} ({anchor})"] = evidence.responses[:, anchor]
    return found


def _make_uuids(slide_id: str, model: str, patches: Iterable[int]) -> Iterator[str]:
    """uuid.uuid5 of slide, model and patch, with what they share hashed once."""
    shared = hashlib.sha1(NAMESPACE.bytes + f"{slide_id}\n{model}\n".encode(), usedforsecurity=False)
    for patch in patches:
        one = shared.copy()
        one.update(b"%d" % patch)
        text = one.hexdigest()
        variant = VARIANTS[text[16]]
        yield f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def round_numbers(values: PerPatch) -> list[float | int | str]:
    """JSON numbers with the digits a float32 has, and QuPath's names for what JSON cannot say."""
    if values.dtype.kind != "f":
        return [int(value) for value in values.tolist()]
    return [
        float(f"{value:.7g}") if math.isfinite(value) else NOT_FINITE[str(value)]
        for value in values.astype(np.float64).tolist()
    ]


def format_column(values: PerPatch) -> tuple[str, Sequence[float | str]]:
    """A column for a template, and how the template writes it: the digits of `numbers`, without a string for each."""
    if values.dtype.kind == "f" and np.isfinite(values).all():
        return "%.7g", values.astype(np.float64).tolist()
    return "%s", [format_json(value) for value in round_numbers(values)]


def format_json(value: Any) -> str:
    """A value as JSON without spaces; NaN is refused."""
    return ENCODER.encode(value)


def format_constant(text: str) -> str:
    """A JSON string inside a template, where a percent sign is written twice."""
    return format_json(text).replace("%", "%%")


def _check_inside(corners: Int[np.ndarray, "n 2"], patch_size: int, bounds: Bounds, slide_id: str) -> None:
    if patch_size < 1:
        raise UsageError(f"A patch measures at least 1 level-0 pixel, got {patch_size}.")
    outside = np.flatnonzero((corners + patch_size <= 0).any(axis=1))
    if len(outside):
        x, y = corners[outside[0]].tolist()
        raise BagError(
            f"Slide '{slide_id}': with bounds {bounds[0]}, {bounds[1]} patch {outside[0]} would lie at ({x}, {y}), outside "
            "the image. These bounds are of another slide, or the coordinates already count from them: use 0, 0."
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
        return [{**vars(one), "patches": rows.tolist()} for one, rows in self.with_rows()]

    def with_rows(self) -> Iterator[tuple[RegionVerdict, Int[np.ndarray, "_"]]]:
        """Every region with the rows of its patches, all found in one sorting."""
        order = np.argsort(self.number, kind="stable")
        numbers = [one.number for one in self.verdicts]
        starts = np.searchsorted(self.number[order], numbers, side="left")
        stops = np.searchsorted(self.number[order], numbers, side="right")
        for one, start, stop in zip(self.verdicts, starts, stops, strict=True):
            yield one, order[start:stop]


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
    for one, rows in regions.with_rows():
        means = {f"mean {name}": np.array([values[rows].mean()]) for name, values in measurements.items()}
        yield {
            "type": "Feature",
            "id": str(uuid.uuid5(NAMESPACE, f"{slide_id}\n{model}\nregion {int(rows[0])}")),
            "geometry": _describe_geometry(outline_squares(corners[rows], patch_size)),
            "properties": {
                "objectType": "annotation",
                "isLocked": True,
                "name": f"{region_class.name} region {one.number}",
                "classification": {"name": region_class.name, "color": list(region_class.color)},
                "measurements": {
                    **_describe_verdict(one),
                    **{name: round_numbers(value)[0] for name, value in means.items()},
                },
                "metadata": {"slide_id": slide_id, "model": model, "region": str(one.number)},
            },
        }


def write_regions(path: Path, features: Iterator[dict[str, Any]]) -> Path:
    """A FeatureCollection with one region per line."""
    lines = ",\n".join(json.dumps(one, allow_nan=False, ensure_ascii=False) for one in features)
    with whole_file(path) as temporary:
        temporary.write_text(
            f'{{"type":"FeatureCollection","features":[\n{lines}\n]}}\n', encoding="utf-8", newline="\n"
        )
    return path


def _describe_verdict(one: RegionVerdict) -> dict[str, float]:
    """The numbers QuPath shows; what was not asked is left out."""
    found = {
        "patches": one.n_patches,
        "score mass": one.mass,
        "kept alone": one.kept,
        "without it": one.removed,
        "sufficient": one.sufficient,
        "necessary": one.necessary,
    }
    return {
        name: int(value) if isinstance(value, bool | int) else float(f"{value:.7g}")
        for name, value in found.items()
        if value is not None
    }


def _describe_geometry(outlines: list[Outline]) -> dict[str, Any]:
    polygons = [[_close_ring(ring) for ring in (one.outer, *one.holes)] for one in outlines]
    if len(polygons) == 1:
        return {"type": "Polygon", "coordinates": polygons[0]}
    return {"type": "MultiPolygon", "coordinates": polygons}


def _close_ring(ring: Ring) -> list[list[int]]:
    points: list[list[int]] = ring.tolist()
    return [*points, points[0]]
