"""Regression: prediction against label, with the line on which both are equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.bootstrap import PLAIN
from gcemil.report.sample import Plate, Sample, format_value, tabulate_metrics
from gcemil.report.sections.context import Context
from gcemil.tables import Table


def describe_values(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    """The scatter of every mode, and its metrics."""
    yield Plate(
        "predicted_values",
        draw_values(sample),
        "Prediction against label. A dot is a test bag, the dashed line is where both are equal, and the dotted one is the "
        "mean of the labels, which a model without knowledge would predict. Brackets: 95 % interval over draws of patients. "
        f"{sample.count.capitalize()}.",
    )
    yield tabulate_metrics(context, sample)


def draw_values(sample: Sample) -> Figure:
    """One panel per way to predict, on the same axes; dots of different folds have different markers."""
    bags = sample.bags
    modes = [mode for mode in sample.modes if mode != PLAIN]
    columns = min(3, len(modes))
    figure = style.new_figure(
        3.4 * -(-len(modes) // columns), width=min(style.WIDTH, 3.6 * len(modes))
    )
    values = np.concatenate([bags.targets, *(bags.by_mode[mode] for mode in modes)])
    margin = 0.04 * np.ptp(values)
    ends = (values.min() - margin, values.max() + margin)
    folds = np.zeros(len(bags.targets), dtype=int) if bags.folds is None else bags.folds
    for axes, mode in zip(style.add_axes_grid(figure, len(modes), columns), modes, strict=True):
        axes.plot(ends, ends, **style.DASHED)
        axes.axhline(bags.targets.mean(), color=style.MUTED, linewidth=1, linestyle=":")
        look: dict[str, Any] = {
            "s": 16,
            "alpha": 0.75,
            "linewidths": 0,
            "color": style.ARM_COLORS[mode],
        }
        for number in np.unique(folds):
            own = folds == number
            marker = style.MARKERS[number % len(style.MARKERS)]
            axes.scatter(bags.targets[own], bags.by_mode[mode][own], marker=marker, **look)
        words = "\n".join(
            format_value(METRICS[name].label, bags.measure(mode, name, sample.weights))
            for name in ("r2", "pearson")
        )
        style.draw_grid(axes, grid="both").set(
            title=style.ARMS[mode].capitalize(),
            xlabel=f"label\n{words}",
            ylabel="prediction",
            xlim=ends,
            ylim=ends,
        )
    return figure
