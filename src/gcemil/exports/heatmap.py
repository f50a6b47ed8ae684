"""A heat map that opens as an image of its own and lies on the slide: a pyramidal OME-TIFF.

  pixels       RGB, colours of the overlay; gates by value, scores by rank, because raw scores of
               different hosts share no scale
  canvas       the image as QuPath shows it: the scanned part, as far as its size is known
  downsample   level-0 pixels per pixel: a patch is 16 pixels wide, fewer on slides that would be
               more than 8192 pixels long
  levels       halved until a side is at most 512 pixels, in SubIFDs
  OME          pixel size and position in micrometres, if known, and the downsample

Equal values give equal bytes. Where no patch lies the map is white.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Real, UInt8
from PIL import Image

from gcemil.errors import MissingExtraError, UsageError
from gcemil.exports.geojson import NAMESPACE
from gcemil.exports.overlay import Canvas, Frame, SlideFrame, SlidePlace, color_ramp, rank_shares
from gcemil.files import atomic_write

PATCH_PIXELS = 16
LONGEST_SIDE = 8192
SMALLEST_LEVEL = 512
TILE = 256
BY_VALUE = frozenset({"gate", "fold_share"})
"""Measurements that lie in [0, 1] by themselves."""


@dataclass(frozen=True, eq=False)
class HeatMap:
    """The finest level, and where it lies."""

    pixels: Canvas
    downsample: float
    """Level-0 pixels per pixel."""
    place: SlidePlace
    name: str
    """The measurement that is shown."""


def draw_heatmap(
    name: str,
    coords: Int[np.ndarray, "n 2"],
    values: Real[np.ndarray, "n"],
    *,
    patch_size: int,
    place: SlidePlace,
) -> HeatMap:
    """One measurement of all patches of a slide."""
    if patch_size < 1:
        raise UsageError(f"A patch measures at least 1 level-0 pixel, got {patch_size}.")
    corners = coords.astype(np.int64) - np.array(place.bounds, dtype=np.int64)
    width, height = place.size or (corners.max(axis=0) + patch_size).tolist()
    # A whole number of pixels per patch, so that patches of a grid leave no seams.
    per_patch = max(1, min(PATCH_PIXELS, LONGEST_SIDE * patch_size // max(width, height)))
    downsample = patch_size / per_patch
    frame = Frame(
        0, 0, math.ceil(width / downsample), math.ceil(height / downsample), scale=1 / downsample
    )
    shares = (
        np.clip(values, 0.0, 1.0).astype(np.float64) if name in BY_VALUE else rank_shares(values)
    )
    pixels = SlideFrame.of(frame, corners, patch_size, None).paint(color_ramp(shares), shares)
    return HeatMap(pixels, downsample, place, name)


def write_heatmap(path: Path, heatmap: HeatMap, *, slide_id: str, model: str) -> Path:
    """Write the pyramid whole or not at all."""
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError("tifffile", "wsi") from error
    first, *others = _pyramid_levels(heatmap.pixels)
    options: dict[str, Any] = {"tile": (TILE, TILE), "photometric": "rgb", "compression": "zlib"}
    with atomic_write(path) as temporary, tifffile.TiffWriter(temporary, ome=True) as writer:
        writer.write(
            first,
            subifds=len(others),
            **_describe_resolution(heatmap, 1),
            metadata=_describe_image(heatmap, slide_id, model),
            **options,
        )
        for level, pixels in enumerate(others, start=1):
            writer.write(
                pixels, subfiletype=1, **_describe_resolution(heatmap, 2**level), **options
            )
    return path


def _pyramid_levels(image: Canvas) -> Iterator[UInt8[np.ndarray, "rows columns 3"]]:
    yield image
    while max(image.shape[:2]) > SMALLEST_LEVEL:
        image = np.asarray(Image.fromarray(image).reduce(2))
        yield image


def _describe_resolution(heatmap: HeatMap, factor: int) -> dict[str, Any]:
    """Pixels per centimetre of a level; none where the slide's pixel size is not known."""
    if heatmap.place.mpp is None:
        return {"resolutionunit": "NONE"}
    pixels = 1e4 / (heatmap.place.mpp * heatmap.downsample * factor)
    return {"resolution": (pixels, pixels), "resolutionunit": "CENTIMETER"}


def _describe_image(heatmap: HeatMap, slide_id: str, model: str) -> dict[str, Any]:
    """The OME header, with an id of slide, model and measurement instead of a random one."""
    place, name = heatmap.place, heatmap.name
    header: dict[str, Any] = {
        "axes": "YXS",
        "UUID": str(uuid.uuid5(NAMESPACE, f"{slide_id}\n{model}\nheatmap {name}")),
        "Creator": "gcemil",
        "Name": f"{slide_id} {name}",
        "MapAnnotation": {
            "slide_id": slide_id,
            "measurement": name,
            "downsample": repr(heatmap.downsample),
            "bounds_x": str(place.bounds[0]),
            "bounds_y": str(place.bounds[1]),
        },
    }
    if place.mpp is not None:
        plane = header["Plane"] = {}
        for axis, corner in zip("XY", place.bounds, strict=True):
            header[f"PhysicalSize{axis}"] = place.mpp * heatmap.downsample
            header[f"PhysicalSize{axis}Unit"] = "µm"
            plane[f"Position{axis}"] = [corner * place.mpp]
            plane[f"Position{axis}Unit"] = ["µm"]
    return header
