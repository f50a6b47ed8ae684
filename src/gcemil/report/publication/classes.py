"""Classification: ROC and precision-recall curves, calibration, confusion, and a table of the classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gcemil.report import style
from gcemil.report.bootstrap import PLAIN
from gcemil.report.curves import GRID, Curves, bin_confidence, measure_classes, trace_curves
from gcemil.report.sample import (
    Plate,
    Sample,
    draw_band,
    draw_frame,
    find_band,
    format_value,
    tabulate_metrics,
    value_cell,
    write_legend,
)
from gcemil.report.sections.context import Context
from gcemil.tables import Cell, Column, Line, Table

CLASS_HEADINGS = {
    "sensitivity": "Sensitivity", "specificity": "Specificity", "precision": "Precision", "f1": "F1", "auc": "AUC",
}  # fmt: skip


def describe_classes(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    bags, weights = sample.bags, sample.weights
    curves = {
        mode: found
        for mode in sample.modes
        if (found := trace_curves(bags, mode, weights)) is not None
    }
    averaged = (
        f"{bags.classes[1]} against {bags.classes[0]}"
        if len(bags.classes) == 2
        else "each class against the others, averaged; right: every class of the main prediction"
    )
    if curves:
        folds = " Thin lines: the folds of the main prediction." if len(sample.folds) > 1 else ""
        caption = f" of all folds together, {averaged}. Bands: interval of the curve.{folds} {sample.note}"
        yield Plate("roc", draw_roc(sample, curves), f"ROC curves{caption}")
        yield Plate(
            "precision_recall",
            draw_precision_recall(sample, curves),
            f"Precision-recall curves{caption} AP: average precision.",
        )
    yield Plate(
        "calibration",
        draw_calibration(sample),
        f"Share of right predictions among those of similar confidence. ECE: mean distance from the diagonal. {sample.note}",
    )
    yield Plate(
        "confusion",
        draw_confusion(sample),
        f"{sample.count.capitalize()}: true class by row, predicted class by column.",
    )
    yield tabulate_metrics(context, sample)
    yield _tabulate_classes(sample)


def draw_roc(sample: Sample, curves: dict[str, Curves]) -> Figure:
    """ROC curves of every mode with bands, and of every class where there are more than two."""

    by_class = measure_classes(sample.bags, sample.main, sample.weights)["auc"]

    def measure(mode: str, index: int | None) -> str:
        if index is not None:
            return format_value("AUC", by_class[:, index])
        return format_value("AUC", sample.bags.measure(mode, "auc", sample.weights))

    return _draw_curves(
        sample, curves, "roc", measure, ("ROC", "false positive rate", "sensitivity")
    )


def draw_precision_recall(sample: Sample, curves: dict[str, Curves]) -> Figure:
    """Precision-recall curves of every mode with bands, and of every class where there are more than two."""

    def measure(mode: str, index: int | None) -> str:
        found = (
            curves[mode]
            if index is None
            else trace_curves(sample.bags, mode, sample.weights, (index,))
        )
        return "" if found is None else format_value("AP", found.average_precision)

    return _draw_curves(
        sample, curves, "precision_recall", measure, ("Precision-recall", "recall", "precision")
    )


def _draw_curves(
    sample: Sample,
    curves: dict[str, Curves],
    kind: str,
    measure: Callable[[str, int | None], str],
    words: tuple[str, str, str],
) -> Figure:
    bags, main, title = sample.bags, sample.main, words[0]
    by_class = len(bags.classes) > 2
    n_lines = max(len(curves), len(bags.classes) if by_class else 0)
    figure = style.new_figure(3.0 + 0.19 * n_lines, width=style.COLUMN * (2 if by_class else 1))
    panels = style.add_axes_row(figure, 2 if by_class else 1)
    for fold in sample.folds if len(sample.folds) > 1 else ():
        if (found := trace_curves(fold, main, np.ones((1, len(fold.labels))))) is not None:
            panels[0].plot(
                GRID,
                getattr(found, kind)[0],
                color=style.ARM_COLORS[main],
                linewidth=0.6,
                alpha=0.5,
            )
    look: dict[str, Any] = {"markersize": 3.4, "markevery": 20}
    for (mode, found), marker in zip(curves.items(), style.MARKERS, strict=False):
        label = f"{style.ARMS[mode]}: {measure(mode, None)}"
        draw_band(
            panels[0],
            getattr(found, kind),
            GRID,
            label=label,
            color=style.ARM_COLORS[mode],
            marker=marker,
            **look,
        )
    for index, name in enumerate(bags.classes if by_class else ()):
        if (found := trace_curves(bags, main, sample.weights[:1], (index,))) is not None:
            panels[1].plot(
                GRID, getattr(found, kind)[0], color=style.GROUPS[index % len(style.GROUPS)],
                marker=style.MARKERS[index % len(style.MARKERS)],
                label=f"{style.shorten_label(name, 18)}: {measure(main, index)}", **look,
            )  # fmt: skip
    headings = (f"{title}, mean of classes", f"{title} by class") if by_class else (title,)
    for axes, heading in zip(panels, headings, strict=True):
        draw_frame(axes, heading, *words[1:])
        if kind == "roc":
            axes.plot([0, 1], [0, 1], **style.DASHED)
        write_legend(axes)
    return figure


def draw_calibration(sample: Sample) -> Figure:
    """Share of right predictions over confidence, with the interval of every bin."""
    figure = style.new_figure(3.0 + 0.19 * len(sample.modes), width=style.COLUMN)
    (axes,) = style.add_axes_row(figure, 1)
    axes.plot([0, 1], [0, 1], **style.DASHED)
    for mode, marker in zip(sample.modes, style.MARKERS, strict=False):
        means, shares, error = bin_confidence(sample.bags, mode, sample.weights)
        filled = ~np.isnan(shares[0])
        low, high = find_band(shares[:, filled])
        axes.vlines(
            means[0, filled], low, high, color=style.ARM_COLORS[mode], linewidth=0.9, alpha=0.7
        )
        axes.plot(
            means[0, filled], shares[0, filled], color=style.ARM_COLORS[mode], marker=marker, markersize=4,
            label=f"{style.ARMS[mode]}: {format_value('ECE', error)}",
        )  # fmt: skip
    draw_frame(axes, "Calibration", "confidence", "share right")
    write_legend(axes)
    return figure


def draw_confusion(sample: Sample) -> Figure:
    """Counts of true and predicted class of the host, the main prediction and the evidence alone, darker for a larger share of the true class."""
    from sklearn.metrics import confusion_matrix

    bags = sample.bags
    modes = [mode for mode in sample.modes if mode != PLAIN]
    n_classes = len(bags.classes)
    columns = min(len(modes), 4 if n_classes <= 3 else 2)
    width = style.COLUMN if len(modes) == 1 else style.WIDTH
    height = -(-len(modes) // columns) * (1.1 + min(2.6, 0.45 * n_classes))
    figure = style.new_figure(height, width=width)
    names = [style.shorten_label(name, 14) for name in bags.classes]
    for axes, mode in zip(style.add_axes_grid(figure, len(modes), columns), modes, strict=True):
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
    found = measure_classes(sample.bags, sample.main, sample.weights)
    columns = [
        Column("n", "n"),
        *(Column(name, CLASS_HEADINGS[name], better="neither") for name in found),
    ]
    lines = []
    for index, name in enumerate(sample.bags.classes):
        count = int((sample.bags.labels == index).sum())
        cells = [
            Cell(str(count), count),
            *(value_cell(metric, values[:, index]) for metric, values in found.items()),
        ]
        lines.append(Line((name,), "ours", tuple(cells)))
    title = f"Every class against the others, {style.ARMS[sample.main]}"
    return Table(
        "classes",
        title,
        "tab:classes",
        ("Class",),
        tuple(columns),
        tuple(lines),
        notes=(sample.note,),
    )
