"""One drawn slide with its truth, and the files it becomes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy.random import Generator
from PIL import Image

from gcemil.files import read_picture, write_bytes
from gcemil.slides.drawn.annotations import asap_xml
from gcemil.slides.drawn.draw import draw_tissue
from gcemil.slides.drawn.label_map import FINE, LabelMap, SquarePlan, label_map
from gcemil.slides.drawn.pen import add_pen_mark
from gcemil.slides.drawn.pyramid import write_pyramid
from gcemil.slides.drawn.recipes import Recipe
from gcemil.slides.drawn.stains import Dyes
from gcemil.slides.reader import Pixels

DRAWN_MPP = 0.5
MASK_DOWNSAMPLE = FINE
"""Level-0 pixels per pixel of every mask."""


@dataclass(frozen=True, eq=False)
class DrawnSlide:
    """Level 0 of a slide at 0.5 micrometres per pixel, and what is where."""

    image: Pixels
    labels: LabelMap


def draw_slide(
    plan: SquarePlan, recipes: Sequence[Recipe], dyes: Dyes, generator: Generator, *, pen: bool = False
) -> DrawnSlide:
    """A slide that holds what the plan says, with a pen mark on the glass where asked for."""
    labels = label_map(plan, generator)
    image = draw_tissue(labels, recipes, dyes, generator)
    if pen:
        add_pen_mark(image, labels.tissue, generator)
    return DrawnSlide(image, labels)


def write_drawn_slide(
    slide: DrawnSlide, folder: Path, slide_id: str, region_names: Mapping[int, str]
) -> None:
    """Masks, annotations and, last, the slide itself; equal slides give equal bytes."""
    labels = slide.labels
    save_mask(mask_path(folder, "concept", slide_id), labels.texture)
    save_mask(mask_path(folder, "evidence", slide_id), labels.evidence)
    save_mask(mask_path(folder, "tissue", slide_id), np.where(labels.tissue, np.uint8(255), np.uint8(0)))
    xml = asap_xml(labels.evidence, region_names, scale=MASK_DOWNSAMPLE)
    write_bytes(folder / "annotations" / f"{slide_id}.xml", xml)
    write_pyramid(slide_path(folder, slide_id), slide.image, DRAWN_MPP)


def slide_path(folder: Path, slide_id: str) -> Path:
    return folder / "slides" / f"{slide_id}.tif"


def mask_path(folder: Path, what: str, slide_id: str) -> Path:
    """Mask of `concept` (index + 1), `evidence` (region number) or `tissue` (255)."""
    return folder / "masks" / what / f"{slide_id}.png"


def save_mask(path: Path, mask: UInt8[np.ndarray, "h w"]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    write_bytes(path, buffer.getvalue())


def read_drawn_mask(path: Path) -> UInt8[np.ndarray, "h w"]:
    mask: UInt8[np.ndarray, "h w"] = read_picture(path, "L")
    return mask
