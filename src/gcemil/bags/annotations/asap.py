"""ASAP annotation files: polygons in level-0 pixels, and which of them are tumour. No ASAP binaries needed.

  <Annotation Type="Polygon" PartOfGroup="Tumor"><Coordinates><Coordinate Order="0" X="55486.6" Y="59360.2"/>...

Vertices stand in the order of `Order`, whatever their order in the file. The group says what a polygon means: in
CAMELYON16 `_0`, `_1` and `Tumor` are tumour, `_2`, `Exclusion` and `None` are not (holes); in CAMELYON17 `metastases`
and `normal`. A group of another name means what the group it is part of means. Splines count as their control polygon.

An annotation file comes from elsewhere, so nothing in it is expanded or fetched: a document type or an entity
declaration is refused before the parser sees it, and the text is read as UTF-8 whatever its header says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float

from gcemil.errors import InputError
from gcemil.files import read_text

Role = Literal["tumour", "exclusion"]
Vertices = Float[np.ndarray, "v 2"]

GROUP_ROLES: dict[str, Role] = {
    "_0": "tumour",
    "_1": "tumour",
    "Tumor": "tumour",
    "metastases": "tumour",
    "_2": "exclusion",
    "Exclusion": "exclusion",
    "None": "exclusion",
    "normal": "exclusion",
}
AREAS = {"Polygon", "Spline", "Rectangle"}
"""Types that enclose something; dots and measurements do not."""
FORBIDDEN = ("<!DOCTYPE", "<!ENTITY")


@dataclass(frozen=True, eq=False)
class AnnotatedPolygon:
    """One closed outline; the last vertex is joined to the first."""

    name: str
    group: str
    role: Role
    vertices: Vertices


@dataclass(frozen=True, eq=False)
class AsapFile:
    polygons: tuple[AnnotatedPolygon, ...]
    skipped: tuple[str, ...]
    """A line for every annotation that encloses no area."""


def read_asap(path: Path, *, roles: Mapping[str, Role] | None = None) -> AsapFile:
    """The polygons of a file; `roles` adds the meaning of further groups, or changes it."""
    root = parsed(path)
    parents = {group.get("Name", ""): group.get("PartOfGroup", "") for group in root.iter("Group")}
    meaning = {**GROUP_ROLES, **(roles or {})}
    polygons, skipped = [], []
    for position, element in enumerate(root.iter("Annotation")):
        name, group = element.get("Name") or f"annotation {position}", element.get("PartOfGroup", "None")
        kind, vertices = element.get("Type", "Polygon"), vertices_of(element, path)
        if kind not in AREAS or len(vertices) < 3:
            skipped.append(f"'{name}' ({kind}, {len(vertices)} vertices) encloses no area")
            continue
        polygons.append(AnnotatedPolygon(name, group, role_of(group, parents, meaning, path), vertices))
    return AsapFile(tuple(polygons), tuple(skipped))


def parsed(path: Path) -> ElementTree.Element:
    """The root of the document, declarations of types and entities refused."""
    text = read_text(path)
    if any(word in text for word in FORBIDDEN):
        raise InputError(
            f"{path} declares a document type or an entity, which ASAP never writes. It is not read; export it again."
        )
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"{path} is not valid XML ({error}). Export the annotations again.") from error
    if root.tag != "ASAP_Annotations":
        raise InputError(f"{path} is no ASAP file: its root is <{root.tag}>, not <ASAP_Annotations>.")
    return root


def vertices_of(element: ElementTree.Element, path: Path) -> Vertices:
    """Level-0 pixels (x, y), sorted by `Order`."""
    found = element.findall("./Coordinates/Coordinate")
    try:
        rows = [(float(one.attrib["Order"]), float(one.attrib["X"]), float(one.attrib["Y"])) for one in found]
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{path}: annotation '{element.get('Name')}' has a coordinate without a plain number in Order, X or Y ({error})."
        ) from error
    ordered = np.array(sorted(rows, key=lambda row: row[0]), dtype=np.float64).reshape(-1, 3)[:, 1:]
    if not np.isfinite(ordered).all():
        raise InputError(f"{path}: annotation '{element.get('Name')}' has a coordinate that is not finite.")
    return ordered


def role_of(group: str, parents: Mapping[str, str], meaning: Mapping[str, Role], path: Path) -> Role:
    """The meaning of the group, or of the nearest group around it that has one."""
    current, seen = group, set[str]()
    while current not in meaning and current in parents and current not in seen:
        seen.add(current)
        # Every group at the top is part of 'None', which says nothing about it.
        current = "" if parents[current] == "None" else parents[current]
    if current not in meaning:
        raise InputError(
            f"{path}: group '{group}' is neither tumour nor exclusion; known are: {', '.join(sorted(meaning))}. "
            f"Say what it means with roles={{'{group}': 'tumour'}} or 'exclusion'."
        )
    return meaning[current]
