"""Slides behind one small protocol, so that everything above works on any source of pixels.

A reader hands out RGB on white: pixels the scanner never saw are transparent in the file, and an
encoder must not take them for black tissue. Positions are level-0 pixels of the whole file;
`bounds` is the part that was scanned.

Micrometres per pixel (mpp) decide; magnifications and pyramid levels follow from them.

side of a patch    patch_px * target_mpp                    micrometres
side on the slide  patch_px * target_mpp / mpp              level-0 pixels, seldom a whole number
position k         round(origin + k * step / mpp)           rounded once: errors do not add up
level to read      the coarsest whose pixels are not larger than requested

Any rectangle of a slide at any resolution: read at the best level, resampled to the requested size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, floor, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gcemil.errors import InputError, MissingExtraError, UsageError, error_text
from gcemil.units import LevelZeroPx

if TYPE_CHECKING:
    from openslide import AbstractSlide


FINEST_MPP, COARSEST_MPP = 0.02, 20.0
"""What a scanner can have meant; a photograph's 72 dpi would be 353 micrometres per pixel."""
_LEVEL_TOLERANCE = 1.01
"""A level may be coarser than requested by this factor: scanners state 4.0004 for 4."""
_MICRONS_AT_ONE_X = 10.0
"""A pixel spans about 10 micrometres divided by the objective's power: 0.5 at 20x, 0.25 at 40x."""


Pixels = UInt8[np.ndarray, "h w 3"]
_LARGEST_ANISOTROPY = 1.02
"""Patches of pixels whose sides differ by more than this factor would be distorted."""
DICOM = ".dcm"
SLIDE_EXTENSIONS = (
    *(
        ".ome.tiff",
        ".ome.tif",
        ".svs",
        ".tiff",
        ".tif",
        ".ndpi",
        ".mrxs",
        ".scn",
        ".vms",
        ".vmu",
        ".svslide",
    ),
    *(".bif", ".czi", ".qptiff", ".isyntax", ".dcm", ".vsi", ".zvi"),
)
IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg")
"""Pictures that may be slides; in a folder they count only where it holds no other slide."""
ANY_EXTENSIONS = SLIDE_EXTENSIONS + IMAGE_EXTENSIONS
_FLAT = (*IMAGE_EXTENSIONS, ".tif", ".tiff")
LARGEST_PICTURE = 1_000_000_000
"""Pixels of a plain picture; 4 GB in memory."""
LARGEST_READ = 4096
"""Side of the largest square read at once, for slides without small levels."""


def magnification(mpp: float) -> int:
    """The nominal objective power of this pixel size, at least 1."""
    return max(1, round(_MICRONS_AT_ONE_X / mpp))


def best_level(downsamples: Sequence[float], wanted: float) -> int:
    """The coarsest level that is fine enough; level 0 where none is."""
    fitting = [
        level for level, factor in enumerate(downsamples) if factor <= wanted * _LEVEL_TOLERANCE
    ]
    return max(fitting, key=lambda level: downsamples[level], default=0)


@dataclass(frozen=True)
class Bounds:
    """A rectangle in level-0 pixels."""

    x: LevelZeroPx
    y: LevelZeroPx
    width: LevelZeroPx
    height: LevelZeroPx


@runtime_checkable
class SlideReader(Protocol):
    """The interface of a slide to the rest of the package."""

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
        """The scanned part; the whole slide if the file does not state it."""

    @property
    def downsamples(self) -> tuple[float, ...]:
        """Level-0 pixels per pixel of each level."""

    def region(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """So many pixels of a level from this level-0 position on."""


class OpenSlideReader:
    """A slide file that OpenSlide understands, or a plain picture."""

    def __init__(self, path: Path, handle: AbstractSlide, mpp: float) -> None:
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
        return blend_on_white(np.asarray(read))


@contextmanager
def open_slide(
    path: Path, *, mpp: float | None = None, fallback_mpp: float | None = None
) -> Iterator[SlideReader]:
    """The slide while the block runs.

    `mpp` overrules the pixel size it states, `fallback_mpp` serves where it states none.
    """
    try:
        import openslide
    except ImportError as error:
        raise MissingExtraError("openslide-python", "wsi") from error
    if not path.is_file():
        raise InputError(f"{path} does not exist. Check the path of the slide.")
    try:
        handle = openslide.OpenSlide(path)
    except openslide.OpenSlideUnsupportedFormatError as error:
        if not path.name.lower().endswith(_FLAT) or path.stat().st_size == 0:
            raise _unreadable_error(path, error) from error
    except (openslide.OpenSlideError, OSError) as error:
        raise _unreadable_error(path, error) from error
    else:
        try:
            yield OpenSlideReader(
                path, handle, resolve_mpp(path, handle.properties, mpp, fallback_mpp)
            )
        finally:
            handle.close()
        return
    # First, so that a damaged file is reported as damaged and not as one without a pixel size.
    picture = openslide.ImageSlide(_read_picture(path))
    yield OpenSlideReader(path, picture, resolve_mpp(path, {}, mpp, fallback_mpp))


def _read_picture(path: Path) -> Image.Image:
    """A PNG, JPEG, or TIFF without tiles as a slide of one level, decoded whole."""
    before = Image.MAX_IMAGE_PIXELS
    try:
        # The size is checked below; Pillow's own limit is far below that of a slide.
        Image.MAX_IMAGE_PIXELS = None
        with Image.open(path) as picture:
            width, height = picture.size
            if width * height > LARGEST_PICTURE:
                raise InputError(
                    f"{path} is a plain picture of {width} by {height} pixels, which would fill "
                    "the memory. Convert it to a "
                    "tiled, pyramidal TIFF, such as with 'vips tiffsave --tile --pyramid'."
                )
            if picture.mode[0] in "IF":
                raise InputError(
                    f"{path} has pixels of mode {picture.mode}, and a slide has 8-bit RGB. Convert "
                    "it."
                )
            return picture.convert("RGBA")
    except InputError:
        raise
    except Exception as error:
        # Damaged pictures make decoders raise almost anything.
        raise InputError(
            f"{path} cannot be read as a picture ({error_text(error)}). It is damaged; copy it "
            "again or leave it out."
        ) from error
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _unreadable_error(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} cannot be opened as a slide ({error}). It is damaged, or of a format OpenSlide "
        "does not know; "
        "copy it again or leave it out."
    )


def resolve_mpp(
    path: Path, properties: Mapping[str, str], given: float | None, fallback: float | None
) -> float:
    """The pixel size given for this slide, else the one its file states, else the fallback."""
    mpp = given or stated_mpp(path, properties) or fallback
    if mpp is None:
        raise InputError(
            f"{path} does not state its pixel size (a plausible openslide.mpp-x). "
            "Give it with --mpp: about 0.25 for a 40x scan, 0.5 for 20x."
        )
    if not FINEST_MPP <= mpp <= COARSEST_MPP:
        raise InputError(
            f"{path}: {mpp} micrometres per pixel cannot be; a slide has between {FINEST_MPP} "
            f"and {COARSEST_MPP}. Correct --mpp."
        )
    return float(mpp)


def stated_mpp(path: Path, properties: Mapping[str, str]) -> float | None:
    """The pixel size in the file's properties; None where it is absent or that of a photograph."""
    sides = [_parse_number(properties.get(f"openslide.mpp-{axis}")) for axis in ("x", "y")]
    known = [side for side in sides if side is not None and FINEST_MPP <= side <= COARSEST_MPP]
    if len(known) < 2:
        # One side stands for both, unless the other is stated and absurd.
        return known[0] if known and None in sides else None
    if max(known) / min(known) > _LARGEST_ANISOTROPY:
        raise InputError(
            f"{path}: its pixels are {known[0]} by {known[1]} micrometres, not square, so patches "
            "would be distorted. "
            "Resample the slide, or leave it out."
        )
    return sqrt(known[0] * known[1])


def scanned_bounds(properties: Mapping[str, str], dimensions: tuple[int, int]) -> Bounds:
    """OpenSlide's bounds cut to the slide; formats without them were scanned as a whole."""
    width, height = dimensions
    x, y, wide, high = (
        _parse_number(properties.get(f"openslide.bounds-{key}"))
        for key in ("x", "y", "width", "height")
    )
    left, top = max(0, round(x or 0)), max(0, round(y or 0))
    right = min(width, left + round(wide)) if wide else width
    bottom = min(height, top + round(high)) if high else height
    return Bounds(
        LevelZeroPx(left), LevelZeroPx(top), LevelZeroPx(right - left), LevelZeroPx(bottom - top)
    )


def blend_on_white(rgba: UInt8[np.ndarray, "h w 4"]) -> Pixels:
    """Transparent pixels over white."""
    alpha = rgba[..., 3:]
    if (alpha == 255).all():
        return rgba[..., :3].copy()
    share = alpha.astype(np.float32) / 255
    return np.rint(rgba[..., :3] * share + 255 * (1 - share)).astype(np.uint8)


def _parse_number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def read_region(
    slide: SlideReader,
    *,
    left: float,
    top: float,
    width: float,
    height: float,
    size: tuple[int, int],
) -> Pixels:
    """The level-0 rectangle as an image of `size` (width, height), white outside the slide."""
    level = best_level(slide.downsamples, min(width / size[0], height / size[1]))
    factor = slide.downsamples[level]
    x, y = left / factor, top / factor
    first_x, first_y = floor(x), floor(y)
    wide, high = ceil(x + width / factor) - first_x, ceil(y + height / factor) - first_y
    read = slide.region(round(first_x * factor), round(first_y * factor), level, wide, high)
    box = (x - first_x, y - first_y, x - first_x + width / factor, y - first_y + height / factor)
    if box == (0, 0, *size):
        return read
    resized = Image.fromarray(read).resize(size, Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).copy()


def read_overview(slide: SlideReader, mpp: float) -> Pixels:
    """The scanned part of the slide at about this resolution, read piece by piece."""
    bounds = slide.bounds
    width, height = overview_size(bounds, mpp / slide.mpp)
    scale_x, scale_y = bounds.width / width, bounds.height / height
    level = best_level(slide.downsamples, min(scale_x, scale_y))
    piece = max(1, floor(LARGEST_READ * slide.downsamples[level] / max(scale_x, scale_y)))
    image = np.empty((height, width, 3), dtype=np.uint8)
    for row in range(0, height, piece):
        for column in range(0, width, piece):
            high, wide = min(piece, height - row), min(piece, width - column)
            image[row : row + high, column : column + wide] = read_region(
                slide,
                left=bounds.x + column * scale_x,
                top=bounds.y + row * scale_y,
                width=wide * scale_x,
                height=high * scale_y,
                size=(wide, high),
            )
    return image


def overview_size(bounds: Bounds, downsample: float) -> tuple[int, int]:
    """Width and height of the scanned part at this downsample, at least one pixel each."""
    return max(1, round(bounds.width / downsample)), max(1, round(bounds.height / downsample))


# DICOM: a series of files, one per level, which OpenSlide opens by any one of them


def join_series(files: Iterable[Path]) -> list[tuple[str, Path]]:
    """Name and file of every slide: of a DICOM series the finest level, any other file as it is.

    A folder with one series is one slide of the folder's name; a series of one file has the name of
    the file. Labels and overviews of a series are not slides.
    """
    named: list[tuple[str, Path]] = []
    folders: dict[Path, list[Path]] = {}
    for path in files:
        if path.name.lower().endswith(DICOM):
            folders.setdefault(path.parent, []).append(path)
        else:
            named.append((path.name, path))
    for folder, paths in folders.items():
        named += [(paths[0].name, paths[0])] if len(paths) == 1 else _join_folder(folder, paths)
    return named


def name_slide(path: Path) -> str:
    """The name of the slide that this file is, or is a level of."""
    if not path.name.lower().endswith(DICOM):
        return path.name
    same = [one for one in sorted(path.parent.iterdir()) if one.name.lower().endswith(DICOM)]
    return next((name for name, one in join_series(same) if one == path), path.name)


def _join_folder(folder: Path, paths: list[Path]) -> list[tuple[str, Path]]:
    try:
        import openslide
    except ImportError as error:
        raise MissingExtraError("openslide-python", "wsi") from error
    series: dict[str, list[tuple[int, Path]]] = {}
    for path in paths:
        try:
            with openslide.OpenSlide(path) as slide:
                series_uid = slide.properties["dicom.SeriesInstanceUID"]
        except (openslide.OpenSlideError, OSError, KeyError):
            # A label, an overview or damaged. Where no file of the folder is a slide, all are kept
            # to be refused one by one.
            continue
        # OpenSlide does not state the level of a file: the finest is the largest.
        series.setdefault(series_uid, []).append((path.stat().st_size, path))
    if not series:
        return [(path.name, path) for path in paths]
    finest = [max(files)[1] for files in series.values()]
    if len(finest) == 1:
        return [(folder.resolve().name, finest[0])]
    if several := next((files for files in series.values() if len(files) > 1), None):
        raise UsageError(
            f"{folder} holds {len(series)} DICOM series of several files each, such as "
            f"{several[0][1].name} and "
            f"{several[1][1].name}. Put every slide into a folder of its own, named as the slide."
        )
    return [(path.name, path) for path in finest]
