"""The plan of a tissue: which of its pixels are cells, matrix or empty, and how strongly they are stained.

Everything happens on the pixels of one concept alone, as flat arrays, so drawing costs what the tissue covers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from numpy.random import Generator

from gcemil.simulation.label_map import Positions, find_nearest_two, scatter, smooth_field
from gcemil.simulation.recipes import Architecture, Recipe

MATRIX, CELLS, APICAL, SPACE = 0, 1, 2, 3
"""What a pixel belongs to; APICAL is cytoplasm without nuclei, SPACE is a lumen, a vessel or a fat cell."""

Parts = UInt8[np.ndarray, "n"]
Canvas = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True, eq=False)
class Waves:
    """Fields that all concepts of a slide share, at the pixels of one of them."""

    mottle: Positions
    bend: Positions
    ripple: Positions


def paint_ground(
    recipe: Recipe, y: Positions, x: Positions, waves: Waves, canvas: Canvas, generator: Generator
) -> tuple[Parts, Positions, Positions]:
    """Compartments of the recipe's architecture, and how much hematoxylin and eosin its pixels hold before nuclei."""
    parts = ARCHITECTURES[recipe.architecture](recipe, y, x, canvas, generator)
    levels = np.array([recipe.matrix, recipe.cytoplasm, recipe.cytoplasm, (0.0, 2.0)], np.float32)
    hematoxylin, eosin = levels[parts, 0], levels[parts, 1]
    if recipe.fibre:
        wave = np.float32(recipe.fibre) * _draw_fibres(recipe, y, x, waves, generator)
        eosin += np.where(parts == MATRIX, wave, np.float32(0))
    if recipe.grain:
        mottle = np.where(parts == SPACE, np.float32(0), waves.mottle)
        eosin += np.float32(recipe.grain) * mottle
        hematoxylin += np.float32(recipe.grain * 0.35) * mottle
    if recipe.fold:
        band = np.abs(smooth_field(y, x, 150, generator)) < 0.22
        hematoxylin[band] = hematoxylin[band] * np.float32(1.9) + 14
        eosin[band] *= np.float32(1.8)
    return parts, hematoxylin, eosin


def _draw_fibres(recipe: Recipe, y: Positions, x: Positions, waves: Waves, generator: Generator) -> Positions:
    """Wavy bundles from -1 to 1, with pale clefts between them."""
    phase = _project_anywhere(y, x, generator) * np.float32(2 * np.pi / recipe.wavelength)
    phase += np.float32(recipe.waviness) * (np.float32(5) * waves.bend + np.float32(1.6) * waves.ripple)
    wave = np.sin(phase)
    cleft = np.sin(phase * np.float32(0.31) + waves.ripple) > 0.93
    wave[cleft] = -2.2
    return wave


def _project_anywhere(y: Positions, x: Positions, generator: Generator) -> Positions:
    """How far along a random direction each pixel lies."""
    angle = generator.uniform(0, np.pi)
    return np.float32(np.cos(angle)) * x + np.float32(np.sin(angle)) * y


def _sheet(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """Cells everywhere, or matrix everywhere where the recipe fills nothing."""
    return np.full(len(y), CELLS if recipe.fill > 0 else MATRIX, np.uint8)


def _nests(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """Islands of cells in matrix."""
    field = smooth_field(y, x, recipe.scale, generator)
    field += np.float32(0.35) * smooth_field(y, x, recipe.scale / 4, generator)
    return np.where(field > _threshold_for(field, recipe.fill), CELLS, MATRIX).astype(np.uint8)


def _papillae(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """Fingers of matrix lined by cells, empty space between them."""
    field = smooth_field(y, x, recipe.scale, generator)
    field += np.float32(0.25) * smooth_field(y, x, recipe.scale / 3, generator)
    core, edge = _threshold_for(field, 0.16), _threshold_for(field, 0.16 + recipe.fill)
    return np.select([field > core, field > edge], [MATRIX, CELLS], SPACE).astype(np.uint8)


def _channels(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """A network of thin vessels between cells."""
    field = np.abs(smooth_field(y, x, recipe.scale, generator))
    return np.where(field < _threshold_for(field, 1 - recipe.fill), SPACE, CELLS).astype(np.uint8)


def _strands(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """Cells in single file along the fibres of the matrix."""
    along = _project_anywhere(y, x, generator)
    phase = along * np.float32(2 * np.pi / recipe.scale) + 4 * smooth_field(y, x, 150, generator)
    # Files are interrupted, as cells of a file do not touch all the way.
    wave = np.sin(phase) + np.float32(0.5) * smooth_field(y, x, 50, generator)
    return np.where(wave > _threshold_for(wave, recipe.fill), CELLS, MATRIX).astype(np.uint8)


def _glands(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """Rings of cells around an empty middle: nuclei outside, cytoplasm inside."""
    points = scatter(*canvas, recipe.scale, 0.55, generator)
    first, second, nearest = find_nearest_two(points, y, x)
    sizes = np.exp(recipe.irregular * generator.standard_normal(points.rows * points.columns))
    radius = np.float32(recipe.fill * recipe.scale) * sizes.astype(np.float32)[nearest]
    wobble = 1 + np.float32(recipe.irregular) * smooth_field(y, x, recipe.scale / 3, generator)
    depth = first / radius * wobble
    # Two glands never run into each other: a rim of matrix stays between them.
    apart = second - first > 5
    basal = 1 - np.float32(0.5) * (1 - recipe.lumen)
    parts = np.select([depth < recipe.lumen, depth < basal, depth < 1], [SPACE, APICAL, CELLS], MATRIX)
    return np.where(apart | (depth < basal), parts, MATRIX).astype(np.uint8)


def _cribriform(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """Sheets of cells, punched with round holes."""
    points = scatter(*canvas, recipe.scale, 0.6, generator)
    first, _, nearest = find_nearest_two(points, y, x)
    sizes = np.exp(0.25 * generator.standard_normal(points.rows * points.columns)).astype(np.float32)
    holes = first < np.float32(recipe.lumen * recipe.scale) * sizes[nearest]
    field = smooth_field(y, x, 4 * recipe.scale, generator)
    cells = field > _threshold_for(field, recipe.fill)
    return np.select([cells & holes, cells], [SPACE, CELLS], MATRIX).astype(np.uint8)


def _honeycomb(recipe: Recipe, y: Positions, x: Positions, canvas: Canvas, generator: Generator) -> Parts:
    """Large round spaces with thin walls: fat, alveoli, clear cells. The matrix is what fills the spaces, if anything."""
    points = scatter(*canvas, recipe.scale, 0.6, generator)
    first, second, _ = find_nearest_two(points, y, x)
    filling = MATRIX if max(recipe.matrix) > 5 else SPACE
    return np.where(second - first < recipe.fill * recipe.scale, CELLS, filling).astype(np.uint8)


def _threshold_for(field: Positions, share: float) -> float:
    """The value that this share of the field exceeds."""
    if share >= 1:
        return -np.inf
    # A sample is enough, and far quicker than ordering every pixel.
    return float(np.quantile(field[:: max(1, len(field) // 5000)], 1 - share)) if len(field) else 0.0


ARCHITECTURES: dict[Architecture, Callable[[Recipe, Positions, Positions, Canvas, Generator], Parts]] = {
    "sheet": _sheet,
    "nests": _nests,
    "papillae": _papillae,
    "channels": _channels,
    "glands": _glands,
    "cribriform": _cribriform,
    "honeycomb": _honeycomb,
    "strands": _strands,
}
