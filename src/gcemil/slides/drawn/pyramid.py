"""An image as a pyramidal TIFF that OpenSlide opens with its pixel size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gcemil.errors import MissingExtraError
from gcemil.files import whole_file
from gcemil.slides.reader import Pixels

TILE = 256
STEP = 4
SMALLEST_SIDE = 256
ZLIB_LEVEL = 1
"""Higher levels save a few percent of space and take twice the time."""


def write_pyramid(path: Path, image: Pixels, mpp: float) -> None:
    """Levels of 1, 4, 16, … in one file that appears whole or not at all; equal images give equal bytes."""
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError("tifffile", "wsi") from error
    with whole_file(path) as temporary, tifffile.TiffWriter(temporary) as writer:
        for level, pixels in enumerate(pyramid_levels(image)):
            writer.write(
                pixels,
                tile=(TILE, TILE),
                photometric="rgb",
                compression="zlib",
                compressionargs={"level": ZLIB_LEVEL},
                subfiletype=int(level > 0),
                resolution=(1e4 / (mpp * STEP**level),) * 2,
                resolutionunit="CENTIMETER",
                metadata=None,
                software=False,
            )


def pyramid_levels(image: Pixels) -> Iterator[UInt8[np.ndarray, "rows columns 3"]]:
    """The image and its reductions by 4, as long as the result has a side of at least 256 pixels."""
    yield image
    while max(image.shape[:2]) // STEP >= SMALLEST_SIDE:
        image = np.asarray(Image.fromarray(image).reduce(STEP))
        yield image
