"""Hematoxylin and eosin as colours.

rgb = white * exp(-(hematoxylin * H + eosin * E)), H and E the absorption of the two dyes in red, green and blue. A site has
dyes and a lamp of its own; a slide differs a little from its site.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from numpy.random import Generator

HEMATOXYLIN = np.array([0.58, 0.76, 0.30])
EOSIN = np.array([0.13, 0.87, 0.44])
WHITE = np.array([244.0, 242.0, 245.0])
FULL_DENSITY = 2.1
"""Optical density of level 255."""


@dataclass(frozen=True, eq=False)
class Dyes:
    """Absorption of both dyes at full level, and the colour of empty glass."""

    hematoxylin: Float[np.ndarray, "3"]
    eosin: Float[np.ndarray, "3"]
    white: Float[np.ndarray, "3"]


STANDARD = Dyes(HEMATOXYLIN * FULL_DENSITY, EOSIN * FULL_DENSITY, WHITE)


def varied(dyes: Dyes, spread: float, generator: Generator) -> Dyes:
    """Dyes of another batch: hue and strength move by about `spread`, the lamp by a few grey levels."""
    hue = generator.normal(0, 0.25 * spread, size=(2, 3))
    strength = np.exp(generator.normal(0, 0.6 * spread, size=2))
    return Dyes(
        np.clip(dyes.hematoxylin * strength[0] * (1 + hue[0]), 0.02, None),
        np.clip(dyes.eosin * strength[1] * (1 + hue[1]), 0.02, None),
        np.clip(dyes.white + generator.normal(0, 12 * spread, size=3), 225, 252),
    )


def colour_table(dyes: Dyes) -> UInt8[np.ndarray, "65536 3"]:
    """The colour of every pair of levels, at index 256 * hematoxylin + eosin."""
    level = np.arange(256) / 255
    density = (
        level[:, None, None] * dyes.hematoxylin[None, None] + level[None, :, None] * dyes.eosin[None, None]
    )
    return np.rint(dyes.white * np.exp(-density)).astype(np.uint8).reshape(-1, 3)
