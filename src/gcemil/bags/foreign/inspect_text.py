"""What a table, a JSON file, a GeoJSON file or a bare array is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from gcemil.bags.foreign.inspection import Inspection
from gcemil.bags.foreign.rawtable import RawTable, read_raw_table
from gcemil.bags.foreign.splits import has_splits, read_splits
from gcemil.bags.foreign.tables import read_labels
from gcemil.bags.foreign.tensorfile import tensor_shape
from gcemil.bags.foreign.torchmil import read_array
from gcemil.errors import InputError, UsageError
from gcemil.files import read_json


def inspect_table(path: Path) -> Inspection:
    """The dialect of a label table, or the kind of split file."""
    table = read_raw_table(path)
    facts = [
        ("columns", ", ".join(name or "(index)" for name in table.columns)),
        ("rows", str(len(table.rows))),
    ]
    if table.has("minx", "miny", "width", "height"):
        return Inspection(path, "wsinfer", "wsinfer patch predictions", tuple(facts), (), None)
    if table.has("PATIENT") and not table.has("FILENAME"):
        command = f"gcemil import FEATURES --labels {path} --slide-table SLIDES --target COLUMN --out COHORT"
        return Inspection(path, "labels", "STAMP clinical table", tuple(facts), (), command)
    try:
        labels = read_labels(path)
    except (InputError, UsageError) as error:
        return _not_labels(path, table, facts, error)
    facts += [("task", labels.task), ("slides with a target", str(len(labels.rows)))]
    facts += [("classes", ", ".join(labels.classes))] if labels.classes else []
    facts += [("assumed", line) for line in labels.assumptions]
    command = f"gcemil import FEATURES --labels {path} --out COHORT"
    return Inspection(path, "labels", f"{labels.dialect} label table", tuple(facts), labels.excluded, command)


def inspect_json(path: Path) -> Inspection:
    """STAMP's splits.json, or nothing we know."""
    try:
        splits = read_splits(path)
    except InputError:
        return Inspection(path, "unknown", "JSON file gcemil does not know", (), (), None)
    command = f"gcemil import FEATURES --labels TABLE --splits {path} --out COHORT"
    return Inspection(path, "splits", "STAMP splits", (("folds", str(len(splits.folds))),), (), command)


def inspect_geojson(path: Path) -> Inspection:
    """A GeoJSON file, with what would make QuPath fail or misread it."""
    try:
        content = read_json(path)
        features = content["features"] if isinstance(content, dict) else content
        problems = [problem for feature in features for problem in _qupath_problems(feature)]
    except (InputError, KeyError, TypeError, AttributeError) as error:
        return Inspection(
            path, "unknown", "No GeoJSON feature collection", (("because", repr(error)),), (), None
        )
    counted = tuple(f"{problem} ({count} objects)" for problem, count in Counter(problems).items())
    return Inspection(
        path, "geojson", "GeoJSON annotations", (("objects", str(len(features))),), counted, None
    )


def inspect_array(path: Path) -> Inspection:
    """A bare tensor (.pt) or array (.npy) of features."""
    shape = tensor_shape(path) if path.suffix == ".pt" else tuple(read_array(path, "features").shape)
    kind, title = (
        ("clam_tensor", "CLAM features as a bare tensor")
        if path.suffix == ".pt"
        else ("array", "NumPy array (torchmil)")
    )
    problems = (
        ("No coordinates in this file: keep CLAM's coords folder beside it.",) if path.suffix == ".pt" else ()
    )
    command = f"gcemil import {path.parent} --labels TABLE --out COHORT" if path.suffix == ".pt" else None
    return Inspection(path, kind, title, (("shape", str(shape)),), problems, command)


def _not_labels(path: Path, table: RawTable, facts: list[tuple[str, str]], error: Exception) -> Inspection:
    if has_splits(table):
        command = f"gcemil import FEATURES --labels TABLE --splits {path} --out COHORT"
        return Inspection(path, "splits", "Split table", tuple(facts), (), command)
    return Inspection(path, "table", "Table", tuple(facts), (str(error),), None)


def _qupath_problems(feature: dict[str, Any]) -> list[str]:
    properties = feature.get("properties") or {}
    found = []
    classification = properties.get("classification")
    if (
        isinstance(classification, dict)
        and "color" not in classification
        and "colorRGB" not in classification
    ):
        found.append("A classification without colour: QuPath refuses the file.")
    if "objectType" in feature and "objectType" not in properties:
        found.append("objectType stands outside properties: QuPath imports an annotation instead.")
    return found
