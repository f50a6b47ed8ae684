"""One drawn slide with its truth, and the files it becomes: a pyramidal TIFF, masks, and ASAP annotations.

The evidence is written as polygons in level-0 pixels, holes in the group `Exclusion`, as CAMELYON16 has them. Some slides have a pen
mark on the glass: a stroke beside the tissue, as people leave when they point at something.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Bool, Float32, Int, UInt8
from numpy.random import Generator
from PIL import Image, ImageDraw

from gcemil.errors import MissingExtraError
from gcemil.files import read_picture, whole_file, write_bytes
from gcemil.simulation.draw import Dyes, draw_tissue
from gcemil.simulation.label_map import FINE, LabelMap, SquarePlan, grow_label_map
from gcemil.simulation.recipes import Recipe
from gcemil.slides.contours import trace_outlines
from gcemil.slides.reader import Pixels

EVIDENCE_GROUP, HOLE_GROUP = "Tumor", "Exclusion"
_COLORS = {EVIDENCE_GROUP: "#F4FA58", HOLE_GROUP: "#64FE2E"}


_PEN_COLOURS = ((28, 60, 150), (20, 120, 70), (30, 30, 34))
OPACITY = 0.85
_STROKE_WIDTHS = (40, 80)
"""Thinnest and thickest stroke in level-0 pixels."""
_TRIES = 40
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


def add_pen_mark(image: Pixels, tissue: Bool[np.ndarray, "rows columns"], generator: Generator) -> None:
    """Draw the stroke of several random ones that touches the least tissue."""
    strokes = [_draw_stroke(tissue.shape, generator) for _ in range(_TRIES)]
    stroke = min(strokes, key=lambda drawn: float((drawn * tissue).sum()))
    colour = np.array(_PEN_COLOURS[int(generator.integers(len(_PEN_COLOURS)))], np.float32)
    rows, columns = np.nonzero(stroke > 0)
    top, bottom = int(rows.min()), int(rows.max()) + 1
    left, right = int(columns.min()), int(columns.max()) + 1
    small = Image.fromarray(stroke[top:bottom, left:right])
    size = ((right - left) * FINE, (bottom - top) * FINE)
    opacity = OPACITY * np.asarray(small.resize(size, Image.Resampling.BILINEAR))[..., None]
    under = image[top * FINE : bottom * FINE, left * FINE : right * FINE]
    under[:] = np.rint(under * (1 - opacity) + colour * opacity).astype(np.uint8)


def _draw_stroke(shape: tuple[int, ...], generator: Generator) -> Float32[np.ndarray, "h w"]:
    """A bent line near a side of the slide, from 0 (glass) to 1 (ink)."""
    height, width = shape[0], shape[1]
    line = Image.new("L", (width, height))
    start = generator.uniform(0.05, 0.45)
    along = np.linspace(start, start + generator.uniform(0.25, 0.5), 12)
    across = generator.uniform(0.02, 0.14) + 0.02 * np.cumsum(generator.normal(0, 0.5, size=12))
    if generator.random() < 0.5:
        across = 1 - across
    points = np.stack([along, across] if generator.random() < 0.5 else [across, along], axis=1)
    thickness = int(generator.uniform(*_STROKE_WIDTHS) / FINE)
    path = [(float(x), float(y)) for x, y in points * (width, height)]
    ImageDraw.Draw(line).line(path, fill=255, width=thickness, joint="curve")
    return (np.asarray(line) / np.float32(255)).astype(np.float32)


def write_pyramid_tiff(path: Path, image: Pixels, mpp: float) -> None:
    """Levels of 1, 4, 16, … in one file that appears whole or not at all; equal images give equal bytes."""
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError("tifffile", "wsi") from error
    with whole_file(path) as temporary, tifffile.TiffWriter(temporary) as writer:
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


@dataclass(frozen=True, eq=False)
class DrawnSlide:
    """Level 0 of a slide at 0.5 micrometres per pixel, and what is where."""

    image: Pixels
    labels: LabelMap


def draw_slide(
    plan: SquarePlan, recipes: Sequence[Recipe], dyes: Dyes, generator: Generator, *, pen: bool = False
) -> DrawnSlide:
    """A slide that holds what the plan says, with a pen mark on the glass where asked for."""
    labels = grow_label_map(plan, generator)
    image = draw_tissue(labels, recipes, dyes, generator)
    if pen:
        add_pen_mark(image, labels.tissue, generator)
    return DrawnSlide(image, labels)


def write_drawn_slide(
    slide: DrawnSlide, folder: Path, slide_id: str, region_names: Mapping[int, str]
) -> None:
    """Masks, annotations and, last, the slide itself; equal slides give equal bytes."""
    labels = slide.labels
    _save_mask(mask_path(folder, "concept", slide_id), labels.texture)
    _save_mask(mask_path(folder, "evidence", slide_id), labels.evidence)
    _save_mask(mask_path(folder, "tissue", slide_id), np.where(labels.tissue, np.uint8(255), np.uint8(0)))
    xml = build_asap_xml(labels.evidence, region_names, scale=MASK_DOWNSAMPLE)
    write_bytes(folder / "annotations" / f"{slide_id}.xml", xml)
    write_pyramid_tiff(slide_path(folder, slide_id), slide.image, DRAWN_MPP)


def slide_path(folder: Path, slide_id: str) -> Path:
    """Where a drawn slide lies."""
    return folder / "slides" / f"{slide_id}.tif"


def mask_path(folder: Path, what: str, slide_id: str) -> Path:
    """Mask of `concept` (index + 1), `evidence` (region number) or `tissue` (255)."""
    return folder / "masks" / what / f"{slide_id}.png"


def _save_mask(path: Path, mask: UInt8[np.ndarray, "h w"]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    write_bytes(path, buffer.getvalue())


def read_drawn_mask(path: Path) -> UInt8[np.ndarray, "h w"]:
    """The numbers in a mask that was written with a drawn slide."""
    mask: UInt8[np.ndarray, "h w"] = read_picture(path, "L")
    return mask
