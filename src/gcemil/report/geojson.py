"""Patches as QuPath objects: a FeatureCollection of tiles with classes, colours and measurements.

What QuPath wants of every object, and what happens otherwise:
  objectType inside `properties`            it becomes an annotation: slow by the thousand, no measurement maps
  a classification has a name and a colour  the whole file is refused
  NaN is the string "NaN"                   a bare NaN is no JSON
  the id is a UUID                          it is ignored
  metadata are strings
  pixels count from the top left of the image as QuPath shows it: the slide's bounds are subtracted

An id is made of slide, model and patch (UUID version 5), so the same evidence gives the same file.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Real

from gcemil.errors import BagError, StoreError, UsageError
from gcemil.files import write_bytes
from gcemil.records import SlideEvidence

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "gcemil/patch")
BOUNDS_KEYS = (("openslide.bounds-x", "openslide.bounds-y"), ("bounds_x", "bounds_y"))
"""Attributes of a feature file that say where the image shown by QuPath begins."""
NOT_FINITE = {"nan": "NaN", "inf": "inf", "-inf": "-inf"}

PerPatch = Real[np.ndarray, "n"]
Bounds = tuple[int, int]


@dataclass(frozen=True)
class PatchClass:
    """A class of objects in QuPath."""

    name: str
    color: tuple[int, int, int]


EVIDENCE = PatchClass("GCE evidence", (214, 39, 40))
ATTENTION = PatchClass("Attention top-k", (31, 119, 180))
UNSELECTED = PatchClass("Not selected", (160, 160, 160))


def feature_collection(
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
) -> dict[str, Any]:
    """The selected patches, numbered from the highest `ranked_by`; the others too, where they are given a class."""
    corners = coords.astype(np.int64) - np.array(bounds, dtype=np.int64)
    check_inside(corners, patch_size, bounds, slide_id)
    order = np.flatnonzero(selected)[np.argsort(-ranked_by[selected], kind="stable")]
    names = {int(patch): f"{selected_class.name} #{rank}" for rank, patch in enumerate(order, start=1)}
    shown = np.flatnonzero(selected) if unselected_class is None else np.arange(len(selected))
    columns = {name: numbers(values[shown]) for name, values in measurements.items()}
    features = []
    for row, patch in enumerate(shown.tolist()):
        patch_class = selected_class if unselected_class is None or selected[patch] else unselected_class
        features.append(
            {
                "type": "Feature",
                "id": patch_uuid(slide_id, model, patch),
                "geometry": {
                    "type": "Polygon",
                    "coordinates": [square(corners[patch], patch_size)],
                },
                "properties": {
                    "objectType": "tile",
                    "isLocked": True,
                    "name": names.get(patch, f"patch {patch}"),
                    "classification": {"name": patch_class.name, "color": list(patch_class.color)},
                    "measurements": {name: values[row] for name, values in columns.items()},
                    "metadata": {"slide_id": slide_id, "model": model, "patch": str(patch)},
                },
            }
        )
    return {"type": "FeatureCollection", "features": features}


def write_geojson(path: Path, collection: dict[str, Any]) -> Path:
    """One feature per line, so that two files can be compared."""
    lines = [
        json.dumps(feature, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        for feature in collection["features"]
    ]
    text = '{"type":"FeatureCollection","features":[\n' + ",\n".join(lines) + "\n]}\n"
    return write_bytes(path, text.encode())


def evidence_measurements(evidence: SlideEvidence) -> dict[str, PerPatch]:
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


def bounds_of(attributes: Mapping[str, Any], where: str) -> Bounds | None:
    """The bounds among the attributes of a feature file; None where it has none."""
    for across, down in BOUNDS_KEYS:
        # TRIDENT writes None as a string.
        if attributes.get(across) in (None, "None") or attributes.get(down) in (None, "None"):
            continue
        try:
            return int(attributes[across]), int(attributes[down])
        except ValueError as error:
            raise StoreError(
                f"{where}: '{across}' is '{attributes[across]}' and '{down}' is '{attributes[down]}'; both must be "
                "whole pixels. Give --bounds-x and --bounds-y instead."
            ) from error
    return None


def patch_uuid(slide_id: str, model: str, patch: int) -> str:
    return str(uuid.uuid5(NAMESPACE, "\n".join((slide_id, model, str(patch)))))


def square(corner: Int[np.ndarray, "2"], size: int) -> list[list[int]]:
    """A closed ring from the top left corner."""
    x, y = corner.tolist()
    return [[x, y], [x + size, y], [x + size, y + size], [x, y + size], [x, y]]


def numbers(values: PerPatch) -> list[float | int | str]:
    """JSON numbers with the digits a float32 has, and QuPath's names for what JSON cannot say."""
    if values.dtype.kind != "f":
        return [int(value) for value in values.tolist()]
    return [
        float(f"{value:.7g}") if math.isfinite(value) else NOT_FINITE[str(value)]
        for value in values.astype(np.float64).tolist()
    ]


def check_inside(corners: Int[np.ndarray, "n 2"], patch_size: int, bounds: Bounds, slide_id: str) -> None:
    if patch_size < 1:
        raise UsageError(f"A patch measures at least 1 level-0 pixel, got {patch_size}.")
    outside = np.flatnonzero((corners + patch_size <= 0).any(axis=1))
    if len(outside):
        x, y = corners[outside[0]].tolist()
        raise BagError(
            f"Slide '{slide_id}': with bounds {bounds[0]}, {bounds[1]} patch {outside[0]} would lie at ({x}, {y}), outside "
            "the image. These bounds are of another slide, or the coordinates already count from them: use 0, 0."
        )
