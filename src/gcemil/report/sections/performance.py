"""How good is the model? Host, evidence head, their mixture and the evidence alone, with intervals over test bags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.bootstrap import (
    PLAIN,
    Draws,
    FoldPredictions,
    draw_metrics,
    find_interval,
    pool_folds,
    read_fold_predictions,
)
from gcemil.report.curves import GRID, bin_confidence, trace_curves
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.run_data import Record
from gcemil.report.sections.context import Context, quote_path, save_figure
from gcemil.report.sections.survival import draw_survival
from gcemil.runs.folder import describe_vote, main_mode
from gcemil.tables import Cell, Column, Line, Table, metric_cell

TESTS = (
    "difference", "difference_low", "difference_high", "bag_difference_low", "bag_difference_high",
    "p_paired_t_holm", "p_wilcoxon_holm", "cohens_dz",
)  # fmt: skip
ARMS = {PLAIN: "plain host, all patches", **style.MODE_NAMES, "full": "host, all patches"}
DRAWN = {
    "full": style.ATTENTION_COLOR,
    "head": style.ORANGE,
    "gce": style.EVIDENCE_COLOR,
    "discrete": style.VIOLET,
}
"""Modes that figures show, each with its colour."""
Sampled = Mapping[tuple[str, str], Draws]
"""The draws of every mode and metric."""


def render_performance(context: Context) -> Section:
    """Figures with intervals, the difference that the evidence makes, curves, and the tests against a plain host."""
    run, against = context.run, context.against
    plain = {} if against is None else {fold.number: fold for fold in against.folds}
    predictions = [read_fold_predictions(fold, plain.get(fold.number)) for fold in run.folds]
    folds = [fold for fold in predictions if fold is not None]
    draws: Sampled = {}
    if len(folds) == len(run.folds):
        modes = [mode for mode in ARMS if all(mode in fold.by_mode for fold in folds)]
        draws = draw_metrics(folds, modes, run.task_metrics, seed=context.seed)
    else:
        remedy = f"gcemil evaluate {quote_path(run.folder)}"
        context.list_missing("A fold has no table of predictions, so metrics have no interval.", remedy)
    tests = None if against is None else context.find("significance")
    if against is None and run.is_wrapped:
        remedy = f"gcemil report {quote_path(run.folder)} --against HOST_RUN"
        context.list_missing("The plain host is not shown: no run of it was given.", remedy)
    values = {
        metric: {mode: by_fold for mode in ARMS if (by_fold := _read_values(context, mode, metric))}
        for metric in run.task_metrics
    }
    votes = [fold.details.get("vote") for fold in run.folds]
    return render_section(
        "performance",
        "How good is the model?",
        main=_describe_main_mode(context, draws),
        vote=describe_vote([vote["weight"] for vote in votes if vote is not None]),
        comparison=compare_with_host(context, draws),
        table=_tabulate_metrics(context, values, draws),
        figures=[*(_draw_curves(context, folds) if draws else ()), *_draw_history(context)],
        is_survival=bool(draws) and run.task == "survival",
        folds=save_figure(
            context.figures,
            "prediction_folds",
            draw_fold_pairs(values),
            alt="Task metrics of every arm, fold by fold",
            caption="Dots are folds, lines join the same fold under different arms, bars are means.",
        ),
        significance=tests
        and context.make_table(
            tests.rows,
            TESTS,
            labels={"mode": "host + GCE", "metric": "Metric"},
            naming={
                "mode": lambda key: style.MODE_NAMES.get(key, key),
                "metric": lambda key: METRICS[key].label,
            },
            grouped=False,
            bold=False,
            notes=tests.notes,
            caption=f"Difference to the plain host ({tests.settings.get('against', 'host')}), all its patches",
        ),
    )


def _describe_main_mode(context: Context, draws: Sampled) -> str:
    """The main prediction: every metric with its interval, and on how many bags."""
    run = context.run
    main = main_mode(run.folds[0].modes)
    figures = []
    for metric in run.task_metrics:
        if values := run.values(main, metric):
            interval = _format_interval(draws.get((main, metric)))
            words = f" (95 % interval {interval})" if interval else ""
            figures.append(f"{METRICS[metric].label} {fmean(values.values()):.3f}{words}")
    bags = f"{context.count_units(len(run.bags))} in {len(run.folds)} fold{'s' if len(run.folds) > 1 else ''}"
    return f"{ARMS[main].capitalize()}: {', '.join(figures)}; {bags}."


def _format_interval(draws: Draws | None) -> str:
    """The interval in words; empty where there is none."""
    interval = None if draws is None else find_interval(draws)
    return "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


def compare_with_host(context: Context, draws: Sampled) -> list[tuple[str, ...]]:
    """Rows of host and mixture side by side with the paired interval of their difference."""
    rows: list[tuple[str, ...]] = []
    for host in (PLAIN, "full"):
        for metric in context.run.task_metrics:
            ours, theirs = draws.get(("gce", metric)), draws.get((host, metric))
            if ours is None or theirs is None:
                continue
            # A host that the wrapper left alone is the plain host, which is shown once.
            if host == "full" and np.array_equal(draws.get((PLAIN, metric), np.empty(0)), theirs):
                continue
            before, after = (fmean(_read_values(context, mode, metric).values()) for mode in (host, "gce"))
            numbers = (f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
            gain = ours - theirs
            interval = _format_interval(gain)
            rows.append((METRICS[metric].label, ARMS[host], *numbers, interval, _judge_interval(gain)))
    return rows


def _judge_interval(gain: Draws) -> str:
    """What the interval of a difference shows."""
    interval = find_interval(gain)
    if interval is None:
        return "no interval"
    low, high = interval
    if low == high == 0:
        return "no difference in any draw"
    return "a gain" if low > 0 else "a loss" if high < 0 else "no difference beyond chance"


def _read_values(context: Context, mode: str, metric: str) -> dict[int, float]:
    """The metric of every fold under one mode; the plain host is another run."""
    if mode == PLAIN:
        return {} if context.against is None else context.against.values("full", metric)
    return context.run.values(mode, metric)


Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By metric, mode and fold."""


def _tabulate_metrics(context: Context, values: Values, draws: Sampled) -> Table:
    """Mean and deviation over folds and the interval over bags, one line per arm."""
    columns = []
    cells: dict[str, list[Cell]] = {
        mode: [] for mode in ARMS if any(mode in modes for modes in values.values())
    }
    for metric, modes in values.items():
        columns += [
            Column(metric, METRICS[metric].label, metric),
            Column(f"{metric}_interval", "95 % interval"),
        ]
        for mode in cells:
            folds = list(modes.get(mode, {}).values())
            deviation = stdev(folds) if len(folds) > 1 else None
            cells[mode].append(metric_cell(metric, fmean(folds) if folds else None, deviation))
            cells[mode].append(Cell(_format_interval(draws.get((mode, metric)))))
    lines = [Line((ARMS[mode],), "ours", tuple(line), comparison="") for mode, line in cells.items()]
    count = len(context.run.folds)
    spread = f"± standard deviation over {count} folds. " if count > 1 else ""
    note = f"{spread}Intervals: bootstrap over the test cases of each fold, the same draws for all modes; networks are not trained again."
    return Table("", "", "", ("Prediction",), tuple(columns), tuple(lines), notes=(note,))


def _draw_curves(context: Context, folds: Sequence[FoldPredictions]) -> list[Picture]:
    """ROC, precision-recall, calibration and confusion of classes; risk groups of survival."""
    if context.run.task == "survival":
        return [draw_survival(context)]
    modes = [mode for mode in DRAWN if all(mode in fold.by_mode for fold in folds)]
    classes = folds[0].classes
    averaged = (
        f"{classes[-1]} against {classes[0]}"
        if len(classes) == 2
        else "each class against the others, averaged"
    )
    curves = save_figure(
        context.figures,
        "performance",
        draw_performance(folds, modes),
        alt="ROC curve, precision-recall curve and calibration of every way to predict",
        caption=f"ROC and precision-recall: {averaged}, mean over folds. Calibration: the share of right predictions among those of "
        "similar confidence; on the diagonal, a confidence of 80 % is right in 80 %. ECE: mean distance from the diagonal.",
    )
    confusion = save_figure(
        context.figures,
        "confusion",
        draw_confusion(folds, modes),
        alt="Confusion matrix of every way to predict",
        caption=f"Test {context.run.bag_unit}s of all folds: true class by row, predicted class by column.",
    )
    return [curves, confusion]


def _draw_history(context: Context) -> list[Picture]:
    """Learning curves, where the run has a history."""
    histories = {fold.number: fold.history for fold in context.run.folds if fold.history}
    if not histories:
        remedy = f"gcemil train COHORT --out {quote_path(context.run.folder)}"
        context.list_missing("The run has no training history, so there are no learning curves.", remedy)
        return []
    picture = save_figure(
        context.figures,
        "learning",
        draw_learning(histories, context.run.task_metric),
        alt="Loss and metric over epochs of training",
        caption="One line per fold. A validation loss that rises while the training loss falls means overfitting; the epoch with the "
        "best validation metric is kept (dots).",
    )
    return [picture]


def average_curves(folds: Sequence[FoldPredictions], mode: str) -> tuple[Draws, Draws] | None:
    """Sensitivity over false positive rate and precision over recall, both on GRID; None where one class is tested."""
    curves = [trace_curves(fold, mode, np.ones((1, len(fold.labels)))) for fold in folds]
    found = [(curve.roc[0], curve.precision_recall[0]) for curve in curves if curve is not None]
    if not found:
        return None
    roc, precision_recall = (np.mean(lines, axis=0) for lines in zip(*found, strict=True))
    return roc, precision_recall


def measure_calibration(folds: Sequence[FoldPredictions], mode: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean confidence and share of right predictions of every bin that has bags, and their mean distance (ECE)."""
    bags = pool_folds(folds)
    (means,), (shares,), (error,) = bin_confidence(bags, mode, np.ones((1, len(bags.labels))))
    filled = ~np.isnan(means)
    return means[filled], shares[filled], float(error)


def draw_performance(folds: Sequence[FoldPredictions], modes: Sequence[str]) -> Figure:
    """ROC, precision-recall and calibration, one line per mode."""
    figure = style.new_figure(3.1)
    roc, precision_recall, calibration = style.add_axes_row(figure, 3)
    for mode, marker in zip(modes, style.MARKERS, strict=False):
        look: dict[str, Any] = {"color": DRAWN[mode], "marker": marker, "markersize": 3.6}
        if (curves := average_curves(folds, mode)) is not None:
            for axes, curve in zip((roc, precision_recall), curves, strict=True):
                axes.plot(GRID, curve, markevery=20, **look)
        confidence, right, error = measure_calibration(folds, mode)
        calibration.plot(confidence, right, label=f"{ARMS[mode]}, ECE {error:.3f}", **look)
    for axes in (roc, calibration):
        axes.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 2)))
    names = {
        roc: ("ROC", "false positive rate", "sensitivity"),
        precision_recall: ("Precision-recall", "recall", "precision"),
        calibration: ("Calibration", "confidence", "share right"),
    }
    for axes, (title, across, up) in names.items():
        style.draw_grid(axes, grid="both")
        axes.set(title=title, xlabel=across, ylabel=up, xlim=(-0.02, 1.02), ylim=(-0.02, 1.04))
    figure.legend(*calibration.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def draw_confusion(
    folds: Sequence[FoldPredictions], modes: Sequence[str], width: float = style.WIDTH
) -> Figure:
    """Counts of true and predicted class per mode; darker is a larger share of the true class."""
    from sklearn.metrics import confusion_matrix

    classes = folds[0].classes
    columns = min(len(modes), 4 if len(classes) <= 3 else 2)
    height = -(-len(modes) // columns) * (1.1 + min(2.6, 0.45 * len(classes)))
    figure = style.new_figure(height, width=width)
    names = [style.shorten_label(name, 14) for name in classes]
    labels = np.concatenate([fold.labels for fold in folds])
    for axes, mode in zip(style.add_axes_grid(figure, len(modes), columns), modes, strict=True):
        predicted = np.concatenate([fold.by_mode[mode].argmax(axis=1) for fold in folds])
        counts = confusion_matrix(labels, predicted, labels=range(len(classes)))
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.7 else style.INK
            axes.text(column, row, str(count), ha="center", va="center", fontsize=8, color=color)
        axes.set(title=ARMS[mode], xlabel="predicted", ylabel="true")
        axes.set_xticks(range(len(classes)), names, rotation=30, ha="right")
        axes.set_yticks(range(len(classes)), names)
        axes.tick_params(length=0)
    return figure


def draw_learning(histories: Mapping[int, Sequence[Record]], metric: str) -> Figure:
    """Training loss, validation loss and validation metric over all epochs, one line per fold."""
    figure = style.new_figure(2.3)
    panels = style.add_axes_row(figure, 3)
    titles = ("Training loss ↓", "Validation loss ↓", f"Validation {METRICS[metric].label} ↑")
    for number, history in histories.items():
        losses = [record.get("terms", {}).get("task") for record in history]
        series = (losses, *([record.get(key) for record in history] for key in ("val_loss", "val")))
        marker = style.MARKERS[number % len(style.MARKERS)]
        for axes, values in zip(panels, series, strict=True):
            numbers = np.array(values, dtype=float)
            axes.plot(
                np.arange(len(numbers)), numbers, color=style.MUTED, linewidth=1.2, label=f"fold {number}"
            )
            if axes is panels[-1] and np.isfinite(numbers).any():
                best = int(np.nanargmax(numbers))
                axes.plot(best, numbers[best], color=style.EVIDENCE_COLOR, marker=marker, markersize=4)
    for axes, title in zip(panels, titles, strict=True):
        style.draw_grid(axes).set(title=title, xlabel="epoch")
    return figure


def draw_fold_pairs(values: Values) -> Figure:
    """Per metric, the value of every fold under every arm; a line joins the folds that two arms share."""
    modes = list(dict.fromkeys(mode for by_mode in values.values() for mode in by_mode))
    figure = style.new_figure(0.85 + 0.42 * len(modes))
    for axes, (metric, by_mode) in zip(
        style.add_axes_row(figure, len(values), sharey=True), values.items(), strict=True
    ):
        places = pd.Series(style.label_rows(axes, [ARMS[mode] for mode in modes]), modes)
        table = pd.DataFrame(by_mode).reindex(columns=[mode for mode in modes if mode in by_mode])
        for _, fold in table.iterrows():
            shared = fold.dropna()
            look: Any = {
                "color": style.MUTED,
                "linewidth": 0.8,
                "alpha": 0.6,
                "marker": "o",
                "markersize": 3.6,
            }
            axes.plot(shared, places[shared.index], **look)
        for mode, mean in table.mean().items():
            top = places[mode] + 0.26
            color = style.INK if mode == modes[0] and len(modes) > 1 else style.EVIDENCE_COLOR
            axes.plot([mean, mean], [top - 0.52, top], color=color, linewidth=2.6)
            axes.text(mean, top + 0.05, f"{mean:.3f}", ha="center", fontsize=7.5)
        axes.margins(x=0.12)
        style.draw_grid(axes, grid="x").set_title(f"{METRICS[metric].label} ↑")
    return figure
