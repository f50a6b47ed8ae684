"""Micrometres per pixel (mpp) decide; magnifications and pyramid levels follow from them.

side of a patch    patch_px * target_mpp                    micrometres
side on the slide  patch_px * target_mpp / mpp              level-0 pixels, seldom a whole number
position k         round(origin + k * step / mpp)           rounded once, so no error adds up along the slide
level to read      the coarsest whose pixels are not larger than those asked for
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from gcemil.units import LevelZeroPx, Microns, PatchPx

FINEST_MPP, COARSEST_MPP = 0.02, 20.0
"""What a scanner can have meant; a photograph's 72 dpi would be 353 micrometres per pixel."""
LEVEL_TOLERANCE = 1.01
"""A level may be coarser than asked for by this factor: scanners state 4.0004 where they mean 4."""
MICRONS_AT_ONE_X = 10.0
"""A pixel spans about 10 micrometres divided by the objective's power: 0.5 at 20x, 0.25 at 40x."""


def is_plausible(mpp: float) -> bool:
    return FINEST_MPP <= mpp <= COARSEST_MPP


def magnification(mpp: float) -> int:
    """The nominal objective power of this pixel size, at least 1."""
    return max(1, round(MICRONS_AT_ONE_X / mpp))


def physical_side(pixels: PatchPx, target_mpp: float) -> Microns:
    """What so many pixels of the encoder's image span on the glass."""
    return Microns(pixels * target_mpp)


def level0_length(length: Microns, mpp: float) -> float:
    """A physical length in level-0 pixels, not rounded."""
    return length / mpp


def positions(
    origin: LevelZeroPx, extent: LevelZeroPx, *, side: Microns, step: Microns, mpp: float
) -> Int[np.ndarray, "k"]:
    """Where patches begin along one axis so that all of them end inside the extent."""
    room = extent - level0_length(side, mpp)
    # Half a pixel of grace: a side of 256.5 px fits an extent of 256, as positions are rounded too.
    if room < -0.5:
        return np.empty(0, dtype=np.int64)
    stride = level0_length(step, mpp)
    count = int((room + 0.5) // stride) + 1
    return np.floor(origin + np.arange(count) * stride + 0.5).astype(np.int64)


def best_level(downsamples: Sequence[float], wanted: float) -> int:
    """The coarsest level that still has every pixel wanted; level 0 where even that is too coarse."""
    fitting = [level for level, factor in enumerate(downsamples) if factor <= wanted * LEVEL_TOLERANCE]
    return max(fitting, key=lambda level: downsamples[level], default=0)
