"""The strongest evidence patches of one slide, side by side: their pixels where there are any, and their responses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.exports.overlay import Canvas
from gcemil.records import SlideEvidence
from gcemil.report.figures.slide_maps import show_pixels
from gcemil.report.figures.style import WIDTH, new_figure, shortened, styled
from gcemil.report.palette import EVIDENCE_COLOR, INK, LINE

MOST_PATCHES = 12
COLUMNS = 6


@styled
def contact_sheet(evidence: SlideEvidence, pixels: Sequence[Canvas] | None = None) -> Figure:
    """The first patches by evidence score; `pixels` are those of `top_patches`, in their order."""
    chosen = top_patches(evidence)
    rows = -(-max(1, len(chosen)) // COLUMNS)
    letters = anchor_letters(len(evidence.prompts))
    parts = 2 if pixels is not None else 1
    figure = new_figure(WIDTH, rows * (1.0 * parts + 0.25) + 0.5 + 0.15 * len(evidence.prompts))
    figure.suptitle(
        shortened(f"{evidence.slide_id}: strongest evidence patches", 76),
        x=0.01,
        ha="left",
        fontsize=9,
        color=INK,
    )
    grid = np.asarray(figure.subplots(rows * parts, COLUMNS, squeeze=False))
    for axes in grid.flat:
        axes.set_axis_off()
    for place, patch in enumerate(chosen.tolist()):
        row, column = divmod(place, COLUMNS)
        if pixels is not None:
            show_pixels(grid[row * parts, column], pixels[place])
            grid[row * parts, column].set_axis_on()
        below = grid[row * parts + parts - 1, column]
        response_bars(below, evidence.responses[patch], letters)
        (grid[row * parts, column]).set_title(f"patch {patch}", fontsize=7.5, fontweight="normal")
    key = "\n".join(
        f"{letter}  {shortened(prompt, 90)}" for letter, prompt in zip(letters, evidence.prompts, strict=True)
    )
    figure.supxlabel(key, x=0.01, ha="left", fontsize=7.5)
    return figure


def response_bars(axes: Axes, responses: Float[np.ndarray, "m"], letters: Sequence[str]) -> None:
    """How strongly one patch responds to each anchor."""
    axes.set_axis_on()
    axes.bar(np.arange(len(responses)), responses, width=0.78, color=EVIDENCE_COLOR)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 1])
    axes.set_xticks(np.arange(len(letters)), letters)
    axes.tick_params(labelsize=6.5, length=0)
    axes.grid(True, axis="y", color=LINE)


def top_patches(evidence: SlideEvidence, most: int = MOST_PATCHES) -> Int[np.ndarray, "k"]:
    """The selected patches of highest evidence score, the lower index first where two are equal."""
    found = evidence.indices
    order = np.argsort(-evidence.evidence_scores[found], kind="stable")
    return found[order][:most]


def anchor_letters(count: int) -> list[str]:
    """A, B, ... Z, then numbers."""
    return [chr(ord("A") + number) if number < 26 else str(number) for number in range(count)]
