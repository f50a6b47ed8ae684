"""The files of one drawn slide: a pyramidal TIFF, masks, and ASAP annotations.

The evidence is written as polygons in level-0 pixels, holes in the group `Exclusion`, as CAMELYON16 has them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from gcemil.errors import MissingExtraError
from gcemil.files import atomic_write, read_picture, write_bytes
from gcemil.simulation.painting import FINE, LabelMap
from gcemil.slides.contours import trace_outlines
from gcemil.slides.reader import Pixels

EVIDENCE_GROUP, HOLE_GROUP = "Tumor", "Exclusion"
_COLORS = {EVIDENCE_GROUP: "#F4FA58", HOLE_GROUP: "#64FE2E"}
TILE = 256
STEP = 4
_SMALLEST_SIDE = 256
_ZLIB_LEVEL = 1
"""Higher levels save a few percent of space and take twice the time."""
DRAWN_MPP = 0.5
MASK_DOWNSAMPLE = FINE
"""Level-0 pixels per pixel of every mask."""


def build_asap_xml(regions: UInt8[np.ndarray, "h w"], names: Mapping[int, str], *, scale: int) -> bytes:
    """The regions of a mask (numbers from 1, named) as an ASAP file; `scale` level-0 pixels per mask pixel."""
    root = ElementTree.Element("ASAP_Annotations")
    annotations = ElementTree.SubElement(root, "Annotations")
    groups = ElementTree.SubElement(root, "AnnotationGroups")
    for name, color in _COLORS.items():
        group = ElementTree.SubElement(groups, "Group", Name=name, PartOfGroup="None", Color=color)
        ElementTree.SubElement(group, "Attributes")
    holes = []
    for number in sorted(set(np.unique(regions).tolist()) - {0}):
        for outline in trace_outlines(regions == number):
            _add_polygon(annotations, f"{names[number]} {number}", EVIDENCE_GROUP, outline.outer * scale)
            holes += [(f"{names[number]} {number} hole", hole * scale) for hole in outline.holes]
    # Readers paint in the order of the file, so holes come last.
    for name, hole in holes:
        _add_polygon(annotations, name, HOLE_GROUP, hole)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _add_polygon(
    annotations: ElementTree.Element, name: str, group: str, ring: Int[np.ndarray, "k 2"]
) -> None:
    annotation = ElementTree.SubElement(
        annotations, "Annotation", Name=name, Type="Polygon", PartOfGroup=group, Color=_COLORS[group]
    )
    coordinates = ElementTree.SubElement(annotation, "Coordinates")
    for order, (x, y) in enumerate(ring.tolist()):
        ElementTree.SubElement(coordinates, "Coordinate", Order=str(order), X=f"{x:.1f}", Y=f"{y:.1f}")


def write_pyramid_tiff(path: Path, image: Pixels, mpp: float) -> None:
    """Levels of 1, 4, 16, … in one file that appears whole or not at all; equal images give equal bytes."""
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError("tifffile", "wsi") from error
    with atomic_write(path) as temporary, tifffile.TiffWriter(temporary) as writer:
        for level, pixels in enumerate(_pyramid_levels(image)):
            writer.write(
                pixels,
                tile=(TILE, TILE),
                photometric="rgb",
                compression="zlib",
                compressionargs={"level": _ZLIB_LEVEL},
                subfiletype=int(level > 0),
                resolution=(1e4 / (mpp * STEP**level),) * 2,
                resolutionunit="CENTIMETER",
                metadata=None,
                software=False,
            )


def _pyramid_levels(image: Pixels) -> Iterator[UInt8[np.ndarray, "rows columns 3"]]:
    """The image and its reductions by 4, as long as the result has a side of at least 256 pixels."""
    yield image
    while max(image.shape[:2]) // STEP >= _SMALLEST_SIDE:
        image = np.asarray(Image.fromarray(image).reduce(STEP))
        yield image


def write_drawn_slide(
    image: Pixels, labels: LabelMap, folder: Path, slide_id: str, region_names: Mapping[int, str]
) -> None:
    """Masks, annotations and, last, the slide itself; equal slides give equal bytes."""
    tissue = np.where(labels.tissue, np.uint8(255), np.uint8(0))
    for what, mask in (("concept", labels.texture), ("evidence", labels.evidence), ("tissue", tissue)):
        buffer = io.BytesIO()
        Image.fromarray(mask).save(buffer, "PNG")
        write_bytes(mask_path(folder, what, slide_id), buffer.getvalue())
    xml = build_asap_xml(labels.evidence, region_names, scale=MASK_DOWNSAMPLE)
    write_bytes(folder / "annotations" / f"{slide_id}.xml", xml)
    write_pyramid_tiff(slide_path(folder, slide_id), image, DRAWN_MPP)


def slide_path(folder: Path, slide_id: str) -> Path:
    """Where a drawn slide lies."""
    return folder / "slides" / f"{slide_id}.tif"


def mask_path(folder: Path, what: str, slide_id: str) -> Path:
    """Mask of `concept` (index + 1), `evidence` (region number) or `tissue` (255)."""
    return folder / "masks" / what / f"{slide_id}.png"


def read_drawn_mask(path: Path) -> UInt8[np.ndarray, "h w"]:
    """The numbers in a mask that was written with a drawn slide."""
    mask: UInt8[np.ndarray, "h w"] = read_picture(path, "L")
    return mask
