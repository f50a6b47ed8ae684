"""Slides behind one small protocol, so that everything above works on any source of pixels.

A reader hands out RGB on white: pixels the scanner never saw are transparent in the file, and an encoder must not take
them for black tissue. Positions are level-0 pixels of the whole file; `bounds` is the part that was scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from gcemil.errors import InputError, MissingExtraError
from gcemil.slides.resolution import COARSEST_MPP, FINEST_MPP, is_plausible
from gcemil.units import LevelZeroPx

if TYPE_CHECKING:
    from openslide import OpenSlide


Pixels = UInt8[np.ndarray, "h w 3"]

LARGEST_ANISOTROPY = 1.02
"""Pixels whose sides differ by more than this factor are no squares, and patches of them would be distorted."""


SLIDE_EXTENSIONS = (
    *(".ome.tiff", ".ome.tif", ".svs", ".tiff", ".tif", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".svslide"),
    *(".bif", ".czi", ".qptiff", ".isyntax", ".dcm", ".vsi", ".zvi"),
)


@dataclass(frozen=True)
class Bounds:
    """A rectangle in level-0 pixels."""

    x: LevelZeroPx
    y: LevelZeroPx
    width: LevelZeroPx
    height: LevelZeroPx


@runtime_checkable
class SlideReader(Protocol):
    """What the rest of the package asks of a slide."""

    @property
    def name(self) -> str:
        """How messages call the slide."""

    @property
    def mpp(self) -> float:
        """Micrometres per level-0 pixel."""

    @property
    def dimensions(self) -> tuple[int, int]:
        """Width and height of level 0."""

    @property
    def bounds(self) -> Bounds:
        """The scanned part; the whole slide where the file does not say."""

    @property
    def downsamples(self) -> tuple[float, ...]:
        """Level-0 pixels per pixel of each level."""

    def region(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """So many pixels of a level from this level-0 position on."""


class OpenSlideReader:
    """A slide file that OpenSlide understands."""

    def __init__(self, path: Path, handle: OpenSlide, mpp: float) -> None:
        self.name = path.name
        self.mpp = mpp
        self._handle = handle

    @property
    def dimensions(self) -> tuple[int, int]:
        return self._handle.dimensions

    @property
    def bounds(self) -> Bounds:
        return scanned_bounds(self._handle.properties, self._handle.dimensions)

    @property
    def downsamples(self) -> tuple[float, ...]:
        return tuple(self._handle.level_downsamples)

    def region(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        import openslide

        try:
            read = self._handle.read_region((x, y), level, (width, height))
        except (openslide.OpenSlideError, OSError) as error:
            raise InputError(
                f"Slide '{self.name}': level {level} cannot be read at ({x}, {y}) ({error}). "
                "The file is damaged; copy it again or leave it out."
            ) from error
        return on_white(np.asarray(read))


@contextmanager
def open_slide(
    path: Path, *, mpp: float | None = None, fallback_mpp: float | None = None
) -> Iterator[SlideReader]:
    """The slide while the block runs; `mpp` overrules the pixel size it states, `fallback_mpp` serves where it states none."""
    try:
        import openslide
    except ImportError as error:
        raise MissingExtraError("openslide-python", "wsi") from error
    if not path.is_file():
        raise InputError(f"{path} does not exist. Check the path of the slide.")
    try:
        handle = openslide.OpenSlide(path)
    except (openslide.OpenSlideError, OSError) as error:
        raise InputError(
            f"{path} cannot be opened as a slide ({error}). It is damaged, or of a format OpenSlide does not know; "
            "copy it again or leave it out."
        ) from error
    try:
        yield OpenSlideReader(path, handle, resolved_mpp(path, handle.properties, mpp, fallback_mpp))
    finally:
        handle.close()


def resolved_mpp(
    path: Path, properties: Mapping[str, str], given: float | None, fallback: float | None
) -> float:
    """The pixel size given for this slide, else the one its file states, else the fallback."""
    found = given or stated_mpp(path, properties) or fallback
    if found is None:
        raise InputError(
            f"{path} does not state its pixel size (a plausible openslide.mpp-x). "
            "Give it with --mpp: about 0.25 for a 40x scan, 0.5 for 20x."
        )
    if not is_plausible(found):
        raise InputError(
            f"{path}: {found} micrometres per pixel cannot be; a slide has between {FINEST_MPP} and {COARSEST_MPP}. Correct --mpp."
        )
    return float(found)


def stated_mpp(path: Path, properties: Mapping[str, str]) -> float | None:
    """The pixel size in the file's properties; None where it is absent or that of a photograph."""
    sides = [_number(properties.get(f"openslide.mpp-{axis}")) for axis in ("x", "y")]
    known = [side for side in sides if side is not None and is_plausible(side)]
    if len(known) < 2:
        return known[0] if known and None in sides else None
    if max(known) / min(known) > LARGEST_ANISOTROPY:
        raise InputError(
            f"{path}: its pixels are {known[0]} by {known[1]} micrometres, not square, so patches would be distorted. "
            "Resample the slide, or leave it out."
        )
    return sqrt(known[0] * known[1])


def scanned_bounds(properties: Mapping[str, str], dimensions: tuple[int, int]) -> Bounds:
    """OpenSlide's bounds cut to the slide; formats without them were scanned as a whole."""
    width, height = dimensions
    x, y, wide, high = (
        _number(properties.get(f"openslide.bounds-{key}")) for key in ("x", "y", "width", "height")
    )
    left, top = max(0, round(x or 0)), max(0, round(y or 0))
    right = min(width, left + round(wide)) if wide else width
    bottom = min(height, top + round(high)) if high else height
    return Bounds(LevelZeroPx(left), LevelZeroPx(top), LevelZeroPx(right - left), LevelZeroPx(bottom - top))


def on_white(rgba: UInt8[np.ndarray, "h w 4"]) -> Pixels:
    """Transparent pixels over white."""
    alpha = rgba[..., 3:]
    if (alpha == 255).all():
        return rgba[..., :3].copy()
    share = alpha.astype(np.float32) / 255
    return np.rint(rgba[..., :3] * share + 255 * (1 - share)).astype(np.uint8)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
