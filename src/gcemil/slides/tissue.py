"""Which part of a slide is tissue, found on an overview of a few micrometres per pixel.

Tissue is coloured and glass is not: Otsu's threshold on the saturation separates them. It is held
above the tint of the glass, so that an empty slide gives no tissue, and below what pale tissue
shows, so that a strong stain does not cost the fat. Ink and black edges are coloured or dark as
well; they are taken out by hue and value. Gaps are closed, small holes filled, specks dropped; all
sizes are physical, so every scanner is cut alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from jaxtyping import Bool, Float, Int

from gcemil.errors import MissingExtraError
from gcemil.slides.reader import Bounds, Pixels, SlideReader, read_overview, read_region

GLASS_VALUE, GLASS_SATURATION = 0.85, 0.12
"""Glass is at least this bright and at most this tinted."""
_MARGIN_OVER_TINT = 0.02

PATCH_PX = 128
"""Side of a patch as it is looked at: a nucleus still has an edge."""
MOST_BACKGROUND, MOST_INK, LEAST_SHARPNESS = 0.75, 0.1, 0.1
"""A patch beyond one of these is an artefact; sharpness is relative to the slide's median."""
REFERENCE_PATCHES = 32
"""Patches, evenly over the slide, whose median sharpness is that of the slide."""

Mask = Bool[np.ndarray, "h w"]
Channel = Float[np.ndarray, "h w"]


@dataclass(frozen=True)
class TissueSettings:
    """Rules of the segmenter; lengths in micrometres, areas in square millimetres."""

    mpp: float = 8.0
    """Resolution of the overview."""
    saturation_floor: float = 0.035
    """Nothing below is tissue: the noise of the scanner."""
    saturation_ceiling: float = 0.07
    """Everything above is tissue, unless the glass itself is tinted."""
    close_gap: float = 24.0
    """Gaps up to this width inside tissue are closed, such as fat cells and alveoli."""
    fill_hole: float = 0.15
    """Holes up to this area are filled."""
    drop_speck: float = 0.02
    """Pieces up to this area are dropped: dust, debris, stray cells."""
    darkest_tissue: float = 0.22
    """A pixel whose brightest channel is below is not tissue: black ink, the slide's edge."""
    smallest_ink: float = 0.002
    """Dark or oddly coloured spots up to this area are tissue: pigment, folds, nuclei."""
    ink_margin: float = 16.0
    """What lies this close to ink counts as ink: the rim of a pen stroke is pale."""


@dataclass(frozen=True, eq=False)
class TissueMask:
    """Which pixels of the overview are tissue, and where on the slide the overview lies."""

    kept: Mask
    bounds: Bounds

    @property
    def scale(self) -> tuple[float, float]:
        """Level-0 pixels per pixel of the mask, along x and y."""
        height, width = self.kept.shape
        return self.bounds.width / width, self.bounds.height / height


def find_tissue(slide: SlideReader, settings: TissueSettings | None = None) -> TissueMask:
    """The tissue of a slide; a mask of nothing where there is none."""
    rules = settings or TissueSettings()
    return TissueMask(segment_tissue(read_overview(slide, rules.mpp), rules), slide.bounds)


def segment_tissue(image: Pixels, rules: TissueSettings) -> Mask:
    """Tissue on an overview of `rules.mpp`."""
    # Imported where a mask is made: whoever only reads cohorts starts without it.
    from scipy import ndimage

    hue, saturation, value = hue_saturation_value(image)
    # Noise of the scanner is coloured too, pixel by pixel.
    smooth = ndimage.median_filter(saturation, size=3)
    threshold = _saturation_threshold(smooth, value, rules)
    per_pixel = (rules.mpp / 1000) ** 2
    ink = is_ink(hue, saturation, value) | (value < rules.darkest_tissue)
    rejected = ndimage.binary_dilation(
        drop_small_pieces(ink, rules.smallest_ink / per_pixel), disk(rules.ink_margin / rules.mpp)
    )
    coloured = (smooth > threshold) & ~rejected
    closed = _close_gaps(coloured, rules.close_gap / 2 / rules.mpp) & ~rejected
    return drop_small_pieces(
        fill_holes(closed, ~rejected, rules.fill_hole / per_pixel), rules.drop_speck / per_pixel
    )


def _saturation_threshold(saturation: Channel, value: Channel, rules: TissueSettings) -> float:
    """Otsu's threshold, within the bounds of the rules and above the tint of the glass."""
    glass = saturation[(saturation <= GLASS_SATURATION) & (value >= GLASS_VALUE)]
    otsu = _import_skimage().filters.threshold_otsu(saturation)
    held = float(np.clip(otsu, rules.saturation_floor, rules.saturation_ceiling))
    if not glass.size:
        return held
    tint = float(np.median(glass))
    # Four times the usual deviation: glass is even, tissue is not.
    return max(held, tint + 4 * float(np.median(np.abs(glass - tint))) + _MARGIN_OVER_TINT)


def hue_saturation_value(image: Pixels) -> tuple[Channel, Channel, Channel]:
    """Hue in degrees from 0 to 360, saturation and value from 0 to 1."""
    hue, saturation, value = np.moveaxis(
        _import_skimage().color.rgb2hsv(image.astype(np.float32) / 255), 2, 0
    )
    return hue * 360, saturation, value


def _import_skimage() -> ModuleType:
    try:
        import skimage.color
        import skimage.filters
    except ImportError as error:
        raise MissingExtraError("scikit-image", "wsi") from error
    return skimage


def is_ink(hue: Channel, saturation: Channel, value: Channel) -> Mask:
    """Pen marks and tissue dyes: green, blue and pure red do not occur in H&E."""
    green = (hue > 60) & (hue < 190) & (saturation > 0.18)
    # Hematoxylin alone, as in immunostains, is a pale blue; a pen is a strong one.
    blue = (hue >= 190) & (hue < 235) & (saturation > 0.3)
    red = ((hue < 20) | (hue > 350)) & (saturation > 0.75) & (value > 0.6)
    black = (saturation < 0.25) & (value < 0.35)
    return green | blue | red | black


def fill_holes(mask: Mask, allowed: Mask, largest: float) -> Mask:
    """The mask with holes of at most so many pixels filled where filling is allowed."""
    from scipy import ndimage

    holes = ndimage.binary_fill_holes(mask) & ~mask
    return mask | (holes & ~drop_small_pieces(holes, largest) & allowed)


def drop_small_pieces(mask: Mask, largest: float) -> Mask:
    """The mask without connected pieces of at most so many pixels."""
    from scipy import ndimage

    pieces, _ = ndimage.label(mask)
    sizes = np.bincount(pieces.ravel())
    keep = sizes > largest
    keep[0] = False
    return keep[pieces]


def disk(radius: float) -> Mask:
    """A filled circle; a single pixel below radius 1."""
    reach = int(radius)
    offset = np.arange(-reach, reach + 1)
    return offset[:, None] ** 2 + offset[None, :] ** 2 <= max(radius, 0) ** 2


def _close_gaps(mask: Mask, radius: float) -> Mask:
    from scipy import ndimage

    # Padding, because closing treats what lies beyond the image as glass and would eat tissue at
    # its border.
    reach = int(radius) + 1
    padded = np.pad(mask, reach, mode="edge")
    return ndimage.binary_closing(padded, disk(radius))[reach:-reach, reach:-reach]


# Artefacts of patches


@dataclass(frozen=True)
class PatchQuality:
    """Figures of one patch."""

    background: float
    ink: float
    sharpness: float


def measure_quality(pixels: Pixels) -> PatchQuality:
    """What the pixels of one patch show.

    Background is the share of pixels as bright and as colourless as glass, ink the share in colours
    that H&E does not have. Sharpness is the variance of the Laplacian over that of the grey values.
    """
    from scipy import ndimage

    hue, saturation, value = hue_saturation_value(pixels)
    grey = pixels.astype(np.float32).mean(axis=2)
    # Scanner noise on an even patch is not an edge; one grey value of variance keeps it from
    # counting as one.
    sharpness = float(
        ndimage.laplace(ndimage.gaussian_filter(grey, 1.0)).var() / (grey.var() + 1.0)
    )
    return PatchQuality(
        float(((value >= GLASS_VALUE) & (saturation <= GLASS_SATURATION)).mean()),
        float(is_ink(hue, saturation, value).mean()),
        sharpness,
    )


def find_artifacts(
    slide: SlideReader, coords: Int[np.ndarray, "n 2"], patch_size: int, rows: Sequence[int]
) -> Bool[np.ndarray, "n"]:
    """Which of these rows show an artefact; other rows are False."""
    evenly = (
        np.linspace(0, len(coords) - 1, min(REFERENCE_PATCHES, len(coords))).round().astype(int)
    )
    looked_at = {
        row: measure_quality(
            read_region(
                slide,
                left=float(coords[row, 0]),
                top=float(coords[row, 1]),
                width=float(patch_size),
                height=float(patch_size),
                size=(PATCH_PX, PATCH_PX),
            )
        )
        for row in sorted({*rows, *evenly.tolist()})
    }
    usual = float(np.median([looked_at[row].sharpness for row in evenly.tolist()]))
    covered = np.zeros(len(coords), dtype=bool)
    for row in rows:
        one = looked_at[row]
        covered[row] = (
            one.background > MOST_BACKGROUND
            or one.ink > MOST_INK
            or one.sharpness < LEAST_SHARPNESS * usual
        )
    return covered
