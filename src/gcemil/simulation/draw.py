"""A label map and recipes in, an H&E-like image out.

The ground of every concept is painted at half resolution, nuclei are stamped at full resolution, then the mean stain of all
concepts is levelled and the section's thickness varied, so that colour says more about the place than about the concept.

Nuclei and other small bodies come from a bank of sprites: one population in twelve directions and a few shapes each. All bodies of
one sprite are stamped at once; where two overlap the later one lies on top, as cells do in a section.

rgb = white * exp(-(hematoxylin * H + eosin * E)), H and E the absorption of the two dyes in red, green and blue. A site has
dyes and a lamp of its own; a slide differs a little from its site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8
from numpy.random import Generator
from PIL import Image

from gcemil.simulation.architecture import CELLS, MATRIX, SPACE, Waves, paint_ground
from gcemil.simulation.label_map import FINE, LabelMap, mix_planes, scatter, smooth_field, smooth_plane
from gcemil.simulation.recipes import Nuclei, Recipe
from gcemil.slides.reader import Pixels

_HEMATOXYLIN = np.array([0.58, 0.76, 0.30])
_EOSIN = np.array([0.13, 0.87, 0.44])
WHITE = np.array([244.0, 242.0, 245.0])
_FULL_DENSITY = 2.1
"""Optical density of level 255."""


DIRECTIONS, SHAPES = 12, 5
Level = UInt8[np.ndarray, "h w"]
Points = Int[np.ndarray, "k 2"]
Offsets = Int[np.ndarray, "s s"]
Shades = Float[np.ndarray, "s s"]
HALF = 2
LEVELLED_HEMATOXYLIN, LEVELLED_EOSIN = 78.0, 74.0
_LARGEST_GAIN = 2.0
_THICKNESS_STEPS = 24
_THICKNESS_SPREAD = 0.16
_RED_CELLS = Nuclei(spacing=15, radius=6.6, spread=0.06, elongation=1.1, vesicular=0.25)
_DUST = Nuclei(spacing=12, radius=2.3, spread=0.4, elongation=1.5, vesicular=0)
_GRAINS = Nuclei(spacing=12, radius=3.2, spread=0.3, elongation=1.4)
PartMap = UInt8[np.ndarray, "y x"]
Own = Bool[np.ndarray, "rows columns"]


class Levels(NamedTuple):
    """How much of each dye every pixel holds, from 0 (glass) to 255."""

    hematoxylin: Level
    eosin: Level


@dataclass(frozen=True, eq=False)
class Dyes:
    """Absorption of both dyes at full level, and the colour of empty glass."""

    hematoxylin: Float[np.ndarray, "3"]
    eosin: Float[np.ndarray, "3"]
    white: Float[np.ndarray, "3"]


STANDARD = Dyes(_HEMATOXYLIN * _FULL_DENSITY, _EOSIN * _FULL_DENSITY, WHITE)


def vary_dyes(dyes: Dyes, spread: float, generator: Generator) -> Dyes:
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


@dataclass(frozen=True, eq=False)
class Sprite:
    """The pixels of one body around its centre: how opaque, and how dark where it is."""

    dy: Int[np.ndarray, "p"]
    dx: Int[np.ndarray, "p"]
    opacity: Float32[np.ndarray, "p"]
    shade: Float32[np.ndarray, "p"]


@dataclass(frozen=True)
class Stain:
    """What a body does to the canvas: the levels it brings, and the share of the ground's eosin it hides."""

    hematoxylin: float
    eosin: float
    hides: float = 1.0


def _draw_nucleus_bank(nuclei: Nuclei, generator: Generator) -> list[Sprite]:
    """Sprites of a population, all directions of the first shape first."""
    bank = []
    for _ in range(SHAPES):
        radius = nuclei.radius * np.exp(nuclei.spread * generator.standard_normal())
        long, short = radius * np.sqrt(nuclei.elongation), radius / np.sqrt(nuclei.elongation)
        lobes, speckle = generator.uniform(0, 2 * np.pi, 2), int(generator.integers(1 << 30))
        for step in range(DIRECTIONS):
            angle = np.pi * step / DIRECTIONS
            bank.append(
                _draw_nucleus(long, short, angle, lobes, nuclei.vesicular, 0.5 * nuclei.spread, speckle)
            )
    return bank


def _draw_mitosis_bank(radius: float, generator: Generator) -> list[Sprite]:
    """Dark plates and pairs of plates in a clear cell, in all directions."""
    bank = []
    for shape in range(SHAPES):
        for step in range(DIRECTIONS):
            angle = np.pi * step / DIRECTIONS + generator.normal(0, 0.1)
            bank.append(_draw_mitosis(radius, angle, apart=0.55 if shape % 2 else 0.0, generator=generator))
    return bank


def _stamp_bodies(
    levels: Levels, points: Points, which: Int[np.ndarray, "k"], bank: list[Sprite], stain: Stain
) -> None:
    """Draw a body of the bank at every (y, x) point; bodies that would leave the canvas are left out."""
    height, width = levels.hematoxylin.shape
    flat_h, flat_e = (level.reshape(-1) for level in levels)
    reach = max(int(max(abs(s.dy).max(), abs(s.dx).max())) for s in bank)
    inside = (points >= reach).all(axis=1) & (points < np.array([height, width]) - reach).all(axis=1)
    # Bodies of one sprite side by side, so that each sprite is stamped once.
    order = np.argsort(which[inside], kind="stable")
    points, which = points[inside][order], which[inside][order]
    edges = np.searchsorted(which, np.arange(len(bank) + 1))
    for sprite, start, stop in zip(bank, edges[:-1], edges[1:], strict=True):
        if start == stop:
            continue
        base = points[start:stop, 0] * width + points[start:stop, 1]
        index = (base[:, None] + (sprite.dy * width + sprite.dx)[None, :]).ravel()
        opacity, shade = np.tile(sprite.opacity, stop - start), np.tile(sprite.shade, stop - start)
        flat_h[index] = _mix_levels(flat_h[index], stain.hematoxylin * shade, opacity)
        flat_e[index] = _mix_levels(flat_e[index], stain.eosin * shade, opacity * np.float32(stain.hides))


def _choose_sprites(angle: Float32[np.ndarray, "k"], generator: Generator) -> Int[np.ndarray, "k"]:
    """A sprite of any shape for each direction."""
    step = np.round(angle / np.pi * DIRECTIONS).astype(np.int64) % DIRECTIONS
    return step + DIRECTIONS * generator.integers(SHAPES, size=len(angle))


def _draw_nucleus(
    long: float,
    short: float,
    angle: float,
    lobes: Float[np.ndarray, "2"],
    vesicular: float,
    lobed: float,
    speckle: int,
) -> Sprite:
    y, x = _square_offsets(long * 1.25 + 2)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    around = np.arctan2(v, u)
    outline = 1 + lobed * (0.6 * np.cos(2 * around + lobes[0]) + 0.5 * np.cos(3 * around + lobes[1]))
    depth = np.hypot(u / long, v / short) / outline
    opacity = np.clip((1 - depth) * short / 1.6 + 0.5, 0, 1)
    chromatin = np.random.default_rng(speckle).normal(0, 0.09, size=y.shape)
    shade = np.clip(1 - vesicular * (1 - depth**2) + chromatin, 0.2, 1.15)
    return _cut_sprite(y, x, opacity, shade)


def _draw_mitosis(radius: float, angle: float, *, apart: float, generator: Generator) -> Sprite:
    y, x = _square_offsets(radius * 1.3 + 2)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    ragged = generator.normal(0, 0.08, size=y.shape)
    plate = np.minimum(
        np.hypot(u / (0.85 * radius), (v - apart * radius) / (0.24 * radius)),
        np.hypot(u / (0.85 * radius), (v + apart * radius) / (0.24 * radius)),
    )
    dark = np.clip((1 - plate + ragged) * 2.5 + 0.5, 0, 1)
    clear = np.clip((1.25 - np.hypot(u, v) / radius) * 3, 0, 1)
    return _cut_sprite(y, x, np.maximum(dark, 0.85 * clear), np.clip(dark, 0.08, 1))


def _square_offsets(reach: float) -> tuple[Offsets, Offsets]:
    offset = np.arange(-int(reach), int(reach) + 1)
    y, x = np.meshgrid(offset, offset, indexing="ij")
    return y, x


def _cut_sprite(y: Offsets, x: Offsets, opacity: Shades, shade: Shades) -> Sprite:
    seen = opacity > 0.04
    return Sprite(y[seen], x[seen], opacity[seen].astype(np.float32), shade[seen].astype(np.float32))


def _mix_levels(
    old: UInt8[np.ndarray, "p"], new: Float32[np.ndarray, "p"], opacity: Float32[np.ndarray, "p"]
) -> UInt8[np.ndarray, "p"]:
    return np.clip(old + opacity * (new - old), 0, 255).astype(np.uint8)


def draw_tissue(labels: LabelMap, recipes: Sequence[Recipe], dyes: Dyes, generator: Generator) -> Pixels:
    """The image of a label map at full resolution."""
    levels, parts = _paint_ground_levels(labels, recipes, generator)
    for index in np.unique(labels.texture[labels.texture > 0]).tolist():
        _add_bodies(levels, parts, labels.texture == index, recipes[index - 1], generator)
    _blur_regions(levels, labels, recipes)
    hematoxylin, eosin = _level_stains(levels, labels, recipes, generator)
    # Both levels as one number, the row of the colour table.
    index = hematoxylin.astype(np.uint16)
    index <<= 8
    index |= eosin
    image = colour_table(dyes)[index]
    _add_pigment(image, labels, recipes, generator)
    return image


def _paint_ground_levels(
    labels: LabelMap, recipes: Sequence[Recipe], generator: Generator
) -> tuple[Levels, PartMap]:
    """Stain levels of the ground at full resolution, and at half resolution what each pixel is part of."""
    factor = FINE // HALF
    texture = labels.texture.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = texture.shape
    canvas = (height * HALF, width * HALF)
    levels = np.zeros((2, height * width), np.uint8)
    parts = np.full(height * width, SPACE, np.uint8)
    mottle = mix_planes(height, width, ((1, 9 / HALF), (1, 4 / HALF)), generator)
    bend = smooth_plane(height, width, 130 / HALF, generator)
    ripple = smooth_plane(height, width, 38 / HALF, generator)
    shared = Waves(mottle.ravel(), bend.ravel(), ripple.ravel())
    flat = texture.ravel()
    order = np.argsort(flat, kind="stable")
    edges = np.searchsorted(flat[order], np.arange(len(recipes) + 2))
    for index, recipe in enumerate(recipes, start=1):
        own = order[edges[index] : edges[index + 1]]
        if not len(own):
            continue
        y, x = np.divmod(own.astype(np.int32), np.int32(width))
        y, x = (HALF * y + 1).astype(np.float32), (HALF * x + 1).astype(np.float32)
        waves = Waves(shared.mottle[own], shared.bend[own], shared.ripple[own])
        parts[own], hematoxylin, eosin = paint_ground(recipe, y, x, waves, canvas, generator)
        levels[0, own], levels[1, own] = np.clip(hematoxylin, 0, 255), np.clip(eosin, 0, 255)
    full = [
        np.asarray(
            Image.fromarray(level.reshape(height, width)).resize(canvas[::-1], Image.Resampling.BILINEAR)
        ).copy()
        for level in levels
    ]
    return Levels(*full), parts.reshape(height, width)


def _add_bodies(levels: Levels, parts: PartMap, own: Own, recipe: Recipe, generator: Generator) -> None:
    """Everything small that lies in the tissue of one recipe."""
    if recipe.spindles is not None:
        places = _keep_places_in(_scatter_places(own, recipe.spindles.spacing, generator), parts, MATRIX)
        _stamp_nuclei(levels, places, recipe.spindles, 0.0, generator)
    if recipe.cells is not None:
        places = _keep_places_in(_scatter_places(own, recipe.cells.spacing, generator), parts, CELLS)
        _stamp_nuclei(levels, places, recipe.cells, recipe.mitoses, generator)
    if recipe.red_cells:
        home = SPACE if recipe.architecture == "channels" else MATRIX
        places = _keep_places_in(_scatter_places(own, _RED_CELLS.spacing, generator), parts, home)
        places = places[generator.random(len(places)) < recipe.red_cells]
        _stamp_in_any_direction(levels, places, _RED_CELLS, Stain(10, 185), generator)
    if recipe.debris:
        dust = replace(_DUST, spacing=(1000 / recipe.debris) ** 0.5)
        places = _scatter_places(own, dust.spacing, generator)
        _stamp_in_any_direction(levels, places, dust, Stain(225, 60), generator)


def _stamp_nuclei(
    levels: Levels, places: Points, nuclei: Nuclei, mitoses: float, generator: Generator
) -> None:
    """Nuclei that lie about as their neighbours do, some of them dividing."""
    y, x = places[:, 0].astype(np.float32), places[:, 1].astype(np.float32)
    # Spindles follow the bundles; on round nuclei the common direction hardly shows.
    angle = 0.9 * smooth_field(y, x, 120, generator) + generator.normal(0, 0.35, len(places))
    which = _choose_sprites(angle.astype(np.float32), generator)
    dividing = generator.random(len(places)) < mitoses
    stain = Stain(nuclei.level, 50, hides=0.6)
    bank = _draw_nucleus_bank(nuclei, generator)
    _stamp_bodies(levels, places[~dividing], which[~dividing], bank, stain)
    if dividing.any():
        bank = _draw_mitosis_bank(nuclei.radius, generator)
        _stamp_bodies(levels, places[dividing], which[dividing], bank, Stain(250, 40, hides=0.6))


def _stamp_in_any_direction(
    levels: Levels, places: Points, bodies: Nuclei, stain: Stain, generator: Generator
) -> None:
    """Bodies that lie in any direction."""
    which = _choose_sprites(generator.uniform(0, np.pi, len(places)).astype(np.float32), generator)
    _stamp_bodies(levels, places, which, _draw_nucleus_bank(bodies, generator), stain)


def _scatter_places(own: Own, spacing: float, generator: Generator) -> Points:
    """Evenly scattered (y, x) places in the tissue of one concept."""
    height, width = own.shape[0] * FINE, own.shape[1] * FINE
    points = scatter(height, width, spacing, 0.85, generator)
    y, x = points.y.ravel().astype(np.int64), points.x.ravel().astype(np.int64)
    inside = (y >= 0) & (x >= 0) & (y < height) & (x < width)
    y, x = y[inside], x[inside]
    wanted = own[y // FINE, x // FINE]
    return np.stack([y[wanted], x[wanted]], axis=1)


def _keep_places_in(places: Points, parts: PartMap, home: int) -> Int[np.ndarray, "inside 2"]:
    """The places that are part of cells, matrix or space."""
    return places[parts[places[:, 0] // HALF, places[:, 1] // HALF] == home]


def _blur_regions(levels: Levels, labels: LabelMap, recipes: Sequence[Recipe]) -> None:
    """Out of focus where a recipe says so."""
    blurred = np.array([False, *(recipe.blur for recipe in recipes)])[labels.texture]
    if not blurred.any():
        return
    where = blurred.repeat(FINE, axis=0).repeat(FINE, axis=1)
    for level in levels:
        image = Image.fromarray(level)
        small = image.reduce(6).resize(image.size, Image.Resampling.BICUBIC)
        np.copyto(level, np.asarray(small), where=where)


def _level_stains(
    levels: Levels, labels: LabelMap, recipes: Sequence[Recipe], generator: Generator
) -> Levels:
    """Every concept at about the same mean stain, times a thickness that varies over the section."""
    flat = labels.texture.ravel()
    counts = np.maximum(np.bincount(flat, minlength=len(recipes) + 1), 1)
    height, width = labels.texture.shape
    thickness = smooth_plane(height, width, 70, generator).ravel()
    step = np.clip((thickness / 2.5 + 1) / 2 * _THICKNESS_STEPS, 0, _THICKNESS_STEPS - 1).astype(np.uint16)
    where = flat.astype(np.uint16) * np.uint16(_THICKNESS_STEPS) + step
    where = where.reshape(labels.texture.shape).repeat(FINE, axis=0).repeat(FINE, axis=1)
    result = []
    for level, wanted in zip(levels, (LEVELLED_HEMATOXYLIN, LEVELLED_EOSIN), strict=True):
        # One pixel in sixteen is enough for a mean.
        mean = np.bincount(flat, weights=level[::FINE, ::FINE].ravel(), minlength=len(recipes) + 1) / counts
        gain = np.clip(wanted / np.maximum(mean, 1), 1 / _LARGEST_GAIN, _LARGEST_GAIN)
        gain = np.where([False, *(recipe.levelled for recipe in recipes)], gain, 1.0)
        table = _gain_table(gain.astype(np.float32))
        result.append(table[where, level])
    return Levels(*result)


def _gain_table(gain: Float32[np.ndarray, "textures"]) -> UInt8[np.ndarray, "rows 256"]:
    """New level by texture and thickness step (rows) and old level (columns)."""
    middle = (np.arange(_THICKNESS_STEPS) + 0.5) / _THICKNESS_STEPS * 2 - 1
    thickness = np.exp(_THICKNESS_SPREAD * 2.5 * middle)
    factor = (gain[:, None] * thickness[None, :]).reshape(-1, 1)
    return np.clip(factor * np.arange(256)[None, :], 0, 255).astype(np.uint8)


def _add_pigment(image: Pixels, labels: LabelMap, recipes: Sequence[Recipe], generator: Generator) -> None:
    """Grains of pigment, ink or carbon in clumps where a recipe has them."""
    for index, recipe in enumerate(recipes, start=1):
        own = labels.texture == index
        if not recipe.pigment or not own.any():
            continue
        grains = replace(_GRAINS, spacing=(1000 / recipe.pigment) ** 0.5)
        places = _scatter_places(own, grains.spacing, generator)
        y, x = places[:, 0].astype(np.float32), places[:, 1].astype(np.float32)
        places = places[smooth_field(y, x, 90, generator) > 0.4]
        bank = _draw_nucleus_bank(grains, generator)
        which = generator.integers(len(bank), size=len(places))
        for number, sprite in enumerate(bank):
            rows = (places[which == number, 0][:, None] + sprite.dy).ravel()
            columns = (places[which == number, 1][:, None] + sprite.dx).ravel()
            inside = (rows >= 0) & (columns >= 0) & (rows < image.shape[0]) & (columns < image.shape[1])
            image[rows[inside], columns[inside]] = recipe.pigment_rgb
