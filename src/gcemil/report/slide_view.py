"""One slide of a run as pictures need it: its evidence, the place of its patches, their pixels.

A cohort may keep thumbnails/<slide>.jpg, as `gcemil encode` writes it, and slides/<slide>.*, the
slide file. Without them a picture shows the grid of patches. Patches are drawn as an image, never
as shapes, so that a figure of 50,000 patches stays small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image
from scipy import ndimage

from gcemil.bags import store
from gcemil.bags.cohort import find_patch_size, find_slide_file, read_slide_attributes
from gcemil.bags.store import read_truth, stated_number
from gcemil.errors import GcemilError
from gcemil.exports.geojson import EVIDENCE, NO_EVIDENCE
from gcemil.exports.overlay import (
    GREY,
    Canvas,
    Frame,
    Mask,
    SlideFrame,
    Thumbnail,
    draw_attention,
    draw_evidence,
    frame_patches,
    read_own_thumbnail,
)
from gcemil.records import SlideEvidence
from gcemil.report.run_data import BagKey, RunData
from gcemil.slides.reader import open_slide, read_region

PATCH_PIXELS = 96
PROTOTYPE = "prototype "
"""Begins the name of an anchor without words."""
MOST_TISSUE = 64
"""Pixels of a patch over a thumbnail."""
FIRST_SUBSETS = ((165, 15, 240), (31, 119, 180), (230, 160, 0))


@dataclass(frozen=True, eq=False)
class SlideView:
    """A slide with evidence and coordinates."""

    slide_id: str
    evidence: SlideEvidence
    coords: Int[np.ndarray, "n 2"]
    patch_size: int
    truth: Bool[np.ndarray, "n"] | None
    thumbnail: Thumbnail | None
    mpp: float | None = None
    """Micrometres per level-0 pixel, if the cohort states it."""

    @property
    def has_truth(self) -> bool:
        """Whether any patch is annotated."""
        return self.truth is not None and bool(self.truth.any())

    @property
    def color(self) -> tuple[int, int, int]:
        """Violet where the patches are evidence, grey where the prediction does not need them."""
        return (NO_EVIDENCE if self.evidence.is_no_evidence else EVIDENCE).color

    def fit(self, *, largest: int, most_per_patch: int = 14) -> SlideFrame:
        """The box around the patches; the thumbnail, where there is one, is cut to it."""
        thumbnail = self.thumbnail
        if thumbnail is not None:
            # Tissue deserves all the pixels it has; flat squares do not.
            tissue = min(MOST_TISSUE, round(self.patch_size / thumbnail.downsample))
            most_per_patch = max(most_per_patch, tissue)
        frame = frame_patches(
            self.coords, self.patch_size, largest, most_per_patch, whole_pixels=True
        )
        under = None if thumbnail is None else _crop_thumbnail(thumbnail, frame)
        return SlideFrame.of(frame, self.coords, self.patch_size, under)

    def draw_maps(self, place: SlideFrame) -> tuple[Canvas, Canvas]:
        """Attention and evidence, both with the outline of the truth."""
        attention = draw_attention(place, self.evidence.scores)
        evidence = draw_evidence(place, self.evidence.selected, self.color)
        attention, evidence = (
            outline_truth(canvas, place, self.truth) for canvas in (attention, evidence)
        )
        return attention, evidence


def read_slide_view(run: RunData, bag: BagKey, slide_id: str) -> SlideView | None:
    """None where a map cannot be drawn: no evidence, no coordinates, or patches of unknown size."""
    evidence = run.fold(bag.fold).evidence(slide_id)
    if evidence is None or evidence.coords is None:
        return None
    coords = evidence.coords.astype(np.int64)
    size = find_patch_size(run.cohort, run.card, slide_id, coords)
    if size is None:
        return None
    truth, path = None, run.cohort / "truth" / f"{slide_id}.h5"
    # The annotation may be of other patches than those of this run.
    if path.is_file() and store.read(path, "evidence").shape == (len(coords),):
        truth = read_truth(path, "evidence", len(coords)).astype(bool)
    mpp = stated_number(read_slide_attributes(run.cohort, slide_id), "level0_mpp")
    thumbnail = read_own_thumbnail(run.cohort, slide_id)
    return SlideView(slide_id, evidence, coords, size, truth, thumbnail, mpp)


def read_patch_pixels(cohort: Path, view: SlideView, patches: Sequence[int]) -> list[Canvas] | None:
    """These patches as pictures; None without a slide file that can be opened here."""
    path = find_slide_file(cohort, view.slide_id)
    if path is None:
        return None
    box = {"width": float(view.patch_size), "height": float(view.patch_size)}
    corners = view.coords[list(patches)].astype(float).tolist()
    try:
        with open_slide(path) as slide:
            return [
                read_region(slide, left=left, top=top, size=(PATCH_PIXELS, PATCH_PIXELS), **box)
                for left, top in corners
            ]
    except GcemilError:
        # A slide that cannot be opened here only costs the report a picture.
        return None


def _crop_thumbnail(thumbnail: Thumbnail, frame: Frame) -> Thumbnail:
    """The part of the thumbnail under the frame; white beyond its edge."""
    step = thumbnail.downsample
    left, top = (
        math.floor((edge - start) / step)
        for edge, start in zip((frame.left, frame.top), thumbnail.origin, strict=True)
    )
    width = max(1, round(frame.width / frame.scale / step))
    height = max(1, round(frame.height / frame.scale / step))
    sheet = Image.new("RGB", (width, height), "white")
    sheet.paste(Image.fromarray(thumbnail.pixels), (-left, -top))
    return Thumbnail(np.array(sheet), step, (frame.left, frame.top))


def rank_anchors(evidence: SlideEvidence, weight_share: float) -> list[tuple[int, str, bool]]:
    """Index and name of every anchor, and whether it counts for the prediction.

    Those that count come first, by weight, then the others by coverage; all count if weights are
    unknown.
    """
    weights = evidence.anchor_weights
    if weights is None:
        weights, counts = evidence.coverage, np.ones(len(evidence.coverage), dtype=bool)
    else:
        counts = weights >= weight_share * weights.max()
    # By rank among those that count, then among the others.
    order = np.lexsort((-np.where(counts, weights, evidence.coverage), ~counts))
    return [
        (anchor, name_anchor(evidence, anchor), bool(counts[anchor])) for anchor in order.tolist()
    ]


def name_anchor(evidence: SlideEvidence, anchor: int) -> str:
    """The prompt, or the number of a prototype and the patch most like it."""
    prompt = evidence.prompts[anchor]
    if not prompt.startswith(PROTOTYPE) or evidence.coords is None:
        return prompt
    x, y = evidence.coords[int(evidence.responses[:, anchor].argmax())].tolist()
    return f"{prompt}, like the patch at {x}, {y}"


def draw_subsets(place: SlideFrame, subsets: Int[np.ndarray, "n"]) -> Canvas:
    """Disjoint subsets, numbered from 1, each in its colour."""
    palette = np.array([GREY, *FIRST_SUBSETS], dtype=np.uint8)
    members, colors = subsets > 0, palette[np.clip(subsets, 0, len(FIRST_SUBSETS))]
    return place.paint(colors, members.astype(float), None if place.thumbnail is None else members)


def outline_truth(canvas: Canvas, place: SlideFrame, truth: Mask | None) -> Canvas:
    """The canvas with a black line around the true patches, in a white halo for any colour."""
    if truth is None or not truth.any():
        return canvas
    inside = place.mask_patches(truth)
    line = inside & ~ndimage.binary_erosion(inside)
    halo = ndimage.binary_dilation(inside) & ~inside
    result = canvas.copy()
    result[halo] = (255, 255, 255)
    result[line] = (0, 0, 0)
    return result
