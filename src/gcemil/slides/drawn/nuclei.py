"""Nuclei and other small bodies, stamped from a bank of sprites.

A bank holds one population in twelve directions and a few shapes each. All bodies of one sprite are stamped at once; where
two overlap the later one lies on top, as cells do in a section.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8
from numpy.random import Generator

from gcemil.slides.drawn.recipes import Nuclei

DIRECTIONS, SHAPES = 12, 5

Level = UInt8[np.ndarray, "h w"]
Points = Int[np.ndarray, "k 2"]
Offsets = Int[np.ndarray, "s s"]
Shades = Float[np.ndarray, "s s"]


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


def nucleus_bank(nuclei: Nuclei, generator: Generator) -> list[Sprite]:
    """Sprites of a population, all directions of the first shape first."""
    bank = []
    for _ in range(SHAPES):
        radius = nuclei.radius * np.exp(nuclei.spread * generator.standard_normal())
        long, short = radius * np.sqrt(nuclei.elongation), radius / np.sqrt(nuclei.elongation)
        lobes, speckle = generator.uniform(0, 2 * np.pi, 2), int(generator.integers(1 << 30))
        for step in range(DIRECTIONS):
            angle = np.pi * step / DIRECTIONS
            bank.append(_nucleus(long, short, angle, lobes, nuclei.vesicular, 0.5 * nuclei.spread, speckle))
    return bank


def mitosis_bank(radius: float, generator: Generator) -> list[Sprite]:
    """Dark plates and pairs of plates in a clear cell, in all directions."""
    bank = []
    for shape in range(SHAPES):
        for step in range(DIRECTIONS):
            angle = np.pi * step / DIRECTIONS + generator.normal(0, 0.1)
            bank.append(_mitosis(radius, angle, apart=0.55 if shape % 2 else 0.0, generator=generator))
    return bank


def stamp(
    hematoxylin: Level,
    eosin: Level,
    points: Points,
    which: Int[np.ndarray, "k"],
    bank: list[Sprite],
    stain: Stain,
) -> None:
    """Draw a body of the bank at every (y, x) point; bodies that would leave the canvas are left out."""
    height, width = hematoxylin.shape
    flat_h, flat_e = hematoxylin.reshape(-1), eosin.reshape(-1)
    reach = max(int(max(abs(s.dy).max(), abs(s.dx).max())) for s in bank)
    inside = (points >= reach).all(axis=1) & (points < np.array([height, width]) - reach).all(axis=1)
    order = np.argsort(which[inside], kind="stable")
    points, which = points[inside][order], which[inside][order]
    edges = np.searchsorted(which, np.arange(len(bank) + 1))
    for sprite, start, stop in zip(bank, edges[:-1], edges[1:], strict=True):
        if start == stop:
            continue
        base = points[start:stop, 0] * width + points[start:stop, 1]
        index = (base[:, None] + (sprite.dy * width + sprite.dx)[None, :]).ravel()
        opacity, shade = np.tile(sprite.opacity, stop - start), np.tile(sprite.shade, stop - start)
        flat_h[index] = _mixed(flat_h[index], stain.hematoxylin * shade, opacity)
        flat_e[index] = _mixed(flat_e[index], stain.eosin * shade, opacity * np.float32(stain.hides))


def directions_of(angle: Float32[np.ndarray, "k"], generator: Generator) -> Int[np.ndarray, "k"]:
    """A sprite of any shape for each direction."""
    step = np.round(angle / np.pi * DIRECTIONS).astype(np.int64) % DIRECTIONS
    return step + DIRECTIONS * generator.integers(SHAPES, size=len(angle))


def _nucleus(
    long: float,
    short: float,
    angle: float,
    lobes: Float[np.ndarray, "2"],
    vesicular: float,
    lobed: float,
    speckle: int,
) -> Sprite:
    y, x = _square(long * 1.25 + 2)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    around = np.arctan2(v, u)
    outline = 1 + lobed * (0.6 * np.cos(2 * around + lobes[0]) + 0.5 * np.cos(3 * around + lobes[1]))
    depth = np.hypot(u / long, v / short) / outline
    opacity = np.clip((1 - depth) * short / 1.6 + 0.5, 0, 1)
    chromatin = np.random.default_rng(speckle).normal(0, 0.09, size=y.shape)
    shade = np.clip(1 - vesicular * (1 - depth**2) + chromatin, 0.2, 1.15)
    return _sprite(y, x, opacity, shade)


def _mitosis(radius: float, angle: float, *, apart: float, generator: Generator) -> Sprite:
    y, x = _square(radius * 1.3 + 2)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    ragged = generator.normal(0, 0.08, size=y.shape)
    plate = np.minimum(
        np.hypot(u / (0.85 * radius), (v - apart * radius) / (0.24 * radius)),
        np.hypot(u / (0.85 * radius), (v + apart * radius) / (0.24 * radius)),
    )
    dark = np.clip((1 - plate + ragged) * 2.5 + 0.5, 0, 1)
    clear = np.clip((1.25 - np.hypot(u, v) / radius) * 3, 0, 1)
    return _sprite(y, x, np.maximum(dark, 0.85 * clear), np.clip(dark, 0.08, 1))


def _square(reach: float) -> tuple[Offsets, Offsets]:
    offset = np.arange(-int(reach), int(reach) + 1)
    y, x = np.meshgrid(offset, offset, indexing="ij")
    return y, x


def _sprite(y: Offsets, x: Offsets, opacity: Shades, shade: Shades) -> Sprite:
    seen = opacity > 0.04
    return Sprite(y[seen], x[seen], opacity[seen].astype(np.float32), shade[seen].astype(np.float32))


def _mixed(
    old: UInt8[np.ndarray, "p"], new: Float32[np.ndarray, "p"], opacity: Float32[np.ndarray, "p"]
) -> UInt8[np.ndarray, "p"]:
    return np.clip(old + opacity * (new - old), 0, 255).astype(np.uint8)
