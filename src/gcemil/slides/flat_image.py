"""Slides that are one plain picture: PNG, JPEG, or a TIFF without tiles, which OpenSlide does not read.

The picture is decoded whole and kept in memory, so it must not be larger than `LARGEST_PIXELS`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from gcemil.errors import InputError, MissingExtraError, error_text
from gcemil.slides.reader import Bounds, Pixels
from gcemil.units import LevelZeroPx

LARGEST_PIXELS = 1_000_000_000
"""3 GB in memory."""
_TIFF = (".tif", ".tiff")


class FlatImageReader:
    """A picture as a slide of one level."""

    def __init__(self, path: Path, pixels: Pixels, mpp: float) -> None:
        self.name = path.name
        self.mpp = mpp
        self._pixels = pixels

    @property
    def dimensions(self) -> tuple[int, int]:
        return self._pixels.shape[1], self._pixels.shape[0]

    @property
    def bounds(self) -> Bounds:
        width, height = map(LevelZeroPx, self.dimensions)
        return Bounds(LevelZeroPx(0), LevelZeroPx(0), width, height)

    @property
    def downsamples(self) -> tuple[float, ...]:
        return (1.0,)

    def region(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        read = np.full((height, width, 3), 255, dtype=np.uint8)
        inside = self._pixels[max(y, 0) : max(y + height, 0), max(x, 0) : max(x + width, 0)]
        row, column = max(-y, 0), max(-x, 0)
        read[row : row + inside.shape[0], column : column + inside.shape[1]] = inside
        return read


def read_flat_image(path: Path) -> Pixels:
    """The picture in 8-bit RGB, on white where it is transparent."""
    try:
        return _read_tiff(path) if path.suffix.lower() in _TIFF else _read_picture(path)
    except (InputError, MissingExtraError):
        raise
    except Exception as error:
        # Damaged pictures make decoders raise almost anything.
        raise InputError(
            f"{path} cannot be read as a picture ({error_text(error)}). It is damaged; copy it again or leave it out."
        ) from error


def _read_picture(path: Path) -> Pixels:
    before = Image.MAX_IMAGE_PIXELS
    try:
        # The size is checked below; Pillow's own limit is far below that of a slide.
        Image.MAX_IMAGE_PIXELS = None
        with Image.open(path) as picture:
            _check_size(path, *picture.size)
            rgba = picture.convert("RGBA")
        return np.asarray(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"))
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _read_tiff(path: Path) -> Pixels:
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError("tifffile", "wsi") from error
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        _check_size(path, page.shape[1], page.shape[0])
        if page.dtype != np.uint8 or len(page.shape) != 3 or page.shape[2] not in (3, 4):
            raise InputError(
                f"{path} has pixels of shape {page.shape} and type {page.dtype}, and a slide has 8-bit RGB. Convert it."
            )
        return np.ascontiguousarray(page.asarray()[..., :3])


def _check_size(path: Path, width: int, height: int) -> None:
    if width * height > LARGEST_PIXELS:
        raise InputError(
            f"{path} is a plain picture of {width} by {height} pixels, which would fill the memory. Convert it to a "
            "tiled, pyramidal TIFF, such as with 'vips tiffsave --tile --pyramid'."
        )
