"""The grid of patches: level-0 positions from physical sizes, kept where enough is tissue.

How much of a patch is tissue comes from running sums over the mask: the area above and left of a
point is bilinear inside every pixel, so interpolating these sums gives exact areas for boxes that
begin and end anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from gcemil.errors import InputError, UsageError
from gcemil.slides.reader import Pixels, SlideReader, magnification, read_region
from gcemil.slides.tissue import TissueMask
from gcemil.units import LevelZeroPx, Microns

Shares = Float[np.ndarray, "n"]
Sides = tuple[float, float]
"""Width and height."""


_LARGEST_MAGNIFIED = 1.2
"""A slide coarser than requested by more than this factor lacks the detail."""
_PROBED = 5
"""Patches read to find a damaged slide."""
PatchBatch = UInt8[np.ndarray, "b p p 3"]


def box_shares(
    mask: Bool[np.ndarray, "h w"], low: Float[np.ndarray, "n 2"], high: Float[np.ndarray, "n 2"]
) -> Shares:
    """Share of each box, from (x, y) `low` to `high` in mask pixels, that the mask covers."""
    height, width = mask.shape
    sums = np.zeros((height + 1, width + 1), dtype=np.int32)
    np.cumsum(mask, axis=0, dtype=np.int32, out=sums[1:, 1:])
    np.cumsum(sums[1:, 1:], axis=1, out=sums[1:, 1:])

    def area(x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        # The area covered above and left of a point is bilinear inside a pixel, so the
        # interpolation is exact.
        x, y = np.clip(x, 0, width), np.clip(y, 0, height)
        column, row = np.minimum(x.astype(int), width - 1), np.minimum(y.astype(int), height - 1)
        right, down = x - column, y - row
        upper = sums[row, column] * (1 - right) + sums[row, column + 1] * right
        lower = sums[row + 1, column] * (1 - right) + sums[row + 1, column + 1] * right
        return upper * (1 - down) + lower * down

    inside = (
        area(high[:, 0], high[:, 1])
        - area(low[:, 0], high[:, 1])
        - area(high[:, 0], low[:, 1])
        + area(low[:, 0], low[:, 1])
    )
    return np.clip(inside / (high - low).prod(axis=1), 0, 1)


def covered_share(
    mask: Bool[np.ndarray, "h w"], corners: Float[np.ndarray, "n 2"], size: Sides
) -> Shares:
    """Share of boxes of one size that the mask covers, from their (x, y) corners in mask pixels."""
    # Differences of large sums; without rounding a full box could fall short of 1.
    return np.round(box_shares(mask, corners, corners + np.array(size)), 9)


@dataclass(frozen=True)
class PatchSettings:
    """What a patch is: pixels of the encoder's image at a physical resolution."""

    patch_px: int = 256
    target_mpp: float = 0.5
    overlap_px: int = 0
    min_tissue: float = 0.25
    """Smallest share of tissue in a patch that is kept."""

    def __post_init__(self) -> None:
        if self.patch_px < 8 or not 0 <= self.overlap_px < self.patch_px:
            raise UsageError(
                f"A patch has at least 8 pixels and overlaps its neighbour by less than itself, "
                f"got {self.patch_px} and {self.overlap_px}."
            )
        if not 0.02 <= self.target_mpp <= 20:
            raise UsageError(
                f"Patches are read at 0.02 to 20 micrometres per pixel, got {self.target_mpp}. 20x "
                "is 0.5."
            )
        if not 0 < self.min_tissue <= 1:
            raise UsageError(
                f"The smallest share of tissue is above 0 and at most 1, got {self.min_tissue}."
            )

    @property
    def side(self) -> Microns:
        """Side of a patch in micrometres."""
        return Microns(self.patch_px * self.target_mpp)

    @property
    def step(self) -> Microns:
        """From one patch to the next, in micrometres."""
        return Microns((self.patch_px - self.overlap_px) * self.target_mpp)

    @property
    def folder_name(self) -> str:
        """How TRIDENT names a folder of such patches."""
        return f"{magnification(self.target_mpp)}x_{self.patch_px}px_{self.overlap_px}px_overlap"


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """The patches of one slide by their top-left corners, row by row."""

    coords: Int[np.ndarray, "n 2"]
    settings: PatchSettings
    mpp: float
    tissue_share: Float[np.ndarray, "n"]

    def __len__(self) -> int:
        return len(self.coords)

    @property
    def level0_side(self) -> float:
        """The exact side of a patch in level-0 pixels."""
        return self.settings.side / self.mpp

    @property
    def patch_size_level0(self) -> LevelZeroPx:
        """The side of a patch in whole level-0 pixels, as files state it."""
        return LevelZeroPx(round(self.level0_side))


def patch_grid(
    slide: SlideReader, tissue: TissueMask, settings: PatchSettings | None = None
) -> PatchGrid:
    """Every patch inside the scanned part that holds enough tissue; none where there is none."""
    chosen = settings or PatchSettings()
    if slide.mpp > chosen.target_mpp * _LARGEST_MAGNIFIED:
        raise InputError(
            f"Slide '{slide.name}' has {slide.mpp:g} micrometres per pixel, too coarse for patches "
            f"at {chosen.target_mpp:g}. "
            f"Ask for --target-mpp {slide.mpp:g} or leave the slide out."
        )
    bounds = slide.bounds
    columns = patch_positions(
        bounds.x, bounds.width, side=chosen.side, step=chosen.step, mpp=slide.mpp
    )
    rows = patch_positions(
        bounds.y, bounds.height, side=chosen.side, step=chosen.step, mpp=slide.mpp
    )
    coords = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)
    corners = (coords - (tissue.bounds.x, tissue.bounds.y)) / tissue.scale
    side, (scale_x, scale_y) = chosen.side / slide.mpp, tissue.scale
    share = covered_share(tissue.kept, corners, (side / scale_x, side / scale_y))
    kept = share >= chosen.min_tissue
    return PatchGrid(coords[kept], chosen, slide.mpp, share[kept])


def patch_positions(
    origin: LevelZeroPx, extent: LevelZeroPx, *, side: Microns, step: Microns, mpp: float
) -> Int[np.ndarray, "k"]:
    """Where patches begin along one axis so that all of them end inside the extent."""
    room, stride = extent - side / mpp, step / mpp
    # Half a pixel of grace: a side of 256.5 px fits an extent of 256, as positions are rounded too.
    if room < -0.5:
        return np.empty(0, dtype=np.int64)
    count = int((room + 0.5) // stride) + 1
    return np.floor(origin + np.arange(count) * stride + 0.5).astype(np.int64)


def read_patch(
    slide: SlideReader, grid: PatchGrid, index: int, *, patch_px: int | None = None
) -> Pixels:
    """One patch at the grid's resolution, or the same square in fewer pixels."""
    side, pixels = grid.level0_side, patch_px or grid.settings.patch_px
    x, y = (float(value) for value in grid.coords[index])
    return read_region(slide, left=x, top=y, width=side, height=side, size=(pixels, pixels))


def read_patches(
    slide: SlideReader, grid: PatchGrid, rows: Int[np.ndarray, "k"], patch_px: int
) -> PatchBatch:
    """These rows of the grid in order, each in so many pixels."""
    return np.stack([read_patch(slide, grid, index, patch_px=patch_px) for index in rows.tolist()])


def probe_patches(slide: SlideReader, grid: PatchGrid) -> None:
    """Read a few patches spread over the grid, to find a damaged slide before encoding."""
    for index in np.unique(np.linspace(0, len(grid) - 1, _PROBED).astype(int)).tolist():
        read_patch(slide, grid, index)
