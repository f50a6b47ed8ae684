"""Pen marks on the glass: a stroke beside the tissue, as people leave when they point at something."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32
from numpy.random import Generator
from PIL import Image, ImageDraw

from gcemil.slides.drawn.label_map import FINE
from gcemil.slides.reader import Pixels

PEN_COLOURS = ((28, 60, 150), (20, 120, 70), (30, 30, 34))
OPACITY = 0.85
STROKE_WIDTHS = (40, 80)
"""Thinnest and thickest stroke in level-0 pixels."""
TRIES = 40


def add_pen_mark(image: Pixels, tissue: Bool[np.ndarray, "rows columns"], generator: Generator) -> None:
    """Draw the stroke of several random ones that touches the least tissue."""
    strokes = [_stroke(tissue.shape, generator) for _ in range(TRIES)]
    stroke = min(strokes, key=lambda drawn: float((drawn * tissue).sum()))
    colour = np.array(PEN_COLOURS[int(generator.integers(len(PEN_COLOURS)))], np.float32)
    rows, columns = np.nonzero(stroke > 0)
    top, bottom = int(rows.min()), int(rows.max()) + 1
    left, right = int(columns.min()), int(columns.max()) + 1
    small = Image.fromarray(stroke[top:bottom, left:right])
    size = ((right - left) * FINE, (bottom - top) * FINE)
    opacity = OPACITY * np.asarray(small.resize(size, Image.Resampling.BILINEAR))[..., None]
    under = image[top * FINE : bottom * FINE, left * FINE : right * FINE]
    under[:] = np.rint(under * (1 - opacity) + colour * opacity).astype(np.uint8)


def _stroke(shape: tuple[int, ...], generator: Generator) -> Float32[np.ndarray, "h w"]:
    """A bent line near a side of the slide, from 0 (glass) to 1 (ink)."""
    height, width = shape[0], shape[1]
    line = Image.new("L", (width, height))
    start = generator.uniform(0.05, 0.45)
    along = np.linspace(start, start + generator.uniform(0.25, 0.5), 12)
    across = generator.uniform(0.02, 0.14) + 0.02 * np.cumsum(generator.normal(0, 0.5, size=12))
    if generator.random() < 0.5:
        across = 1 - across
    points = np.stack([along, across] if generator.random() < 0.5 else [across, along], axis=1)
    thickness = int(generator.uniform(*STROKE_WIDTHS) / FINE)
    path = [(float(x), float(y)) for x, y in points * (width, height)]
    ImageDraw.Draw(line).line(path, fill=255, width=thickness, joint="curve")
    return (np.asarray(line) / np.float32(255)).astype(np.float32)
