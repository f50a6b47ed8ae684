"""DeepZoom tiles of a slide: its pixels where there is a slide file, its thumbnail where there is one, else its grid.

Level L shows the frame at 2^(max_level - L) level-0 pixels per pixel, in squares of 256. Without tissue every patch is a
grey square: a colour under a colour scale would be read as part of it.
"""

from __future__ import annotations

import math
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from PIL import Image, ImageDraw

from gcemil.errors import GcemilError, UsageError
from gcemil.exports.overlay import Thumbnail, encode_image
from gcemil.slides.reader import LARGEST_READ, Pixels, SlideReader, open_slide, read_region

TILE = 256
UNKNOWN_MPP = 0.5
"""For a slide that does not state its pixel size: nothing here is measured in micrometres."""
SMALLEST_SQUARE = 2.0
"""Pixels below which a patch is drawn as one pixel."""
GLASS = (247, 247, 248)
PATCH_GREY = (206, 212, 216)
"""A patch without an image."""

Corners = Int[np.ndarray, "n 2"]
Places = Float[np.ndarray, "k 2"]


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

    def box(self, level: int, column: int, row: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of a tile, in pixels of its level; the last column and row are cut."""
        if 0 <= level <= self.max_level and column >= 0 and row >= 0:
            scale = self.scale(level)
            width, height = math.ceil(self.width / scale), math.ceil(self.height / scale)
            left, top = column * TILE, row * TILE
            if left < width and top < height:
                return left, top, min(left + TILE, width), min(top + TILE, height)
        raise UsageError(
            f"There is no tile {column}, {row} at level {level}; the last level is {self.max_level}."
        )


class SlideTiles:
    """Tiles of a slide file."""

    shows_pixels = True

    def __init__(self, path: Path) -> None:
        self._open = ExitStack()
        # A slide must not be closed under a thread that reads it.
        self._reading = threading.Lock()
        self._is_closed = False
        self._slide: SlideReader = self._open.enter_context(
            open_slide(path, fallback_mpp=UNKNOWN_MPP)
        )
        self.frame = Frame(0, 0, *self._slide.dimensions)
        # A slide without small levels would be read whole for its first tiles.
        largest = LARGEST_READ / TILE * self._slide.downsamples[-1]
        self.min_level = max(0, self.frame.max_level - int(math.log2(largest)))

    def tile(self, level: int, column: int, row: int) -> bytes:
        """One square as image bytes."""
        if level < self.min_level:
            raise UsageError(
                f"Level {level} of this slide is not served; the first is {self.min_level}."
            )
        left, top, right, bottom = self.frame.box(level, column, row)
        scale = self.frame.scale(level)
        with self._reading:
            if self._is_closed:
                raise UsageError("The slide was closed meanwhile. Open it again.")
            pixels = read_region(
                self._slide,
                left=left * scale,
                top=top * scale,
                width=(right - left) * scale,
                height=(bottom - top) * scale,
                size=(right - left, bottom - top),
            )
        return _encode_tile(pixels, "JPEG")

    def close(self) -> None:
        """Let the slide file go."""
        with self._reading:
            self._is_closed = True
            self._open.close()


class GridTiles:
    """Tiles of a slide without an image: its patches as grey squares."""

    shows_pixels = False
    min_level = 0

    def __init__(self, coords: Corners, patch_size: int) -> None:
        self._size = patch_size
        low, high = coords.min(axis=0) - patch_size, coords.max(axis=0) + 2 * patch_size
        self.frame = Frame(int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1]))
        self._corners = coords - low

    def tile(self, level: int, column: int, row: int) -> bytes:
        """One square as image bytes."""
        left, top, right, bottom = self.frame.box(level, column, row)
        scale = self.frame.scale(level)
        corners = self._corners / scale - (left, top)
        side = self._size / scale
        seen = ((corners > -side) & (corners < (right - left, bottom - top))).all(axis=1)
        image = Image.new("RGB", (right - left, bottom - top), GLASS)
        draw = _draw_points if side < SMALLEST_SQUARE else _draw_squares
        return _encode_tile(draw(image, corners[seen], side), "PNG")

    def close(self) -> None:
        """There is no file."""


class ThumbnailTiles:
    """Tiles of a slide that has only a thumbnail."""

    shows_pixels = True
    min_level = 0

    def __init__(self, thumbnail: Thumbnail) -> None:
        self._picture = Image.fromarray(thumbnail.pixels)
        self._downsample = thumbnail.downsample
        width, height = (max(1, round(side * thumbnail.downsample)) for side in self._picture.size)
        self.frame = Frame(*thumbnail.origin, width, height)

    def tile(self, level: int, column: int, row: int) -> bytes:
        """One square as image bytes."""
        left, top, right, bottom = self.frame.box(level, column, row)
        step = self.frame.scale(level) / self._downsample
        box = (left * step, top * step, right * step, bottom * step)
        width, height = self._picture.size
        box = (box[0], box[1], min(box[2], width), min(box[3], height))
        size = (right - left, bottom - top)
        return _encode_tile(
            np.asarray(self._picture.resize(size, Image.Resampling.BILINEAR, box=box)), "JPEG"
        )

    def close(self) -> None:
        """There is no file."""


Tiles = SlideTiles | ThumbnailTiles | GridTiles
"""What the page asks for pictures: a frame, the first level that is served, encoded squares."""


def open_slide_tiles(path: Path | None) -> tuple[SlideTiles | None, str | None]:
    """Tiles of the slide file, or why there are none."""
    if path is None:
        return (
            None,
            "No slide file is known: patches are grey squares. Show tissue with --slides FOLDER.",
        )
    try:
        return SlideTiles(path), None
    except GcemilError as error:
        # Evidence can be shown without pixels; the page says why they are missing.
        return None, str(error)


def _draw_points(image: Image.Image, corners: Places, side: float) -> Pixels:
    pixels = np.array(image)
    at = np.floor(corners + side / 2).astype(np.int64)
    inside = ((at >= 0) & (at < (image.width, image.height))).all(axis=1)
    pixels[at[inside, 1], at[inside, 0]] = PATCH_GREY
    return pixels


def _draw_squares(image: Image.Image, corners: Places, side: float) -> Pixels:
    draw = ImageDraw.Draw(image)
    gap = 1 if side >= 6 else 0
    ends = np.maximum(corners + side - 1 - gap, corners)
    for box in np.rint(np.concatenate((corners, ends), axis=1)).tolist():
        draw.rectangle(box, fill=PATCH_GREY)
    return np.asarray(image)


def _encode_tile(pixels: Pixels, form: str) -> bytes:
    options = {"quality": 85} if form == "JPEG" else {"compress_level": 1}
    return encode_image(Image.fromarray(pixels), form, **options)
