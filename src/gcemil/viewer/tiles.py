"""DeepZoom tiles of a slide: its pixels, else its thumbnail, else the grid of its patches.

Level L shows the frame at 2^(max_level - L) level-0 pixels per pixel, in squares of 256. Without
tissue every patch is a grey square: a colour under a colour scale would be read as part of it.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int
from PIL import Image, ImageDraw

from gcemil.errors import GcemilError, UsageError
from gcemil.exports.overlay import Thumbnail, encode_image
from gcemil.slides.reader import LARGEST_READ, open_slide, read_region

TILE = 256
UNKNOWN_MPP = 0.5
"""For a slide that does not state its pixel size: nothing here is measured in micrometres."""
SMALLEST_SQUARE = 2.0
"""Pixels below which a patch is drawn as one pixel."""
GLASS = (247, 247, 248)
PATCH_GREY = (206, 212, 216)
"""A patch without an image."""
Box = tuple[int, int, int, int]
"""Left, top, right and bottom."""


@dataclass(frozen=True)
class Frame:
    """The rectangle of level-0 pixels that the tiles show."""

    left: int
    top: int
    width: int
    height: int

    @property
    def max_level(self) -> int:
        """The level at which one pixel is one pixel of level 0."""
        return max(0, math.ceil(math.log2(max(self.width, self.height))))

    def scale(self, level: int) -> int:
        """Level-0 pixels per pixel of the level."""
        return 1 << (self.max_level - level)

    def box(self, level: int, column: int, row: int) -> Box:
        """A tile in pixels of its level; the last column and row are cut."""
        if 0 <= level <= self.max_level and column >= 0 and row >= 0:
            scale = self.scale(level)
            width, height = math.ceil(self.width / scale), math.ceil(self.height / scale)
            left, top = column * TILE, row * TILE
            if left < width and top < height:
                return left, top, min(left + TILE, width), min(top + TILE, height)
        raise UsageError(
            f"There is no tile {column}, {row} at level {level}; "
            f"the last level is {self.max_level}."
        )


class Tiles:
    """A frame, the first level that is served, and encoded squares."""

    shows_pixels = True
    min_level = 0
    frame: Frame

    def tile(self, level: int, column: int, row: int) -> bytes:
        """One square as image bytes."""
        if level < self.min_level:
            raise UsageError(
                f"Level {level} of this slide is not served; the first is {self.min_level}."
            )
        image = self.draw(self.frame.box(level, column, row), self.frame.scale(level))
        if self.shows_pixels:
            return encode_image(image, "JPEG", quality=85)
        return encode_image(image, "PNG", compress_level=1)

    def draw(self, box: Box, scale: int) -> Image.Image:
        """The box, in pixels of a level with so many level-0 pixels per pixel."""
        raise NotImplementedError


class SlideTiles(Tiles):
    """Tiles of a slide file."""

    def __init__(self, path: Path) -> None:
        # The file is closed when nobody uses these tiles any more.
        self._open = ExitStack()
        self._slide = self._open.enter_context(open_slide(path, fallback_mpp=UNKNOWN_MPP))
        self.frame = Frame(0, 0, *self._slide.dimensions)
        # A slide without small levels would be read whole for its first tiles.
        largest = LARGEST_READ / TILE * self._slide.downsamples[-1]
        self.min_level = max(0, self.frame.max_level - int(math.log2(largest)))

    def draw(self, box: Box, scale: int) -> Image.Image:
        left, top, right, bottom = box
        width, height = right - left, bottom - top
        where = {"left": left * scale, "top": top * scale}
        size = {"width": width * scale, "height": height * scale}
        return Image.fromarray(read_region(self._slide, size=(width, height), **where, **size))


class GridTiles(Tiles):
    """Tiles of a slide without an image: its patches as grey squares."""

    shows_pixels = False

    def __init__(self, coords: Int[np.ndarray, "n 2"], patch_size: int) -> None:
        self._size = patch_size
        low, high = coords.min(axis=0) - patch_size, coords.max(axis=0) + 2 * patch_size
        self.frame = Frame(int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1]))
        self._corners = coords - low

    def draw(self, box: Box, scale: int) -> Image.Image:
        left, top, right, bottom = box
        image = Image.new("RGB", (right - left, bottom - top), GLASS)
        side = self._size / scale
        corners = self._corners / scale - (left, top)
        corners = corners[((corners > -side) & (corners < image.size)).all(axis=1)]
        draw = ImageDraw.Draw(image)
        if side < SMALLEST_SQUARE:
            draw.point(np.floor(corners + side / 2).ravel().tolist(), fill=PATCH_GREY)
            return image
        ends = np.maximum(corners + side - (2 if side >= 6 else 1), corners)
        for square in np.rint(np.concatenate((corners, ends), axis=1)).tolist():
            draw.rectangle(square, fill=PATCH_GREY)
        return image


class ThumbnailTiles(Tiles):
    """Tiles of a slide that has only a thumbnail."""

    def __init__(self, thumbnail: Thumbnail) -> None:
        self._picture = Image.fromarray(thumbnail.pixels)
        self._downsample = thumbnail.downsample
        width, height = (max(1, round(side * thumbnail.downsample)) for side in self._picture.size)
        self.frame = Frame(*thumbnail.origin, width, height)

    def draw(self, box: Box, scale: int) -> Image.Image:
        left, top, right, bottom = (edge * scale / self._downsample for edge in box)
        width, height = self._picture.size
        part = (left, top, min(right, width), min(bottom, height))
        size = (box[2] - box[0], box[3] - box[1])
        return self._picture.resize(size, Image.Resampling.BILINEAR, box=part)


def open_slide_tiles(path: Path | None) -> tuple[SlideTiles | None, str | None]:
    """Tiles of the slide file, or why there are none."""
    if path is None:
        note = "No slide file is known: patches are grey squares. Show tissue with --slides FOLDER."
        return None, note
    try:
        return SlideTiles(path), None
    except GcemilError as error:
        # Evidence can be shown without pixels; the page explains why they are missing.
        return None, str(error)
