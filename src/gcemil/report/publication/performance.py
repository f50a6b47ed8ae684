"""Figures and tables of how good a model is, by its task; here those of regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.context import Context, Plate
from gcemil.report.publication.classes import describe_classes
from gcemil.report.publication.survival import describe_survival
from gcemil.report.sample import Sample, format_value, tabulate_metrics
from gcemil.report.scores import PLAIN
from gcemil.tables import Table


def describe_performance(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    describe: dict[str, Callable[[Context, Sample], Iterator[Plate | Table]]] = {
        "classification": describe_classes,
        "regression": describe_values,
        "survival": describe_survival,
    }
    return describe[context.run.task](context, sample)


def describe_values(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    yield Plate(
        "predicted_values",
        draw_values(sample),
        "Prediction against label. A dot is a test bag, the dashed line is where both are equal, "
        "and the dotted one is the mean of the labels, which a model without knowledge would "
        "predict. Brackets: 95 % interval over draws of patients. "
        f"{sample.count.capitalize()}.",
    )
    yield tabulate_metrics(context, sample)


def draw_values(sample: Sample) -> Figure:
    """A panel per mode on the same axes; dots of different folds have different markers."""
    bags = sample.bags
    modes = [mode for mode in sample.modes if mode != PLAIN]
    columns = min(3, len(modes))
    width = min(style.WIDTH, 3.6 * len(modes))
    figure = style.new_figure(3.4 * -(-len(modes) // columns), width=width)
    values = np.concatenate([bags.targets, *(bags.by_mode[mode] for mode in modes)])
    margin = 0.04 * np.ptp(values)
    ends = (values.min() - margin, values.max() + margin)
    folds = np.zeros(len(bags.targets), dtype=int) if bags.folds is None else bags.folds
    for axes, mode in zip(style.add_panels(figure, len(modes), columns), modes, strict=True):
        axes.plot(ends, ends, **style.DASHED)
        axes.axhline(bags.targets.mean(), color=style.MUTED, linewidth=1, linestyle=":")
        look: dict[str, Any] = {"s": 16, "alpha": 0.75, "linewidths": 0}
        for number in np.unique(folds):
            own, marker = folds == number, style.MARKERS[number % len(style.MARKERS)]
            x, y, color = bags.targets[own], bags.by_mode[mode][own], style.ARM_COLORS[mode]
            axes.scatter(x, y, marker=marker, color=color, **look)
        words = [
            format_value(METRICS[name].label, bags.measure(mode, name, sample.weights))
            for name in ("r2", "pearson")
        ]
        label = "\n".join(["label", *words])
        style.draw_grid(axes, grid="both").set(xlabel=label, ylabel="prediction")
        axes.set(title=style.ARMS[mode].capitalize(), xlim=ends, ylim=ends)
    return figure
