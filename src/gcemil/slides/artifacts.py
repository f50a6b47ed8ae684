"""Artefacts of a patch from its pixels alone: glass, ink or no focus.

  background   share of pixels as bright and as colourless as glass
  ink          share of pixels in colours that H&E does not have, or black
  sharpness    variance of the Laplacian over the variance of the grey values; an image out of
               focus lies far below the other patches of its slide

The lines are stated and coarse: they tell a patch of glass, of pen or out of focus, not a small
fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int
from scipy import ndimage

from gcemil.slides.reader import Pixels, SlideReader, read_region
from gcemil.slides.tissue import GLASS_SATURATION, GLASS_VALUE, hue_saturation_value, is_ink

PATCH_PX = 128
"""Side of a patch as it is looked at: a nucleus still has an edge."""
MOST_BACKGROUND, MOST_INK, LEAST_SHARPNESS = 0.75, 0.1, 0.1
"""A patch beyond one of these is an artefact; sharpness is relative to the slide's median."""
REFERENCE_PATCHES = 32
"""Patches, evenly over the slide, whose median sharpness is that of the slide."""


@dataclass(frozen=True)
class PatchQuality:
    """Figures of one patch."""

    background: float
    ink: float
    sharpness: float


def measure_quality(pixels: Pixels) -> PatchQuality:
    """What the pixels of one patch show."""
    hue, saturation, value = hue_saturation_value(pixels)
    grey = pixels.astype(np.float32).mean(axis=2)
    # Scanner noise on an even patch is no edge; one grey value of variance keeps it from counting
    # as one.
    sharpness = float(
        ndimage.laplace(ndimage.gaussian_filter(grey, 1.0)).var() / (grey.var() + 1.0)
    )
    return PatchQuality(
        float(((value >= GLASS_VALUE) & (saturation <= GLASS_SATURATION)).mean()),
        float(is_ink(hue, saturation, value).mean()),
        sharpness,
    )


def find_artifacts(
    slide: SlideReader, coords: Int[np.ndarray, "n 2"], patch_size: int, rows: Sequence[int]
) -> Bool[np.ndarray, "n"]:
    """Which of these rows show an artefact; rows that were not asked about are said to be clean."""
    evenly = (
        np.linspace(0, len(coords) - 1, min(REFERENCE_PATCHES, len(coords))).round().astype(int)
    )
    looked_at = {
        row: measure_quality(
            read_region(
                slide,
                left=float(coords[row, 0]),
                top=float(coords[row, 1]),
                width=float(patch_size),
                height=float(patch_size),
                size=(PATCH_PX, PATCH_PX),
            )
        )
        for row in sorted({*rows, *evenly.tolist()})
    }
    usual = float(np.median([looked_at[row].sharpness for row in evenly.tolist()]))
    found = np.zeros(len(coords), dtype=bool)
    for row in rows:
        one = looked_at[row]
        found[row] = (
            one.background > MOST_BACKGROUND
            or one.ink > MOST_INK
            or one.sharpness < LEAST_SHARPNESS * usual
        )
    return found
