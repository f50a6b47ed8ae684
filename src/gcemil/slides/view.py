"""Any rectangle of a slide at any resolution: read at the best level, resampled to the pixels asked for."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
from PIL import Image

from gcemil.slides.reader import Bounds, Pixels, SlideReader
from gcemil.slides.resolution import best_level

LARGEST_READ = 4096
"""Side of the largest square read at once: a slide without small levels must not fill the memory."""


def view(
    slide: SlideReader, *, left: float, top: float, width: float, height: float, size: tuple[int, int]
) -> Pixels:
    """The level-0 rectangle as an image of `size` (width, height); what lies outside the slide is white."""
    level = best_level(slide.downsamples, min(width / size[0], height / size[1]))
    factor = slide.downsamples[level]
    x, y = left / factor, top / factor
    first_x, first_y = floor(x), floor(y)
    wide, high = ceil(x + width / factor) - first_x, ceil(y + height / factor) - first_y
    read = slide.region(round(first_x * factor), round(first_y * factor), level, wide, high)
    box = (x - first_x, y - first_y, x - first_x + width / factor, y - first_y + height / factor)
    if box == (0, 0, *size):
        return read
    resized = Image.fromarray(read).resize(size, Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).copy()


def overview(slide: SlideReader, mpp: float) -> Pixels:
    """The scanned part of the slide at about this resolution, read piece by piece."""
    bounds = slide.bounds
    width, height = overview_size(bounds, mpp / slide.mpp)
    scale_x, scale_y = bounds.width / width, bounds.height / height
    level = best_level(slide.downsamples, min(scale_x, scale_y))
    piece = max(1, floor(LARGEST_READ * slide.downsamples[level] / max(scale_x, scale_y)))
    image = np.empty((height, width, 3), dtype=np.uint8)
    for row in range(0, height, piece):
        for column in range(0, width, piece):
            high, wide = min(piece, height - row), min(piece, width - column)
            image[row : row + high, column : column + wide] = view(
                slide,
                left=bounds.x + column * scale_x,
                top=bounds.y + row * scale_y,
                width=wide * scale_x,
                height=high * scale_y,
                size=(wide, high),
            )
    return image


def overview_size(bounds: Bounds, downsample: float) -> tuple[int, int]:
    """Width and height of the scanned part at this downsample, at least one pixel each."""
    return max(1, round(bounds.width / downsample)), max(1, round(bounds.height / downsample))
