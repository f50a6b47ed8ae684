"""Classification: ROC and precision-recall curves, calibration, confusion, table of classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.report import style
from gcemil.report.context import Context, Plate
from gcemil.report.sample import (
    Sample,
    find_band,
    format_value,
    tabulate_metrics,
    value_cell,
)
from gcemil.report.scores import GRID, PLAIN, Curves, bin_confidence, measure_classes, trace_curves
from gcemil.tables import Cell, Column, Line, Table

CLASS_HEADINGS = {"f1": "F1", "auc": "AUC"}
"""Headings of metrics that are not their own name."""
CURVES = {
    "roc": ("ROC", "false positive rate", "sensitivity"),
    "precision_recall": ("Precision-recall", "recall", "precision"),
}


def describe_classes(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    bags = sample.bags
    traced = {mode: trace_curves(bags, mode, sample.weights) for mode in sample.modes}
    curves = {mode: curve for mode, curve in traced.items() if curve is not None}
    averaged = "each class against the others, averaged; right: every class of the main prediction"
    if len(bags.classes) == 2:
        averaged = f"{bags.classes[1]} against {bags.classes[0]}"
    folds = " Thin lines: the folds of the main prediction." if len(sample.folds) > 1 else ""
    for kind, (title, *_) in CURVES.items() if curves else ():
        caption = (
            f"{title} curves of all folds together, {averaged}. Bands: interval of the curve."
            f"{folds} {sample.note}{'' if kind == 'roc' else ' AP: average precision.'}"
        )
        yield Plate(kind, draw_curves(sample, curves, kind), caption)
    yield Plate(
        "calibration",
        draw_calibration(sample),
        "Share of right predictions among those of similar confidence. "
        f"ECE: mean distance from the diagonal. {sample.note}",
    )
    caption = f"{sample.count.capitalize()}: true class by row, predicted class by column."
    yield Plate("confusion", draw_confusion(sample), caption)
    yield tabulate_metrics(context, sample)
    yield _tabulate_classes(sample)


def draw_curves(sample: Sample, curves: dict[str, Curves], kind: str) -> Figure:
    """Curves of every mode with bands, and of every class if there are more than two."""
    bags, main, weights = sample.bags, sample.main, sample.weights
    by_class = bags.classes if len(bags.classes) > 2 else ()
    n_lines = max(len(curves), len(by_class))
    width = style.COLUMN * (2 if by_class else 1)
    figure = style.new_figure(3.0 + 0.19 * n_lines, width=width)
    panels = style.add_panels(figure, 2 if by_class else 1)
    for fold in sample.folds if len(sample.folds) > 1 else ():
        if (curve := trace_curves(fold, main, np.ones((1, len(fold.labels))))) is not None:
            look: Any = {"color": style.ARM_COLORS[main], "linewidth": 0.6, "alpha": 0.5}
            panels[0].plot(GRID, getattr(curve, kind)[0], **look)
    look = {"markersize": 3.4, "markevery": 20}
    for (mode, curve), marker in zip(curves.items(), style.MARKERS, strict=False):
        words = format_value("AP", curve.average_precision)
        if kind == "roc":
            words = format_value("AUC", bags.measure(mode, "auc", weights))
        lines, look["color"] = getattr(curve, kind), style.ARM_COLORS[mode]
        label = f"{style.ARMS[mode]}: {words}"
        style.draw_band(
            panels[0], GRID, lines[0], find_band(lines), label=label, marker=marker, **look
        )
    areas = measure_classes(bags, main, weights)["auc"]
    for index, name in enumerate(by_class):
        if (curve := trace_curves(bags, main, weights, (index,))) is not None:
            words = format_value("AP", curve.average_precision)
            if kind == "roc":
                words = format_value("AUC", areas[:, index])
            label = f"{style.shorten_label(name, 18)}: {words}"
            look |= style.number_look(index)
            panels[1].plot(GRID, getattr(curve, kind)[0], label=label, **look)
    title, across, up = CURVES[kind]
    headings = (f"{title}, mean of classes", f"{title} by class") if by_class else (title,)
    for axes, heading in zip(panels, headings, strict=True):
        _frame(axes, heading, across, up)
        if kind == "roc":
            axes.plot([0, 1], [0, 1], **style.DASHED)
        style.write_legend(axes)
    return figure


def _frame(axes: Axes, title: str, across: str, up: str) -> None:
    style.draw_grid(axes, grid="both").set(title=title, xlabel=across, ylabel=up)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.04))


def draw_calibration(sample: Sample) -> Figure:
    """Share of right predictions over confidence, with the interval of every bin."""
    figure = style.new_figure(3.0 + 0.19 * len(sample.modes), width=style.COLUMN)
    (axes,) = style.add_panels(figure, 1)
    axes.plot([0, 1], [0, 1], **style.DASHED)
    for mode, marker in zip(sample.modes, style.MARKERS, strict=False):
        means, shares, error = bin_confidence(sample.bags, mode, sample.weights)
        filled, color = ~np.isnan(shares[0]), style.ARM_COLORS[mode]
        low, high = find_band(shares[:, filled])
        axes.vlines(means[0, filled], low, high, color=color, linewidth=0.9, alpha=0.7)
        label = f"{style.ARMS[mode]}: {format_value('ECE', error)}"
        look: Any = {"color": color, "marker": marker, "markersize": 4, "label": label}
        axes.plot(means[0, filled], shares[0, filled], **look)
    _frame(axes, "Calibration", "confidence", "share right")
    style.write_legend(axes)
    return figure


def draw_confusion(sample: Sample) -> Figure:
    """Counts of true and predicted class, darker for a larger share of the true class."""
    from sklearn.metrics import confusion_matrix

    bags = sample.bags
    modes = [mode for mode in sample.modes if mode != PLAIN]
    n_classes = len(bags.classes)
    columns = min(len(modes), 4 if n_classes <= 3 else 2)
    width = style.COLUMN if len(modes) == 1 else style.WIDTH
    height = -(-len(modes) // columns) * (1.1 + min(2.6, 0.45 * n_classes))
    figure = style.new_figure(height, width=width)
    names = [style.shorten_label(name, 14) for name in bags.classes]
    for axes, mode in zip(style.add_panels(figure, len(modes), columns), modes, strict=True):
        predicted = bags.by_mode[mode].argmax(axis=1)
        counts = confusion_matrix(bags.labels, predicted, labels=range(n_classes))
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.7 else style.INK
            axes.text(column, row, str(count), ha="center", va="center", fontsize=8, color=color)
        axes.set(title=style.ARMS[mode], xlabel="predicted", ylabel="true")
        axes.set_xticks(range(n_classes), names, rotation=30, ha="right")
        axes.set_yticks(range(n_classes), names)
        axes.tick_params(length=0)
    return figure


def _tabulate_classes(sample: Sample) -> Table:
    """One line per class of the main prediction."""
    measured = measure_classes(sample.bags, sample.main, sample.weights)
    columns = [
        Column(name, CLASS_HEADINGS.get(name, name.capitalize()), better="neither")
        for name in measured
    ]
    lines = []
    for index, name in enumerate(sample.bags.classes):
        count = int((sample.bags.labels == index).sum())
        cells = [value_cell(metric, values[:, index]) for metric, values in measured.items()]
        lines.append(Line((name,), "ours", (Cell(str(count), count), *cells)))
    title = f"Every class against the others, {style.ARMS[sample.main]}"
    columns = [Column("n", "n"), *columns]
    return Table(
        "classes", title, "tab:classes", ("Class",), tuple(columns), tuple(lines),
        notes=(sample.note,),
    )  # fmt: skip
