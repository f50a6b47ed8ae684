"""Pixels of a slide, where the cohort has any: its thumbnail, and single patches from the slide file.

thumbnails/<slide>.jpg is what `gcemil patch` writes: the scanned part of the slide. slides/<slide>.* is a slide file beside
the features, as drawn cohorts have it. Both are optional; without them a slide is its grid of patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from gcemil.bags import store
from gcemil.bags.arrays import stated_number
from gcemil.errors import GcemilError
from gcemil.report.geojson import bounds_of
from gcemil.report.overlay import Canvas, Thumbnail, read_thumbnail

PATCH_PIXELS = 96
SLIDE_SUFFIXES = (".tif", ".tiff", ".svs", ".ndpi", ".mrxs")
SAME_SHAPE = 0.02
"""Largest difference in aspect at which a thumbnail shows the part that the file names."""


def slide_attributes(cohort: Path, slide_id: str) -> dict[str, Any]:
    """Attributes of the feature file and of its coordinates; none where the file is gone."""
    path = cohort / "features" / f"{slide_id}.h5"
    if not path.is_file():
        return {}
    return {
        **store.attributes(path),
        **(store.attributes(path, "coords") if store.has(path, "coords") else {}),
    }


def slide_thumbnail(cohort: Path, slide_id: str) -> Thumbnail | None:
    """The picture of the scanned part; None where there is none, or where its place on the slide is not known."""
    path = cohort / "thumbnails" / f"{slide_id}.jpg"
    found = slide_attributes(cohort, slide_id)
    origin = bounds_of(found, str(path)) or (0, 0)
    # A file that names no size of the scanned part shows the whole slide, unless the part begins elsewhere.
    whole = "bounds" if "bounds_width" in found else "level0" if origin == (0, 0) else None
    width, height = (stated_number(found, f"{whole}_{side}") for side in ("width", "height"))
    if not path.is_file() or width is None or height is None:
        return None
    thumbnail = read_thumbnail(path, level0_width=width, origin=origin)
    pixels = thumbnail.pixels.shape
    aspect = (pixels[1] / pixels[0]) / (width / height)
    return thumbnail if abs(aspect - 1) <= SAME_SHAPE else None


def patch_pixels(
    cohort: Path, slide_id: str, coords: Int[np.ndarray, "n 2"], patches: Sequence[int], *, patch_size: int
) -> list[Canvas] | None:
    """These patches as pictures; None without a slide file that can be opened here."""
    path = next(
        (
            found
            for suffix in SLIDE_SUFFIXES
            if (found := cohort / "slides" / f"{slide_id}{suffix}").is_file()
        ),
        None,
    )
    if path is None:
        return None
    from gcemil.slides.reader import open_slide
    from gcemil.slides.view import view

    try:
        with open_slide(path) as slide:
            return [
                view(
                    slide, left=float(coords[patch, 0]), top=float(coords[patch, 1]), width=float(patch_size),
                    height=float(patch_size), size=(PATCH_PIXELS, PATCH_PIXELS),
                )
                for patch in patches
            ]  # fmt: skip
    except GcemilError:
        # A report is about the run; a slide that cannot be opened here only costs it a picture.
        return None
