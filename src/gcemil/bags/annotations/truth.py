"""Annotations of a cohort as its truth/<slide>.h5, so that localisation can be measured.

  overlap_i   share of patch i inside the annotation
  evidence_i  overlap_i >= 1 %                                  (the paper's rule for CAMELYON16)
  region_i    8-connected region of evidence patches, 0 = none

A slide <id> is annotated by <id>.xml (ASAP), by <id>.geojson or .json (QuPath), or by <id>_mask or <id> with .tif, .tiff or
.png. A slide without a file is
normal only where its label says so; any other is left without truth and named in the report.

Of a GeoJSON file every class marks evidence, unless `roles` says which do: where it calls one class tumour, only such
classes count; a class it calls exclusion is cut out of all others. Classes whose name ends in * are those that QuPath
itself ignores, and count only by name; objects without a class are named 'unclassified' there. A point marks all of the
patch that holds it. What counted and what was left out is said with counts.

Every annotation is read before the first file is written, so a damaged one leaves the truth as it was. Truth that is
there already is replaced only when asked; where it is what would be written, it stays, so that a command that was
stopped can be given again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcemil.bags import arrays, store
from gcemil.bags.annotations.concepts import covered_share, name_shapes
from gcemil.bags.annotations.shapes import (
    Corners,
    Overlap,
    Role,
    mask_overlap,
    polygon_overlap,
    read_asap,
    read_mask,
)
from gcemil.bags.arrays import Bounds
from gcemil.bags.bag import connected_regions, grid_stride, patch_cells
from gcemil.bags.cohort import Cohort, SlideRow, read_slide_bounds
from gcemil.errors import CohortError, InputError, UsageError
from gcemil.files import lock_folder
from gcemil.slides.geojson import GeoObject, read_objects

MIN_OVERLAP = 0.01
"""A patch is positive when at least this share of it lies inside the annotation."""
_OUTLINES = (".geojson", ".json")
_ENDINGS = (".xml", *_OUTLINES, "_mask.tif", "_mask.tiff", "_mask.png", ".tif", ".tiff", ".png")
"""In the order of preference: outlines are finer than masks."""
_CONCEPTS = ("none", "tumour")
UNCLASSIFIED = "unclassified"
"""The name by which `roles` calls objects of a GeoJSON file that have no class."""


@dataclass(frozen=True)
class TruthReport:
    """What was written, and every slide that has no truth."""

    annotated: tuple[str, ...]
    normal: tuple[str, ...]
    """Slides of the negative class: no patch is evidence."""
    missing: tuple[str, ...]
    """Neither annotated nor of the negative class."""
    notes: tuple[str, ...]


SlideTruth = tuple[dict[str, NDArray[Any]], dict[str, str | int | float | bool]]
"""Datasets and attributes of truth/<slide>.h5."""


@dataclass(frozen=True)
class MaskReading:
    """How mask images are to be read; both are found in the file where it says them."""

    downsample: float | None = None
    tumour_values: tuple[int, ...] | None = None


def write_truth(
    cohort: Cohort,
    annotations: Path,
    *,
    negative_class: str | None = None,
    min_overlap: float = MIN_OVERLAP,
    roles: Mapping[str, Role] | None = None,
    masks: MaskReading | None = None,
    microns_per_pixel: float | Mapping[str, float] | None = None,
    replace: bool = False,
) -> TruthReport:
    """Truth files for every annotated slide and every slide of the negative class."""
    if not annotations.is_dir():
        problem = "is not a folder" if annotations.exists() else "does not exist"
        raise UsageError(f"{annotations} {problem}. Give the folder that holds the annotation files.")
    if negative_class is not None and negative_class not in cohort.card.classes:
        raise UsageError(
            f"'{negative_class}' is not a class of {cohort.folder}; it has: {', '.join(cohort.card.classes) or 'none'}."
        )
    if not 0 < min_overlap <= 1:
        raise UsageError(f"The smallest overlap of a positive patch lies in (0, 1], got {min_overlap}.")
    found: dict[Path, SlideTruth] = {}
    annotated: list[str] = []
    normal: list[str] = []
    missing: list[str] = []
    notes: list[str] = []
    for row in cohort.slides:
        candidates = (annotations / f"{row.slide_id}{ending}" for ending in _ENDINGS)
        file = next((path for path in candidates if path.is_file()), None)
        if file is None and (negative_class is None or row.label != negative_class):
            missing.append(row.slide_id)
            continue
        coords, size, remarks = _read_slide_grid(cohort, row)
        overlap, source = np.zeros(len(coords)), "negative class"
        if file is not None:
            origin, source = read_slide_bounds(cohort.folder, row.slide_id), file.name
            overlap, more = _measure_overlap(
                file, coords, size, roles=roles or {}, masks=masks or MaskReading(), origin=origin
            )
            remarks = [*remarks, *more, *_find_contradictions(row, file, overlap, negative_class)]
        # What the user says, else what the features were made with.
        given = microns_per_pixel
        mpp = given.get(row.slide_id) if isinstance(given, Mapping) else given
        if mpp is None:
            mpp = _stated_number(cohort.feature_file(row.slide_id), "level0_mpp")
        found[cohort.truth_file(row.slide_id)] = _build_truth(
            coords, size, overlap, min_overlap=min_overlap, source=source, mpp=mpp
        )
        (normal if file is None else annotated).append(row.slide_id)
        notes += [f"{row.slide_id}: {remark}." for remark in remarks]
    _write_files(cohort, found, replace=replace)
    return TruthReport(tuple(annotated), tuple(normal), tuple(missing), tuple(notes))


def _read_slide_grid(cohort: Cohort, row: SlideRow) -> tuple[Corners, int, list[str]]:
    """Coordinates and patch size in level-0 pixels, and what was assumed about them."""
    path = cohort.feature_file(row.slide_id)
    _, coords = arrays.read_patch_layout(path)
    if coords is None:
        raise InputError(f"{path} has no coordinates, so its patches cannot be laid over an annotation.")
    if cohort.patch_size is not None:
        return coords, int(cohort.patch_size), []
    # Where scanners differ, every slide has its own.
    stated = _stated_number(path, "patch_size_level0")
    if stated is not None:
        return coords, round(stated), []
    stride = grid_stride(coords)
    if stride is None:
        raise CohortError(
            f"{cohort.folder / 'cohort.yaml'} has no patch_size_level0 and the patches of '{row.slide_id}' have no "
            "neighbours to tell it. Write the patch size into cohort.yaml."
        )
    return coords, round(stride), [f"patch size taken from the grid step, {round(stride)} level-0 pixels"]


def _stated_number(path: Path, name: str) -> float | None:
    """An attribute of the coordinates in a feature file, where it is a number."""
    return arrays.stated_number(store.attributes(path, "coords"), name)


def _measure_overlap(
    file: Path,
    coords: Corners,
    patch_size: int,
    *,
    roles: Mapping[str, Role],
    masks: MaskReading,
    origin: Bounds,
) -> tuple[Overlap, list[str]]:
    """Overlap of every patch with the annotation, and what was left out of it."""
    if file.suffix == ".xml":
        polygons, skipped = read_asap(file, roles=roles)
        return polygon_overlap(coords, patch_size, polygons), skipped
    if file.suffix in _OUTLINES:
        return _measure_geojson(read_objects(file), coords, patch_size, roles, origin)
    mask = read_mask(file, downsample=masks.downsample, tumour_values=masks.tumour_values)
    return mask_overlap(coords, patch_size, mask), []


def _measure_geojson(
    objects: Sequence[GeoObject], coords: Corners, patch_size: int, roles: Mapping[str, Role], origin: Bounds
) -> tuple[Overlap, list[str]]:
    """Overlap with the classes that count, and which those are."""
    if UNCLASSIFIED in roles:
        objects = [replace(one, class_name=one.class_name or UNCLASSIFIED) for one in objects]
    shapes = name_shapes(objects, origin)
    counts = Counter(one.class_name for one in objects if one.class_name)
    chosen = {name: roles[name] for name in counts if name in roles}
    if "tumour" not in roles.values():
        # QuPath itself ignores classes whose name ends in *.
        counted: dict[str, Role] = {name: "tumour" for name in counts if not name.endswith("*")}
        chosen = counted | chosen
    overlap = covered_share(coords, patch_size, shapes, chosen)
    words = {"tumour": "evidence", "exclusion": "cut out", None: "left out"}
    listed = {
        word: ", ".join(f"'{name}' ({counts[name]})" for name in counts if chosen.get(name) == role)
        for role, word in words.items()
    }
    return overlap, [
        *(f"{word}: {names}" for word, names in listed.items() if names),
        *(f"{note} left out" for note in shapes.notes),
    ]


def _find_contradictions(
    row: SlideRow, file: Path, overlap: Overlap, negative_class: str | None
) -> Sequence[str]:
    """Annotations and labels that do not fit together; the annotation stands."""
    if negative_class is not None and row.label == negative_class and overlap.any():
        return [f"labelled {negative_class}, yet {file.name} marks tumour"]
    if row.label != negative_class and not overlap.any():
        return [f"{file.name} marks tumour on none of its patches"]
    return []


def _build_truth(
    coords: Corners, patch_size: int, overlap: Overlap, *, min_overlap: float, source: str, mpp: float | None
) -> SlideTruth:
    evidence = overlap >= min_overlap
    attributes: dict[str, str | int | float | bool] = {
        "source": source,
        "min_overlap": min_overlap,
        "concepts": json.dumps(_CONCEPTS),
    }
    if mpp is not None:
        attributes["microns_per_pixel"] = float(mpp)
    datasets: dict[str, NDArray[Any]] = {
        "evidence": evidence.astype(np.uint8),
        "concept": evidence.astype(np.uint8),
        "region": connected_regions(patch_cells(coords, patch_size), evidence).astype(np.uint16),
        "overlap": overlap.astype(np.float32),
    }
    return datasets, attributes


def _write_files(cohort: Cohort, found: Mapping[Path, SlideTruth], *, replace: bool) -> None:
    """All truth files; other truth that is there already is refused before the first is written."""
    with lock_folder(cohort.folder):
        existing = [path for row in cohort.slides if (path := cohort.truth_file(row.slide_id)).exists()]
        same = {path for path in existing if path in found and _holds_same(path, found[path])}
        if (others := [path for path in existing if path not in same]) and not replace:
            raise CohortError(
                f"{cohort.folder} is annotated already: {others[0]} exists and says something else ({len(others)} truth files in all). "
                "Add --force to replace them."
            )
        for path, truth in found.items():
            if path not in same:
                store.write(path, *truth)


def _holds_same(path: Path, truth: SlideTruth) -> bool:
    """Whether the file is what would be written."""
    datasets, attributes = truth
    try:
        return store.attributes(path) == attributes and all(
            np.array_equal(store.read(path, name), values) for name, values in datasets.items()
        )
    except InputError:
        return False
