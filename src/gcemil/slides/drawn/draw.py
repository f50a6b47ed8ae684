"""A label map and recipes in, an H&E-like image out.

The ground of every concept is painted at half resolution, nuclei are stamped at full resolution, then the mean stain of all
concepts is levelled and the section's thickness varied, so that colour says more about the place than about the concept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float32, Int, UInt8
from numpy.random import Generator
from PIL import Image

from gcemil.slides.drawn.architecture import CELLS, MATRIX, SPACE, Waves, painted_ground
from gcemil.slides.drawn.label_map import FINE, LabelMap
from gcemil.slides.drawn.noise import scatter, smooth_field, smooth_plane
from gcemil.slides.drawn.nuclei import Stain, directions_of, mitosis_bank, nucleus_bank, stamp
from gcemil.slides.drawn.recipes import Nuclei, Recipe
from gcemil.slides.drawn.stains import Dyes, colour_table
from gcemil.slides.reader import Pixels

HALF = 2
LEVELLED_HEMATOXYLIN, LEVELLED_EOSIN = 78.0, 74.0
LARGEST_GAIN = 2.0
THICKNESS_STEPS = 24
THICKNESS_SPREAD = 0.16
RED_CELLS = Nuclei(spacing=15, radius=6.6, spread=0.06, elongation=1.1, vesicular=0.25)
DUST = Nuclei(spacing=12, radius=2.3, spread=0.4, elongation=1.5, vesicular=0)
GRAINS = Nuclei(spacing=12, radius=3.2, spread=0.3, elongation=1.4)

Level = UInt8[np.ndarray, "h w"]
Parts = UInt8[np.ndarray, "y x"]
Own = Bool[np.ndarray, "rows columns"]
Places = Int[np.ndarray, "k 2"]


def draw_tissue(labels: LabelMap, recipes: Sequence[Recipe], dyes: Dyes, generator: Generator) -> Pixels:
    """The image of a label map at full resolution."""
    hematoxylin, eosin, parts = _painted(labels, recipes, generator)
    for index in np.unique(labels.texture[labels.texture > 0]).tolist():
        _populate(hematoxylin, eosin, parts, labels.texture == index, recipes[index - 1], generator)
    _blur(hematoxylin, eosin, labels, recipes)
    hematoxylin, eosin = _levelled(hematoxylin, eosin, labels, recipes, generator)
    index = hematoxylin.astype(np.uint16)
    index <<= 8
    index |= eosin
    image = colour_table(dyes)[index]
    _pigmented(image, labels, recipes, generator)
    return image


def _painted(labels: LabelMap, recipes: Sequence[Recipe], generator: Generator) -> tuple[Level, Level, Parts]:
    """Stain levels of the ground at full resolution, and at half resolution what each pixel is part of."""
    factor = FINE // HALF
    texture = labels.texture.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = texture.shape
    canvas = (height * HALF, width * HALF)
    levels = np.zeros((2, height * width), np.uint8)
    parts = np.full(height * width, SPACE, np.uint8)
    mottle = smooth_plane(height, width, 9 / HALF, generator) + smooth_plane(
        height, width, 4 / HALF, generator
    )
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
        ground = painted_ground(recipe, y, x, waves, canvas, generator)
        levels[0, own] = np.clip(ground.hematoxylin, 0, 255)
        levels[1, own] = np.clip(ground.eosin, 0, 255)
        parts[own] = ground.parts
    full = [
        np.asarray(
            Image.fromarray(level.reshape(height, width)).resize(canvas[::-1], Image.Resampling.BILINEAR)
        ).copy()
        for level in levels
    ]
    return full[0], full[1], parts.reshape(height, width)


def _populate(
    hematoxylin: Level,
    eosin: Level,
    parts: Parts,
    own: Own,
    recipe: Recipe,
    generator: Generator,
) -> None:
    """Everything small that lies in the tissue of one recipe."""
    if recipe.spindles is not None:
        places = _at_home(_places(own, recipe.spindles.spacing, generator), parts, MATRIX)
        _stamp_nuclei(hematoxylin, eosin, places, recipe.spindles, 0.0, generator)
    if recipe.cells is not None:
        places = _at_home(_places(own, recipe.cells.spacing, generator), parts, CELLS)
        _stamp_nuclei(hematoxylin, eosin, places, recipe.cells, recipe.mitoses, generator)
    if recipe.red_cells:
        home = SPACE if recipe.architecture == "channels" else MATRIX
        places = _at_home(_places(own, RED_CELLS.spacing, generator), parts, home)
        places = places[generator.random(len(places)) < recipe.red_cells]
        _stamp_anyhow(hematoxylin, eosin, places, RED_CELLS, Stain(10, 185), generator)
    if recipe.debris:
        dust = replace(DUST, spacing=(1000 / recipe.debris) ** 0.5)
        places = _places(own, dust.spacing, generator)
        _stamp_anyhow(hematoxylin, eosin, places, dust, Stain(225, 60), generator)


def _stamp_nuclei(
    hematoxylin: Level, eosin: Level, places: Places, nuclei: Nuclei, mitoses: float, generator: Generator
) -> None:
    """Nuclei that lie about as their neighbours do, some of them dividing."""
    y, x = places[:, 0].astype(np.float32), places[:, 1].astype(np.float32)
    # Spindles follow the bundles; on round nuclei the common direction hardly shows.
    angle = 0.9 * smooth_field(y, x, 120, generator) + generator.normal(0, 0.35, len(places))
    which = directions_of(angle.astype(np.float32), generator)
    dividing = generator.random(len(places)) < mitoses
    stain = Stain(nuclei.level, 50, hides=0.6)
    stamp(hematoxylin, eosin, places[~dividing], which[~dividing], nucleus_bank(nuclei, generator), stain)
    if dividing.any():
        bank = mitosis_bank(nuclei.radius, generator)
        stamp(hematoxylin, eosin, places[dividing], which[dividing], bank, Stain(250, 40, hides=0.6))


def _stamp_anyhow(
    hematoxylin: Level, eosin: Level, places: Places, bodies: Nuclei, stain: Stain, generator: Generator
) -> None:
    """Bodies that lie in any direction."""
    which = directions_of(generator.uniform(0, np.pi, len(places)).astype(np.float32), generator)
    stamp(hematoxylin, eosin, places, which, nucleus_bank(bodies, generator), stain)


def _places(own: Own, spacing: float, generator: Generator) -> Places:
    """Evenly scattered (y, x) places in the tissue of one concept."""
    height, width = own.shape[0] * FINE, own.shape[1] * FINE
    points = scatter(height, width, spacing, 0.85, generator)
    y, x = points.y.ravel().astype(np.int64), points.x.ravel().astype(np.int64)
    inside = (y >= 0) & (x >= 0) & (y < height) & (x < width)
    y, x = y[inside], x[inside]
    wanted = own[y // FINE, x // FINE]
    return np.stack([y[wanted], x[wanted]], axis=1)


def _at_home(places: Places, parts: Parts, home: int) -> Int[np.ndarray, "inside 2"]:
    """The places that are part of cells, matrix or space."""
    return places[parts[places[:, 0] // HALF, places[:, 1] // HALF] == home]


def _blur(hematoxylin: Level, eosin: Level, labels: LabelMap, recipes: Sequence[Recipe]) -> None:
    """Out of focus where a recipe says so."""
    blurred = np.array([False, *(recipe.blur for recipe in recipes)])[labels.texture]
    if not blurred.any():
        return
    where = blurred.repeat(FINE, axis=0).repeat(FINE, axis=1)
    for level in (hematoxylin, eosin):
        image = Image.fromarray(level)
        small = image.reduce(6).resize(image.size, Image.Resampling.BICUBIC)
        np.copyto(level, np.asarray(small), where=where)


def _levelled(
    hematoxylin: Level, eosin: Level, labels: LabelMap, recipes: Sequence[Recipe], generator: Generator
) -> tuple[Level, Level]:
    """Every concept at about the same mean stain, times a thickness that varies over the section."""
    flat = labels.texture.ravel()
    counts = np.maximum(np.bincount(flat, minlength=len(recipes) + 1), 1)
    height, width = labels.texture.shape
    thickness = smooth_plane(height, width, 70, generator).ravel()
    step = np.clip((thickness / 2.5 + 1) / 2 * THICKNESS_STEPS, 0, THICKNESS_STEPS - 1).astype(np.uint16)
    where = flat.astype(np.uint16) * np.uint16(THICKNESS_STEPS) + step
    where = where.reshape(labels.texture.shape).repeat(FINE, axis=0).repeat(FINE, axis=1)
    result = []
    for level, wanted in ((hematoxylin, LEVELLED_HEMATOXYLIN), (eosin, LEVELLED_EOSIN)):
        mean = np.bincount(flat, weights=level[::FINE, ::FINE].ravel(), minlength=len(recipes) + 1) / counts
        gain = np.clip(wanted / np.maximum(mean, 1), 1 / LARGEST_GAIN, LARGEST_GAIN)
        gain = np.where([False, *(recipe.levelled for recipe in recipes)], gain, 1.0)
        table = _gain_table(gain.astype(np.float32))
        result.append(table[where, level])
    return result[0], result[1]


def _gain_table(gain: Float32[np.ndarray, "textures"]) -> UInt8[np.ndarray, "rows 256"]:
    """New level by texture and thickness step (rows) and old level (columns)."""
    middle = (np.arange(THICKNESS_STEPS) + 0.5) / THICKNESS_STEPS * 2 - 1
    thickness = np.exp(THICKNESS_SPREAD * 2.5 * middle)
    factor = (gain[:, None] * thickness[None, :]).reshape(-1, 1)
    return np.clip(factor * np.arange(256)[None, :], 0, 255).astype(np.uint8)


def _pigmented(image: Pixels, labels: LabelMap, recipes: Sequence[Recipe], generator: Generator) -> None:
    """Grains of pigment, ink or carbon in clumps where a recipe has them."""
    for index, recipe in enumerate(recipes, start=1):
        own = labels.texture == index
        if not recipe.pigment or not own.any():
            continue
        grains = replace(GRAINS, spacing=(1000 / recipe.pigment) ** 0.5)
        places = _places(own, grains.spacing, generator)
        y, x = places[:, 0].astype(np.float32), places[:, 1].astype(np.float32)
        places = places[smooth_field(y, x, 90, generator) > 0.4]
        bank = nucleus_bank(grains, generator)
        which = generator.integers(len(bank), size=len(places))
        for number, sprite in enumerate(bank):
            rows = (places[which == number, 0][:, None] + sprite.dy).ravel()
            columns = (places[which == number, 1][:, None] + sprite.dx).ravel()
            inside = (rows >= 0) & (columns >= 0) & (rows < image.shape[0]) & (columns < image.shape[1])
            image[rows[inside], columns[inside]] = recipe.pigment_rgb
