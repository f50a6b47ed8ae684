"""One slide seen three ways: where the host looked, what the evidence is, and which disjoint subsets would do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gcemil.exports.geojson import EVIDENCE
from gcemil.exports.overlay import Canvas, Thumbnail
from gcemil.records import SlideEvidence
from gcemil.report.figures.rasters import (
    FIRST_SUBSETS,
    Mask,
    SlideFrame,
    attention_picture,
    evidence_picture,
    outlined,
    subset_picture,
)
from gcemil.report.figures.style import WIDTH, new_figure, row_of_axes, shortened, styled
from gcemil.report.palette import EVIDENCE_COLOR, INK, hexadecimal

LARGEST = 1400
"""Pixels of a panel's longer side: at least one per patch for slides of 50,000."""


@styled
def attention_and_evidence(
    evidence: SlideEvidence,
    coords: Int[np.ndarray, "n 2"],
    *,
    patch_size: int,
    truth: Mask | None = None,
    thumbnail: Thumbnail | None = None,
) -> Figure:
    """The host's attention and the recovered evidence on the same slide."""
    place = SlideFrame.of(coords, patch_size, largest=LARGEST, thumbnail=thumbnail)
    count = int(evidence.selected.sum())
    panels = {
        "Attention of the host, by rank": attention_picture(place, evidence.scores),
        f"GCE evidence, {count} of {len(evidence.selected)} patches": evidence_picture(
            place, evidence.selected, EVIDENCE.color
        ),
    }
    if thumbnail is not None:
        panels = {"Slide": place.canvas(), **panels}
    figure = panel_row(
        evidence.slide_id, {name: outlined(canvas, place, truth) for name, canvas in panels.items()}
    )
    handles: list[Patch | Line2D] = [Patch(color=EVIDENCE_COLOR, label="evidence")]
    if truth is not None and truth.any():
        handles.append(Line2D([], [], color="black", linewidth=1.2, label="outline of the annotated truth"))
    figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


@styled
def disjoint_subsets(
    slide_id: str,
    coords: Int[np.ndarray, "n 2"],
    subsets: dict[str, Int[np.ndarray, "n"]],
    *,
    patch_size: int,
    truth: Mask | None = None,
    thumbnail: Thumbnail | None = None,
) -> Figure:
    """Patches by the number of the sufficient subset they belong to (0 = none), one panel per rule."""
    place = SlideFrame.of(coords, patch_size, largest=LARGEST, thumbnail=thumbnail)
    panels = {
        f"{name}: {int(numbers.max(initial=0))} sufficient": outlined(
            subset_picture(place, numbers), place, truth
        )
        for name, numbers in subsets.items()
    }
    figure = panel_row(slide_id, panels)
    words = ("first subset", "second", "third")
    handles: list[Patch | Line2D] = [
        Patch(color=hexadecimal(color), label=word) for color, word in zip(FIRST_SUBSETS, words, strict=True)
    ]
    if truth is not None and truth.any():
        handles.append(Line2D([], [], color="black", linewidth=1.2, label="annotated truth"))
    figure.legend(handles=handles, loc="outside lower left", ncols=4)
    return figure


def panel_row(heading: str, panels: dict[str, Canvas]) -> Figure:
    """Pictures side by side under their titles."""
    shapes = [canvas.shape for canvas in panels.values()]
    ratio = shapes[0][0] / shapes[0][1]
    each = WIDTH / len(panels)
    figure = new_figure(WIDTH, min(7.0, each * ratio + 0.75))
    figure.suptitle(shortened(heading, 70), x=0.01, ha="left", fontsize=9, color=INK)
    for axes, (title, canvas) in zip(row_of_axes(figure, len(panels)), panels.items(), strict=True):
        show_pixels(axes, canvas)
        axes.set_title(title, fontsize=8.5)
    return figure


def show_pixels(axes: Axes, canvas: Canvas) -> None:
    axes.imshow(canvas, interpolation="nearest", aspect="equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def numbered_subsets(
    order: Sequence[int] | Int[np.ndarray, "n"], *, size: int, count: int
) -> Int[np.ndarray, "n"]:
    """Which of `count` consecutive runs of `size` patches of a ranking each patch is in; 0 for none."""
    ranked = np.asarray(order)
    numbers = np.zeros(len(ranked), dtype=np.int64)
    places = np.arange(len(ranked)) // size + 1
    numbers[ranked] = np.where(places <= count, places, 0)
    return numbers
