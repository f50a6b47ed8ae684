"""Two pictures of one slide side by side: where the host looked, and what the evidence is.

Left, every patch in the colour of its score's rank: the darker, the higher. Ranks, because raw
scores of different hosts share no scale. Right, the selected patches in the colour they have in
QuPath. Patches lie on the slide's thumbnail if there is one; else on white, and the unselected are
grey. A key below each names its colours.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from PIL import Image, ImageDraw, ImageFont
from scipy.stats import rankdata

from gcemil.bags import store
from gcemil.bags.cohort import Cohort, read_slide_attributes
from gcemil.bags.store import Bounds, stated_bounds, stated_number
from gcemil.errors import InputError, UsageError
from gcemil.exports.geojson import EVIDENCE, PatchClass
from gcemil.files import read_picture
from gcemil.slides.reader import open_slide
from gcemil.slides.thumbnails import LONGEST_SIDE
from gcemil.slides.thumbnails import read_thumbnail as draw_thumbnail

Canvas = UInt8[np.ndarray, "height width 3"]
PerPatch = Shaped[np.ndarray, "n"]
Colors = UInt8[np.ndarray, "n 3"]
Mask = Bool[np.ndarray, "n"]

LARGEST_SIDE = 900
"""Pixels of one panel."""
LARGEST_PATCH = 16
"""Pixels of one patch, so that ten patches do not fill the screen."""
OPACITY = 0.6
"""Opacity of a patch over a thumbnail."""
ROUNDING = 1e-6
"""Keeps a corner on its own pixel when a product falls short of it."""
MARGIN = 12
TITLE_HEIGHT = 26
FONT_SIZE = 14
KEY_HEIGHT = 28
"""The line of colours below the panels."""
SWATCH = 12
RAMP_WIDTH = 100
INK = (40, 40, 40)
GREY = (222, 222, 222)
RAMP = np.array(
    [(240, 244, 250), (158, 202, 225), (66, 146, 198), (8, 81, 156), (8, 29, 66)], dtype=np.float64
)
"""Light to dark blue: it keeps its order for colour-blind eyes and in print."""
SAME_SHAPE = 0.02
"""Largest difference in aspect at which a thumbnail shows the part that the file names."""


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """Level 0 of a slide made small, or the scanned part of it."""

    pixels: Canvas
    downsample: float
    """Level-0 pixels per pixel."""
    origin: tuple[int, int] = (0, 0)
    """Level-0 position of its top left corner."""


@dataclass(frozen=True)
class Frame:
    """From level-0 pixels to pixels of the picture."""

    left: int
    top: int
    width: int
    height: int
    scale: float

    def corners(self, coords: Int[np.ndarray, "n 2"]) -> Int[np.ndarray, "n 2"]:
        """Upper left corners of patches in pixels of the frame."""
        moved = (coords - np.array([self.left, self.top])) * self.scale
        return np.floor(moved + ROUNDING).astype(np.int64)


@dataclass(frozen=True, eq=False)
class SlideFrame:
    """Where the patches of one slide lie in a picture."""

    frame: Frame
    corners: Int[np.ndarray, "n 2"]
    side: int
    thumbnail: Thumbnail | None

    @classmethod
    def of(
        cls,
        frame: Frame,
        coords: Int[np.ndarray, "n 2"],
        patch_size: int,
        thumbnail: Thumbnail | None,
    ) -> SlideFrame:
        """Patches of this size in level-0 pixels."""
        side = max(1, math.ceil(patch_size * frame.scale - ROUNDING))
        return cls(frame, frame.corners(coords.astype(np.int64)), side, thumbnail)

    def draw_background(self) -> Canvas:
        """The thumbnail at the size of the frame, or white."""
        size = (self.frame.width, self.frame.height)
        if self.thumbnail is None:
            return np.full((*reversed(size), 3), 255, dtype=np.uint8)
        return np.array(
            Image.fromarray(self.thumbnail.pixels).resize(size, Image.Resampling.LANCZOS)
        )

    def paint(self, colors: Colors, importance: PerPatch, members: Mask | None = None) -> Canvas:
        """Squares in these colours; over a thumbnail they let it shine through."""
        chosen = np.ones(len(colors), dtype=bool) if members is None else members
        patches = self.corners[chosen], colors[chosen], importance[chosen], self.side
        opacity = 1.0 if self.thumbnail is None else OPACITY
        return paint_patches(self.draw_background(), *patches, opacity=opacity)

    def mask_patches(self, members: Mask) -> Bool[np.ndarray, "height width"]:
        """The pixels of these patches."""
        ink = np.zeros((self.frame.height, self.frame.width, 3), dtype=np.uint8)
        colors = np.full((int(members.sum()), 3), 255, dtype=np.uint8)
        patches = self.corners[members], colors, np.zeros(len(colors)), self.side
        return paint_patches(ink, *patches, opacity=1.0)[..., 0] > 0


def draw_attention(place: SlideFrame, scores: PerPatch) -> Canvas:
    """Every patch in the colour of its rank, the highest darkest."""
    ranked = rank_shares(scores)
    return place.paint(color_ramp(ranked), ranked)


def draw_evidence(
    place: SlideFrame, selected: Mask, color: tuple[int, int, int], fewer: Mask | None = None
) -> Canvas:
    """The selected patches, those that fewer folds chose paler, the others grey on white."""
    paler = np.zeros_like(selected) if fewer is None else fewer
    colors = np.where(selected[:, None], color, np.where(paler[:, None], lighten(color), GREY))
    importance = selected + 0.5 * paler
    shown = None if place.thumbnail is None else selected | paler
    return place.paint(colors.astype(np.uint8), importance, shown)


def lighten(color: tuple[int, int, int]) -> tuple[int, int, int]:
    """Half way to white."""
    red, green, blue = ((channel + 255) // 2 for channel in color)
    return red, green, blue


def draw_overlay(
    heading: str,
    coords: Int[np.ndarray, "n 2"],
    scores: PerPatch,
    selected: Mask,
    *,
    patch_size: int,
    patch_class: PatchClass = EVIDENCE,
    thumbnail: Thumbnail | None = None,
    fold_share: PerPatch | None = None,
) -> Image.Image:
    """Attention and evidence, each with its title and the key of its colours."""
    if patch_size < 1:
        raise UsageError(f"A patch measures at least 1 level-0 pixel, got {patch_size}.")
    place = SlideFrame.of(fit_frame(coords, patch_size, thumbnail), coords, patch_size, thumbnail)
    ramp = (color_ramp(np.linspace(0.0, 1.0, RAMP_WIDTH)), "lowest to highest")
    fewer, color = None, patch_class.color
    if fold_share is not None:
        fewer = (fold_share > 0) & ~selected
        shown = {"chosen by most folds": color, "by fewer": lighten(color)}
    else:
        shown = {"selected": color} | ({} if thumbnail else {"other patches": GREY})
    swatches = [
        (np.full((SWATCH, 3), color, dtype=np.uint8), name) for name, color in shown.items()
    ]
    title = f"{patch_class.name}: {int(selected.sum())} of {len(selected)} patches"
    return _join_panels(
        heading,
        [
            ("attention score, light to dark by rank", draw_attention(place, scores), [ramp]),
            (title, draw_evidence(place, selected, color, fewer), swatches),
        ],
    )


def encode_image(image: Image.Image, form: str, **options: int | bool) -> bytes:
    """The picture as the bytes of a file of this form."""
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def read_thumbnail(
    path: Path,
    *,
    downsample: float | None = None,
    level0_width: float | None = None,
    origin: tuple[int, int] = (0, 0),
) -> Thumbnail:
    """A picture of the slide or of its scanned part, with its scale or the width it shows."""
    try:
        pixels = read_picture(path, "RGB")
    except InputError as error:
        raise UsageError(f"{error} Give a PNG or JPEG.") from error
    scale = downsample if level0_width is None else level0_width / pixels.shape[1]
    if scale is None or not scale > 0:
        raise UsageError(
            f"{path} needs a scale: level-0 pixels per pixel of the thumbnail, above 0, got "
            f"{scale}."
        )
    return Thumbnail(pixels, scale, origin)


def fit_frame(
    coords: Int[np.ndarray, "n 2"], patch_size: int, thumbnail: Thumbnail | None
) -> Frame:
    """The thumbnail, or the box around all patches, no larger than a panel."""
    if thumbnail is not None:
        height, width = thumbnail.pixels.shape[:2]
        shrink = min(1.0, LARGEST_SIDE / max(height, width))
        size = max(1, round(width * shrink)), max(1, round(height * shrink))
        return Frame(*thumbnail.origin, *size, scale=shrink / thumbnail.downsample)
    return frame_patches(coords, patch_size, LARGEST_SIDE, LARGEST_PATCH, whole_pixels=False)


def frame_patches(
    coords: Int[np.ndarray, "n 2"],
    patch_size: int,
    largest: int,
    most_per_patch: int,
    *,
    whole_pixels: bool,
) -> Frame:
    """The box around all patches, limited in pixels along a side and per patch."""
    left, top = coords.min(axis=0).tolist()
    extent = (coords.max(axis=0) + patch_size - np.array([left, top])).tolist()
    scale = min(largest / max(extent), most_per_patch / patch_size)
    if whole_pixels and scale * patch_size >= 1:
        # All squares are then of one size.
        scale = math.floor(scale * patch_size) / patch_size
    width, height = (max(1, math.ceil(side * scale - ROUNDING)) for side in extent)
    return Frame(left, top, width, height, scale)


def paint_patches(
    canvas: Canvas,
    corners: Int[np.ndarray, "n 2"],
    colors: Colors,
    importance: PerPatch,
    side: int,
    *,
    opacity: float,
) -> Canvas:
    """Squares on a canvas, the most important on top; what lies beyond its edge is cut."""
    height, width = canvas.shape[:2]
    order = np.argsort(importance, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    top = np.full((height, width), -1, dtype=np.int64)
    # Pixel by pixel of a square, all patches at once: side^2 steps however many patches there are.
    for down, across in np.ndindex(side, side):
        x, y = corners[:, 0] + across, corners[:, 1] + down
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        np.maximum.at(top, (y[inside], x[inside]), place[inside])
    shown = top >= 0
    mixed = opacity * colors[order[top[shown]]].astype(np.float64) + (1 - opacity) * canvas[shown]
    result = canvas.copy()
    result[shown] = np.round(mixed).astype(np.uint8)
    return result


def rank_shares(scores: PerPatch) -> Float[np.ndarray, "n"]:
    """Rank over number of patches: the highest is 1, equals are equal."""
    return rankdata(scores) / len(scores)


def color_ramp(values: Float[np.ndarray, "n"]) -> Colors:
    """Colours of values in [0, 1]."""
    steps = np.linspace(0.0, 1.0, len(RAMP))
    channels = [np.interp(values, steps, RAMP[:, channel]) for channel in range(3)]
    return np.round(np.stack(channels, axis=1)).astype(np.uint8)


Key = Sequence[tuple[Colors, str]]
"""Swatches of one or more colours, and their names."""


def _join_panels(heading: str, panels: Sequence[tuple[str, Canvas, Key]]) -> Image.Image:
    """Panels side by side, each between its title and the key of its colours, under one heading."""
    font, gap = ImageFont.load_default(size=FONT_SIZE), MARGIN // 2

    def measure(text: str) -> int:
        return math.ceil(font.getlength(text))

    def measure_key(key: Key) -> int:
        return sum(len(colors) + gap + measure(name) + MARGIN for colors, name in key)

    widths = [
        max(canvas.shape[1], measure(title), measure_key(key)) for title, canvas, key in panels
    ]
    top = MARGIN + 2 * TITLE_HEIGHT
    bottom = top + max(canvas.shape[0] for _, canvas, _ in panels) + MARGIN
    total = max(sum(widths) + MARGIN * (len(panels) + 1), measure(heading) + 2 * MARGIN)
    sheet = Image.new("RGB", (total, bottom + KEY_HEIGHT), "white")

    def write(left: int, top: int, text: str) -> None:
        ImageDraw.Draw(sheet).text((left, top), text, fill=INK, font=font)

    write(MARGIN, MARGIN, heading)
    left = MARGIN
    for (title, canvas, key), width in zip(panels, widths, strict=True):
        write(left, MARGIN + TITLE_HEIGHT, title)
        sheet.paste(Image.fromarray(canvas), (left, top))
        place = left
        for colors, name in key:
            swatch = Image.fromarray(np.repeat(colors[None], SWATCH, axis=0))
            sheet.paste(swatch, (place, bottom + (KEY_HEIGHT - SWATCH) // 2))
            place += len(colors) + gap
            write(place, bottom + (KEY_HEIGHT - FONT_SIZE) // 2, name)
            place += measure(name) + MARGIN
        left += width + MARGIN
    return sheet


def read_own_thumbnail(cohort: Path, slide_id: str) -> Thumbnail | None:
    """The picture of the scanned part; None if it, or its place on the slide, is not known."""
    path = cohort / "thumbnails" / f"{slide_id}.jpg"
    place = read_place(path, read_slide_attributes(cohort, slide_id))
    if not path.is_file() or place.size is None:
        return None
    thumbnail = read_thumbnail(path, level0_width=place.size[0], origin=place.bounds)
    pixels = thumbnail.pixels.shape
    aspect = (pixels[1] / pixels[0]) / (place.size[0] / place.size[1])
    return thumbnail if abs(aspect - 1) <= SAME_SHAPE else None


# Facts about a slide in files beside the coordinates


@dataclass(frozen=True, eq=False)
class SlidePlace:
    """A slide as far as its files describe it."""

    source: Path
    """The file that states it."""
    bounds: Bounds = (0, 0)
    """Where the image that QuPath shows begins, in level-0 pixels of the file."""
    size: tuple[int, int] | None = None
    """Width and height of that image."""
    level0_width: float | None = None
    """Width of the whole file."""
    mpp: float | None = None
    """Micrometres per level-0 pixel."""
    thumbnail: Thumbnail | None = None
    thumbnail_file: Path | None = None
    """Where the thumbnail was read, if it was."""


def read_place(
    source: Path, attributes: Mapping[str, Any], *, mpp: float | None = None
) -> SlidePlace:
    """The attributes of a feature file; `mpp` is used if they do not state it."""
    bounds = stated_bounds(attributes, str(source)) or (0, 0)
    # Without a size of the scanned part the file shows the whole slide, unless it begins elsewhere.
    whole = "bounds" if "bounds_width" in attributes else "level0" if bounds == (0, 0) else None
    width, height = (stated_number(attributes, f"{whole}_{side}") for side in ("width", "height"))
    return SlidePlace(
        source=source,
        bounds=bounds,
        size=None if width is None or height is None else (round(width), round(height)),
        level0_width=stated_number(attributes, "level0_width"),
        mpp=stated_number(attributes, "level0_mpp") or mpp,
    )


def read_feature_place(path: Path, *, mpp: float | None = None) -> SlidePlace:
    """A slide outside any cohort, from its feature file; a bare tensor has no facts."""
    if path.suffix.lower() == ".pt":
        return SlidePlace(path, mpp=mpp)
    on_coords = store.attributes(path, "coords") if store.has(path, "coords") else {}
    return read_place(path, {**store.attributes(path), **on_coords}, mpp=mpp)


def read_cohort_place(cohort: Cohort, slide_id: str) -> SlidePlace:
    """A slide of a cohort, with the thumbnail that 'gcemil encode' made."""
    place = read_place(
        cohort.feature_file(slide_id), read_slide_attributes(cohort.folder, slide_id)
    )
    thumbnail = read_own_thumbnail(cohort.folder, slide_id)
    file = cohort.folder / "thumbnails" / f"{slide_id}.jpg"
    return replace(place, thumbnail=thumbnail, thumbnail_file=file)


def read_slide_place(
    path: Path, *, mpp: float | None = None, longest: int = LONGEST_SIDE
) -> SlidePlace:
    """A slide file, with a picture of its scanned part."""
    with open_slide(path, fallback_mpp=mpp) as slide:
        bounds, pixels = slide.bounds, draw_thumbnail(slide, longest)
        origin = (int(bounds.x), int(bounds.y))
        return SlidePlace(
            source=path,
            bounds=origin,
            size=(int(bounds.width), int(bounds.height)),
            level0_width=slide.dimensions[0],
            mpp=slide.mpp,
            thumbnail=Thumbnail(pixels, bounds.width / pixels.shape[1], origin),
        )


def choose_thumbnail(
    place: SlidePlace, path: Path | None, downsample: float | None
) -> Thumbnail | None:
    """The given picture, scaled by `downsample` or the slide's width; else the slide's own."""
    own = place.thumbnail_file
    if path is None or (downsample is None and own is not None and path.resolve() == own.resolve()):
        return place.thumbnail
    if downsample is not None:
        return read_thumbnail(path, downsample=downsample)
    if place.level0_width is None:
        raise UsageError(
            f"{place.source} does not say how wide the slide is, so {path} has no scale. Give "
            "--downsample."
        )
    return read_thumbnail(path, level0_width=place.level0_width)
