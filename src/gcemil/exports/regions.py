"""Regions as QuPath annotations: patches that touch, merged into one outline, with what keeping and removing it says.

Patches are QuPath tiles (geojson.py); a region is an annotation, which people can select, rename and measure. Its outline is
exact, with holes, also where patches overlap or lie on shifted grids. Patches that touch at a corner only make one region
of two polygons.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Real

from gcemil.bags.arrays import Bounds
from gcemil.exports.geojson import NAMESPACE, PatchClass, round_numbers
from gcemil.files import whole_file
from gcemil.records import RegionVerdict
from gcemil.slides.contours import Outline, Ring, outline_squares


@dataclass(frozen=True, eq=False)
class SlideRegions:
    """The regions of one slide."""

    number: Int[np.ndarray, "n"]
    """The region of each patch, 0 for none."""
    verdicts: tuple[RegionVerdict, ...]
    """In the order of their numbers, which a case counts over all its slides."""

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
