"""A slide as the prefilter sees it: one coarse image, read once, and a small square of it around every patch.

  crop of a patch    crop_px x crop_px pixels of the image around the patch's centre; white beyond the scanned part
  optical density    -log10((pixel + 1) / 256), standardised by mean and deviation of all crops of the slide

Stains differ between laboratories, and the standardised density is what is left when the slide's own stain is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from gcemil.errors import UsageError
from gcemil.slides.grid import PatchGrid
from gcemil.slides.reader import Bounds, Pixels, SlideReader
from gcemil.slides.view import overview

Crops = UInt8[np.ndarray, "n p p 3"]
DensityTable = Float[np.ndarray, "3 256"]
Densities = Float[Tensor, "n 3 p p"]

WHITE = 255
FLATTEST = 0.02
"""Deviations of the density below this are the noise of a blank slide and are not blown up to 1."""


@dataclass(frozen=True, eq=False)
class LowView:
    """The scanned part of a slide at a few micrometres per pixel."""

    image: Pixels
    bounds: Bounds

    @property
    def scale(self) -> tuple[float, float]:
        """Level-0 pixels per pixel of the image, along x and y."""
        height, width = self.image.shape[:2]
        return self.bounds.width / width, self.bounds.height / height


def low_view(slide: SlideReader, mpp: float) -> LowView:
    """The view of an open slide at this many micrometres per pixel."""
    return LowView(overview(slide, mpp), slide.bounds)


def patch_crops(view: LowView, grid: PatchGrid, crop_px: int) -> Crops:
    """The square of the view around every patch, gathered at once."""
    if crop_px < 1:
        raise UsageError(f"A crop has at least one pixel, got {crop_px}.")
    left, top = crop_corners(view, grid, crop_px)
    height, width = view.image.shape[:2]
    # One index for all that lies outside: the row and column of white around the image.
    rows = outside_is(top[:, None] + np.arange(crop_px), height)
    columns = outside_is(left[:, None] + np.arange(crop_px), width)
    framed = np.pad(view.image, ((0, 1), (0, 1), (0, 0)), constant_values=WHITE)
    return framed[rows[:, :, None], columns[:, None, :]]


def crop_corners(
    view: LowView, grid: PatchGrid, crop_px: int
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """First column and first row of every crop, to the nearest pixel."""
    centres = (grid.coords + grid.level0_side / 2 - (view.bounds.x, view.bounds.y)) / view.scale
    corners = np.floor(centres - crop_px / 2 + 0.5).astype(np.int64)
    return corners[:, 0], corners[:, 1]


def outside_is(places: Int[np.ndarray, "n p"], length: int) -> Int[np.ndarray, "n p"]:
    """Places along one axis; those before 0 or from `length` on become `length`."""
    return np.where((places >= 0) & (places < length), places, length)


def density_table(crops: Crops) -> DensityTable:
    """The standardised density of each of the 256 values of each channel, from all crops of one slide."""
    counts = np.stack([np.bincount(crops[..., channel].ravel(), minlength=256) for channel in range(3)])
    density = -np.log10((np.arange(256) + 1) / 256)
    share = counts / max(1, counts[0].sum())
    mean = share @ density
    deviation = np.sqrt(np.maximum(share @ density**2 - mean**2, 0))
    table = (density - mean[:, None]) / np.maximum(deviation, FLATTEST)[:, None]
    return table.astype(np.float32)


def densities(crops: Crops, table: DensityTable) -> Densities:
    """Crops as the student takes them: standardised densities, channels first."""
    channels = [torch.from_numpy(table[channel][crops[..., channel]]) for channel in range(3)]
    return torch.stack(channels, dim=1)
