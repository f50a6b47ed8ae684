"""A simple painting of a slide: tissue in two stains, with nuclei whose density and size depend on the concept.

Borders between squares of the plan are shifted by less than an eighth of a square, so a planned square shows its own concept
over more than half of its area, and no other square does.

rgb = white * exp(-(hematoxylin * H + eosin * E)), H and E the absorption of the two dyes in red, green and blue. A site has
dyes and a lamp of its own; a slide differs a little from its site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8
from numpy.random import Generator
from PIL import Image, ImageDraw

from gcemil.simulation.profile import Profile
from gcemil.slides.reader import Pixels

PATCH = 256
FINE = 4
"""Level-0 pixels per pixel of the masks: 2 micrometres."""
SQUARE = PATCH // FINE
MARGIN = 1
"""Empty squares around the tissue."""
_LARGEST_SHIFT = 0.12
"""How far a border is shifted at most, in squares."""


@dataclass(frozen=True)
class TissueStyle:
    """The look of a concept: distance and radius of nuclei in level-0 pixels, and the stains of the ground."""

    spacing: float
    radius: float
    hematoxylin: float
    eosin: float


KIND_STYLES = {
    "tumor": TissueStyle(28, 10, 45, 70),
    "benign": TissueStyle(38, 6, 35, 75),
    "stroma": TissueStyle(64, 5, 15, 95),
    "inflammation": TissueStyle(18, 6, 40, 50),
    "necrosis": TissueStyle(22, 3, 30, 105),
    "vessel": TissueStyle(48, 7, 20, 115),
    "adipose": TissueStyle(120, 4, 8, 45),
    "muscle": TissueStyle(90, 5, 12, 115),
    "artifact": TissueStyle(150, 14, 70, 40),
}


@dataclass(frozen=True, eq=False)
class Dyes:
    """Absorption of both dyes at full level, and the colour of empty glass."""

    hematoxylin: Float[np.ndarray, "3"]
    eosin: Float[np.ndarray, "3"]
    white: Float[np.ndarray, "3"]


STANDARD = Dyes(
    2.1 * np.array([0.58, 0.76, 0.30]), 2.1 * np.array([0.13, 0.87, 0.44]), np.array([244.0, 242.0, 245.0])
)


@dataclass(frozen=True, eq=False)
class LabelMap:
    """Truth at 2 micrometres per pixel."""

    texture: UInt8[np.ndarray, "h w"]
    """Index of the concept + 1, 0 where there is no tissue."""
    evidence: UInt8[np.ndarray, "h w"]
    """Number of the evidence region from 1, 0 elsewhere."""

    @property
    def tissue(self) -> Bool[np.ndarray, "h w"]:
        """Where there is tissue."""
        return self.texture > 0


def choose_styles(profile: Profile, mimic_similarity: float) -> list[TissueStyle]:
    """A style for every concept in order; a mimic lies between the concept it imitates and benign tissue."""
    return [
        _vary_style(concept.name, KIND_STYLES[concept.kind])
        if concept.imitates is None
        else _mix_styles(
            _vary_style(concept.imitates, KIND_STYLES[profile.kinds[concept.imitates]]),
            KIND_STYLES["benign"],
            mimic_similarity,
        )
        for concept in profile.concepts
    ]


def _vary_style(name: str, style: TissueStyle) -> TissueStyle:
    """The style of a kind, changed by the name of the concept."""
    spacing, radius, stain = np.exp(np.random.default_rng(crc32(name.encode())).uniform(-0.25, 0.25, 3))
    return replace(
        style, spacing=style.spacing * spacing, radius=style.radius * radius, eosin=style.eosin * stain
    )


def _mix_styles(first: TissueStyle, second: TissueStyle, share: float) -> TissueStyle:
    """`share` of the first style and the rest of the second."""
    mixed = {name: share * value + (1 - share) * getattr(second, name) for name, value in vars(first).items()}
    return TissueStyle(**mixed)


def vary_dyes(dyes: Dyes, spread: float, generator: Generator) -> Dyes:
    """Dyes of another batch: hue and strength move by about `spread`, the lamp by a few grey levels."""
    hue = generator.normal(0, 0.25 * spread, size=(2, 3))
    strength = np.exp(generator.normal(0, 0.6 * spread, size=2))
    return Dyes(
        np.clip(dyes.hematoxylin * strength[0] * (1 + hue[0]), 0.02, None),
        np.clip(dyes.eosin * strength[1] * (1 + hue[1]), 0.02, None),
        np.clip(dyes.white + generator.normal(0, 12 * spread, size=3), 225, 252),
    )


def draw_labels(
    cells: Int[np.ndarray, "n 2"],
    texture: Int[np.ndarray, "n"],
    evidence: Int[np.ndarray, "n"],
    generator: Generator,
) -> LabelMap:
    """Squares at (row, column) cells as a map with irregular borders and a margin of glass."""
    cells = cells - cells.min(axis=0) + MARGIN
    rows, columns = (cells.max(axis=0) + 1 + MARGIN).tolist()
    grid = np.zeros((2, rows, columns), np.uint8)
    grid[:, cells[:, 0], cells[:, 1]] = texture + 1, evidence
    shape = (rows * SQUARE, columns * SQUARE)
    shifts = [0.06 * _smooth_plane(*shape, 20, generator) for _ in range(2)]
    places = np.meshgrid(*((np.arange(side) + 0.5) / SQUARE for side in shape), indexing="ij")
    row, column = (
        (place + np.clip(shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)).astype(np.int64).clip(0, side - 1)
        for place, shift, side in zip(places, shifts, (rows, columns), strict=True)
    )
    return LabelMap(grid[0, row, column], grid[1, row, column])


def paint_tissue(labels: LabelMap, styles: Sequence[TissueStyle], dyes: Dyes, generator: Generator) -> Pixels:
    """The image of a label map at full resolution."""
    height, width = labels.texture.shape
    mottle = np.exp(
        0.2 * _smooth_plane(height, width, 6, generator) + 0.15 * _smooth_plane(height, width, 2, generator)
    )
    stains = []
    for stain in ("hematoxylin", "eosin"):
        ground = np.array([0, *(getattr(style, stain) for style in styles)], np.float32)[labels.texture]
        level = Image.fromarray((ground * mottle).clip(0, 255).astype(np.uint8))
        stains.append(level.resize((width * FINE, height * FINE), Image.Resampling.BILINEAR))
    pen = ImageDraw.Draw(stains[0])
    for index in np.unique(labels.texture[labels.tissue]).tolist():
        for box, shade in _scatter_nuclei(labels.texture == index, styles[index - 1], generator):
            pen.ellipse(box, fill=shade)
    hematoxylin, eosin = (np.asarray(stain) for stain in stains)
    return _colour_table(dyes)[hematoxylin, eosin]


def _scatter_nuclei(
    own: Bool[np.ndarray, "h w"], style: TissueStyle, generator: Generator
) -> list[tuple[tuple[float, float, float, float], int]]:
    """Box and hematoxylin level of each nucleus: one at a random place of every square of side `spacing`."""
    counts = [int(side * FINE / style.spacing) for side in own.shape]
    corners = np.stack(np.meshgrid(*(np.arange(count) for count in counts), indexing="ij"), axis=-1).reshape(
        -1, 2
    )
    centres = (corners + generator.random(corners.shape)) * style.spacing
    inside = own[tuple((centres / FINE).astype(np.int64).T)]
    centres = centres[inside]
    radii = style.radius * np.exp(generator.normal(0, 0.25, centres.shape))
    low, high = (centres - radii)[:, ::-1], (centres + radii)[:, ::-1]
    shades = generator.integers(150, 230, len(centres)).tolist()
    return list(zip(map(tuple, np.hstack([low, high]).tolist()), shades, strict=True))


def _smooth_plane(height: int, width: int, scale: float, generator: Generator) -> Float32[np.ndarray, "h w"]:
    """Values of about unit variance that vary over `scale` pixels."""
    coarse = generator.standard_normal((int(height / scale) + 4, int(width / scale) + 4), dtype=np.float32)
    return np.float32(1.3) * np.asarray(
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    )


def _colour_table(dyes: Dyes) -> UInt8[np.ndarray, "256 256 3"]:
    """The colour of every pair of hematoxylin and eosin levels."""
    level = np.arange(256)[:, None] / 255
    density = (level * dyes.hematoxylin)[:, None] + (level * dyes.eosin)[None]
    return np.rint(dyes.white * np.exp(-density)).astype(np.uint8)
