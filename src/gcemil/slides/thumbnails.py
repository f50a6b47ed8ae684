"""Pictures to check by eye: the slide, what was kept of it, and a sheet of all slides."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw
from scipy import ndimage

from gcemil.files import write_bytes
from gcemil.slides.grid import PatchGrid
from gcemil.slides.reader import Pixels, SlideReader, read_overview
from gcemil.slides.tissue import TissueMask

LONGEST_SIDE = 1024
_OUTLINE_COLOR = (0, 150, 80)
_PATCH_COLOR = (40, 70, 200)
_FAULT_COLOR = (190, 30, 30)
CELL, CAPTION, COLUMNS, ROWS = 240, 30, 6, 8


@dataclass(frozen=True)
class SheetEntry:
    """One slide on a contact sheet."""

    caption: str
    picture: Path | None
    is_fault: bool = False


def read_thumbnail(slide: SlideReader, longest: int = LONGEST_SIDE) -> Pixels:
    """The scanned part of the slide, its longer side at most so many pixels."""
    downsample = max(1.0, max(slide.bounds.width, slide.bounds.height) / longest)
    return read_overview(slide, slide.mpp * downsample)


def draw_kept_tissue(small: Pixels, tissue: TissueMask, grid: PatchGrid) -> Pixels:
    """The thumbnail with outlines of tissue and patches; the rest is pale."""
    height, width = small.shape[:2]
    inside = np.asarray(
        Image.fromarray(tissue.kept).resize((width, height), Image.Resampling.NEAREST)
    )
    pale = np.where(inside[..., None], small, (small * 0.4 + 255 * 0.6).astype(np.uint8))
    edge = ndimage.binary_dilation(inside) & ~inside
    pale[edge] = _OUTLINE_COLOR
    image = Image.fromarray(pale)
    draw = ImageDraw.Draw(image)
    scale_x, scale_y = width / tissue.bounds.width, height / tissue.bounds.height
    corners = (grid.coords - (tissue.bounds.x, tissue.bounds.y)) * (scale_x, scale_y)
    wide, high = grid.level0_side * scale_x, grid.level0_side * scale_y
    for x, y in corners.tolist():
        draw.rectangle((x, y, x + wide, y + high), outline=_PATCH_COLOR)
    return np.asarray(image)


def save_jpeg(path: Path, image: Pixels) -> None:
    """A JPEG that appears whole or not at all."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=88)
    write_bytes(path, buffer.getvalue())


def draw_contact_sheets(entries: Sequence[SheetEntry]) -> list[UInt8[np.ndarray, "_ _ 3"]]:
    """All slides side by side, 48 to a sheet."""
    per_sheet = COLUMNS * ROWS
    return [
        _draw_sheet(entries[start : start + per_sheet])
        for start in range(0, len(entries), per_sheet)
    ]


def _draw_sheet(entries: Sequence[SheetEntry]) -> Pixels:
    columns = min(COLUMNS, len(entries))
    rows = -(-len(entries) // columns)
    sheet = Image.new("RGB", (columns * CELL, rows * (CELL + CAPTION)), "white")
    draw = ImageDraw.Draw(sheet)
    for position, entry in enumerate(entries):
        left, top = position % columns * CELL, position // columns * (CELL + CAPTION)
        if entry.picture is not None and entry.picture.is_file():
            with Image.open(entry.picture) as picture:
                picture.thumbnail((CELL - 8, CELL - 8))
                sheet.paste(
                    picture,
                    (left + (CELL - picture.width) // 2, top + (CELL - picture.height) // 2),
                )
        color = _FAULT_COLOR if entry.is_fault else (0, 0, 0)
        draw.rectangle(
            (left, top, left + CELL - 1, top + CELL + CAPTION - 1), outline=(210, 210, 210)
        )
        for line, text in enumerate(entry.caption.split("\n")[:2]):
            # The font that comes with PIL may be a bitmap without other letters.
            plain = text.encode("ascii", "replace").decode()
            draw.text((left + 5, top + CELL + 13 * line), plain[:38], fill=color)
    return np.asarray(sheet)
