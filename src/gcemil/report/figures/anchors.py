"""How surely the evidence shows each anchor: v_m = 1 - prod over S of (1 - r_im), over the slides of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from gcemil.report.figures.style import WIDTH, new_figure, quiet, shortened, spread_positions, styled
from gcemil.report.palette import EVIDENCE_COLOR, INK, MUTED


@styled
def anchor_coverage(
    prompts: Sequence[str], coverage: Float[np.ndarray, "slides m"], *, target: float | None = None
) -> Figure:
    """A bar per anchor, the mean over slides, and a dot per slide."""
    figure = new_figure(WIDTH, 0.75 + 0.33 * len(prompts))
    axes = quiet(figure.subplots(), grid="x")
    places = np.arange(len(prompts))[::-1]
    means = coverage.mean(axis=0)
    axes.barh(places, means, height=0.62, color=EVIDENCE_COLOR, alpha=0.85)
    for place, column in zip(places, coverage.T, strict=True):
        shift = spread_positions(column.tolist(), width=0.22)
        axes.plot(column, place + shift, linestyle="", marker="o", markersize=2.2, color=INK, alpha=0.45)
    axes.set_yticks(places, [textwrap.fill(shortened(prompt, 90), 46) for prompt in prompts])
    axes.set_xlim(0, 1.12)
    axes.set_xticks(np.linspace(0, 1, 6))
    for place, mean in zip(places, means, strict=True):
        axes.text(1.03, place, f"{mean:.2f}", va="center", fontsize=8)
    if target is not None:
        axes.axvline(target, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(
            f"target {target:g}",
            (target, places[0] + 0.5),
            fontsize=7.5,
            color=MUTED,
            ha="right",
            va="bottom",
        )
    axes.set_xlabel("coverage (bar: mean, dot: one slide)")
    axes.tick_params(axis="y", length=0)
    return figure
