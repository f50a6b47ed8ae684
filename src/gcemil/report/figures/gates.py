"""How the gates of the training bags were spread, epoch by epoch: two ends and nothing between can be recovered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from gcemil.exports.overlay import RAMP
from gcemil.report.figures.style import WIDTH, new_figure, quiet, styled
from gcemil.report.palette import INK, MUTED

SMALLEST = 1e-4
"""Share of patches below which a cell is white."""


@styled
def gate_histograms(
    epochs: Sequence[int],
    histograms: Float[np.ndarray, "epochs bins"],
    *,
    threshold: float | None = None,
    open_share: float | None = None,
) -> Figure:
    """Left, every epoch as a column; right, the first and the last epoch that has gates."""
    figure = new_figure(WIDTH, 2.9)
    over_time, ends = figure.subplots(1, 2, width_ratios=(1.6, 1))
    bins = histograms.shape[1]
    edges = np.append(np.array(epochs) - 0.5, epochs[-1] + 0.5)
    shown = np.where(histograms >= SMALLEST, histograms, np.nan)
    colors = LinearSegmentedColormap.from_list("gates", RAMP / 255)
    mesh = over_time.pcolormesh(
        edges, np.linspace(0, 1, bins + 1), shown.T, norm=LogNorm(SMALLEST, 1), cmap=colors, rasterized=True
    )
    bar = figure.colorbar(mesh, ax=over_time, pad=0.02)
    bar.set_label("share of patches", fontsize=8)
    bar.outline.set_visible(False)
    bar.minorticks_off()
    over_time.set_xlabel("epoch")
    over_time.set_ylabel("gate")
    opened = "" if open_share is None else f", {open_share:.1%} open at the end"
    over_time.set_title(f"Gates over training{opened}")
    if threshold is not None:
        over_time.axhline(threshold, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    middles = (np.arange(bins) + 0.5) / bins
    quiet(ends)
    ends.step(
        middles, histograms[0], where="mid", color=MUTED, linestyle=(0, (3, 1.5)), label=f"epoch {epochs[0]}"
    )
    ends.bar(middles, histograms[-1], width=0.9 / bins, color=INK, alpha=0.8, label=f"epoch {epochs[-1]}")
    ends.set_yscale("log")
    ends.minorticks_off()
    ends.set_ylim(SMALLEST, 1.6)
    ends.set_xlabel("gate")
    ends.set_title("First and last")
    ends.legend(loc="upper center")
    return figure
