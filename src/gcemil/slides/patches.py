"""Patches as arrays: what an encoder is fed with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, UInt8

from gcemil.slides.grid import PatchGrid
from gcemil.slides.reader import Pixels, SlideReader
from gcemil.slides.view import view

PatchBatch = UInt8[np.ndarray, "b p p 3"]


def read_patch(slide: SlideReader, grid: PatchGrid, index: int, *, patch_px: int | None = None) -> Pixels:
    """One patch at the grid's resolution, or the same square in fewer pixels: its low-magnification view."""
    side, pixels = grid.level0_side, patch_px or grid.settings.patch_px
    x, y = (float(value) for value in grid.coords[index])
    return view(slide, left=x, top=y, width=side, height=side, size=(pixels, pixels))


def patch_batches(
    slide: SlideReader,
    grid: PatchGrid,
    batch_size: int,
    *,
    rows: Int[np.ndarray, "k"] | None = None,
    patch_px: int | None = None,
) -> Iterator[PatchBatch]:
    """All patches, or these rows of the grid, in order."""
    wanted = np.arange(len(grid)) if rows is None else rows
    for start in range(0, len(wanted), batch_size):
        chosen = wanted[start : start + batch_size].tolist()
        yield np.stack([read_patch(slide, grid, index, patch_px=patch_px) for index in chosen])


def probe_patches(slide: SlideReader, grid: PatchGrid, wanted: int = 5) -> None:
    """Read a few patches spread over the grid, so that a damaged slide is found before its features are wanted."""
    for index in np.unique(np.linspace(0, len(grid) - 1, wanted).astype(int)).tolist():
        read_patch(slide, grid, index)
