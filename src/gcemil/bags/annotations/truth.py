"""Annotations of a cohort as its truth/<slide>.h5, so that localisation can be measured.

  overlap_i   share of patch i inside the annotation
  evidence_i  overlap_i >= 1 %                                  (the paper's rule for CAMELYON16)
  region_i    8-connected region of evidence patches, 0 = none

A slide <id> is annotated by <id>.xml (ASAP), by <id>.geojson or .json (QuPath), or by <id>_mask or
<id> with .tif, .tiff or .png. A slide without a file is normal only where its label says so; any
other is left without truth and listed in the report.

In a GeoJSON file every class marks evidence, unless `roles` states which do: if it calls a class
tumour, only such classes count; a class it calls exclusion is cut out of all others. Classes whose
name ends in * are those that QuPath itself ignores, and count only by name; objects without a class
are named 'unclassified' there. A point marks all of the patch that holds it. What counted and what
was left out is reported with counts.

Every annotation is read before the first file is written, so a damaged one leaves the truth as it
was. Existing truth is replaced only on request; if it equals what would be written, it stays, so
that a command that was stopped can be given again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.bags.annotations.shapes import (
    Annotation,
    Corners,
    Overlap,
    Role,
    covered_share,
    mask_share,
    name_shapes,
    read_asap,
    read_mask,
)
from gcemil.bags.bag import connected_regions, patch_cells
from gcemil.bags.cohort import Cohort, SlideRow, read_slide_attributes, read_slide_bounds
from gcemil.errors import CohortError, InputError, UsageError
from gcemil.files import lock_folder
from gcemil.slides.geojson import merge_areas, read_objects

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


def write_truth(
    cohort: Cohort,
    annotations: Path,
    *,
    negative_class: str | None = None,
    min_overlap: float = MIN_OVERLAP,
    roles: Mapping[str, Role] | None = None,
    downsample: float | None = None,
    tumour_values: Sequence[int] | None = None,
    microns_per_pixel: float | Mapping[str, float] | None = None,
    replace: bool = False,
) -> TruthReport:
    """Truth files for every annotated slide and every slide of the negative class."""
    if not annotations.is_dir():
        problem = "is not a folder" if annotations.exists() else "does not exist"
        raise UsageError(
            f"{annotations} {problem}. Give the folder that holds the annotation files."
        )
    if negative_class is not None and negative_class not in cohort.card.classes:
        raise UsageError(
            f"'{negative_class}' is not a class of {cohort.folder}; it has: "
            f"{', '.join(cohort.card.classes) or 'none'}."
        )
    if not 0 < min_overlap <= 1:
        raise UsageError(
            f"The smallest overlap of a positive patch lies in (0, 1], got {min_overlap}."
        )
    truth_of: dict[Path, SlideTruth] = {}
    annotated: list[str] = []
    normal: list[str] = []
    missing, notes = [], []
    for row in cohort.slides:
        candidates = (annotations / f"{row.slide_id}{ending}" for ending in _ENDINGS)
        file = next((path for path in candidates if path.is_file()), None)
        is_negative = negative_class is not None and row.label == negative_class
        if file is None and not is_negative:
            missing.append(row.slide_id)
            continue
        (normal if file is None else annotated).append(row.slide_id)
        attributes = read_slide_attributes(cohort.folder, row.slide_id)
        coords, size, remarks = _read_slide_grid(cohort, row, attributes)
        overlap = np.zeros(len(coords))
        if file is not None:
            if file.suffix in {".xml", *_OUTLINES}:
                if file.suffix == ".xml":
                    annotation = read_asap(file, roles=roles)
                else:
                    origin = read_slide_bounds(cohort.folder, row.slide_id)
                    annotation = _read_geojson(file, roles or {}, origin)
                overlap = covered_share(coords, size, annotation)
                remarks += annotation.notes
            else:
                mask = read_mask(file, downsample=downsample, tumour_values=tumour_values)
                overlap = mask_share(coords, size, mask)
            # Annotation and label do not fit together: the annotation stands.
            if is_negative and overlap.any():
                remarks.append(f"labelled {negative_class}, yet {file.name} marks tumour")
            elif not is_negative and not overlap.any():
                remarks.append(f"{file.name} marks tumour on none of its patches")
        # The user's number, else that of the features.
        mpp = microns_per_pixel
        mpp = mpp.get(row.slide_id) if isinstance(mpp, Mapping) else mpp
        mpp = store.stated_number(attributes, "level0_mpp") if mpp is None else mpp
        source = "negative class" if file is None else file.name
        truth_of[cohort.truth_file(row.slide_id)] = _build_truth(
            coords, size, overlap, min_overlap, source=source, mpp=mpp
        )
        notes += [f"{row.slide_id}: {remark}." for remark in remarks]
    _write_files(cohort, truth_of, replace=replace)
    return TruthReport(tuple(annotated), tuple(normal), tuple(missing), tuple(notes))


def _read_slide_grid(
    cohort: Cohort, row: SlideRow, attributes: Mapping[str, Any]
) -> tuple[Corners, int, list[str]]:
    """Coordinates and patch size in level-0 pixels, and what was assumed about them."""
    path = cohort.feature_file(row.slide_id)
    _, coords = store.read_patch_layout(path)
    if coords is None:
        raise InputError(
            f"{path} has no coordinates, so its patches cannot be laid over an annotation."
        )
    size = cohort.slide_patch_size(row.slide_id, coords)
    if size is None:
        raise CohortError(
            f"{cohort.folder / 'cohort.yaml'} has no patch_size_level0 and the patches of "
            f"'{row.slide_id}' have no neighbours to derive it from. "
            "Write the patch size into cohort.yaml."
        )
    remarks = []
    if not cohort.patch_size and not attributes.get("patch_size_level0"):
        remarks = [f"patch size taken from the grid step, {size} level-0 pixels"]
    return coords, size, remarks


def _read_geojson(path: Path, roles: Mapping[str, Role], origin: store.Bounds) -> Annotation:
    """The classes that count, without those that are cut out, and notes on which these are."""
    objects = read_objects(path)
    if UNCLASSIFIED in roles:
        objects = [replace(item, class_name=item.class_name or UNCLASSIFIED) for item in objects]
    shapes = name_shapes(objects, origin)
    counts = Counter(item.class_name for item in objects if item.class_name)
    chosen = {name: roles[name] for name in counts if name in roles}
    if "tumour" not in roles.values():
        # QuPath itself ignores classes whose name ends in *.
        counted: dict[str, Role] = {name: "tumour" for name in counts if not name.endswith("*")}
        chosen = counted | chosen
    words = {"tumour": "evidence", "exclusion": "cut out", None: "left out"}
    listed = {
        word: ", ".join(f"'{name}' ({counts[name]})" for name in counts if chosen.get(name) == role)
        for role, word in words.items()
    }
    holes = merge_areas(
        area for name, area in shapes.areas.items() if chosen.get(name) == "exclusion"
    )
    marking = {name for name, role in chosen.items() if role == "tumour"}
    return Annotation(
        {
            name: shapely.difference(area, holes)
            for name, area in shapes.areas.items()
            if name in marking
        },
        {name: points for name, points in shapes.points.items() if name in marking},
        (
            *(f"{word}: {names}" for word, names in listed.items() if names),
            *(f"{note} left out" for note in shapes.notes),
        ),
    )


def _build_truth(
    coords: Corners,
    patch_size: int,
    overlap: Overlap,
    min_overlap: float,
    *,
    source: str,
    mpp: float | None,
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


def _write_files(cohort: Cohort, truth_of: Mapping[Path, SlideTruth], *, replace: bool) -> None:
    """All truth files; other truth that is there already is refused before the first is written."""
    with lock_folder(cohort.folder):
        existing = [
            path for row in cohort.slides if (path := cohort.truth_file(row.slide_id)).exists()
        ]
        same = {path for path in existing if path in truth_of and _holds_same(path, truth_of[path])}
        if (others := [path for path in existing if path not in same]) and not replace:
            raise CohortError(
                f"{cohort.folder} is annotated already: {others[0]} exists and differs "
                f"({len(others)} truth files in all). "
                "Add --force to replace them."
            )
        for path, truth in truth_of.items():
            if path not in same:
                store.write(path, *truth)


def _holds_same(path: Path, truth: SlideTruth) -> bool:
    datasets, attributes = truth
    try:
        return store.attributes(path) == attributes and all(
            np.array_equal(store.read(path, name), values) for name, values in datasets.items()
        )
    except InputError:
        return False
