"""Evidence as ASAP annotations: polygons in level-0 pixels, holes in the group `Exclusion`, as CAMELYON16 has them."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Int, UInt8

from gcemil.slides.contours import outlines

EVIDENCE_GROUP, HOLE_GROUP = "Tumor", "Exclusion"
COLORS = {EVIDENCE_GROUP: "#F4FA58", HOLE_GROUP: "#64FE2E"}


def asap_xml(regions: UInt8[np.ndarray, "h w"], names: Mapping[int, str], *, scale: int) -> bytes:
    """The regions of a mask (numbers from 1, named) as an ASAP file; `scale` level-0 pixels per mask pixel."""
    root = ElementTree.Element("ASAP_Annotations")
    annotations = ElementTree.SubElement(root, "Annotations")
    groups = ElementTree.SubElement(root, "AnnotationGroups")
    for name, color in COLORS.items():
        group = ElementTree.SubElement(groups, "Group", Name=name, PartOfGroup="None", Color=color)
        ElementTree.SubElement(group, "Attributes")
    holes = []
    for number in sorted(set(np.unique(regions).tolist()) - {0}):
        for outline in outlines(regions == number):
            _add(annotations, f"{names[number]} {number}", EVIDENCE_GROUP, outline.outer * scale)
            holes += [(f"{names[number]} {number} hole", hole * scale) for hole in outline.holes]
    # Readers paint in the order of the file, so holes come last.
    for name, hole in holes:
        _add(annotations, name, HOLE_GROUP, hole)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _add(annotations: ElementTree.Element, name: str, group: str, ring: Int[np.ndarray, "k 2"]) -> None:
    annotation = ElementTree.SubElement(
        annotations, "Annotation", Name=name, Type="Polygon", PartOfGroup=group, Color=COLORS[group]
    )
    coordinates = ElementTree.SubElement(annotation, "Coordinates")
    for order, (x, y) in enumerate(ring.tolist()):
        ElementTree.SubElement(coordinates, "Coordinate", Order=str(order), X=f"{x:.1f}", Y=f"{y:.1f}")
