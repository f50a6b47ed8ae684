"""How good is the model? Host, evidence head, their mixture and the evidence alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gcemil.findings import mean_and_deviation
from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.context import Context, Plate
from gcemil.report.html import Section, render_section
from gcemil.report.publication.performance import describe_performance
from gcemil.report.run_data import Record
from gcemil.report.sample import draw_sample
from gcemil.report.scores import PLAIN, Draws, draw_metrics, find_interval
from gcemil.report.style import ARMS
from gcemil.runs.folder import describe_vote, main_mode
from gcemil.tables import Cell, Column, Line, Table, metric_cell

TESTS = (
    "difference", "difference_low", "difference_high", "bag_difference_low", "bag_difference_high",
    "p_paired_t_holm", "p_wilcoxon_holm", "cohens_dz",
)  # fmt: skip
Sampled = Mapping[tuple[str, str], Draws]
"""The draws of every mode and metric."""
Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By metric, mode and fold."""


def render_performance(context: Context) -> Section:
    """Metrics with intervals, the gain by the evidence, curves, and tests against a plain host."""
    run, against = context.run, context.against
    sample = draw_sample(context, "head")
    draws: Sampled = {}
    plates: list[Plate | Table] = []
    if sample is not None:
        modes = [mode for mode in ARMS if mode in sample.bags.by_mode]
        draws = draw_metrics(sample.folds, modes, run.task_metrics, seed=context.seed)
        plates = list(describe_performance(context, sample))
    tests = None if against is None else context.find("significance")
    if against is None and run.is_wrapped:
        what = "The plain host is not shown: no run of it was given."
        context.missing[what] = f"gcemil report {context.path} --against HOST_RUN"
    values = {
        metric: {mode: by_fold for mode in ARMS if (by_fold := context.read_values(mode, metric))}
        for metric in run.task_metrics
    }
    figures = []
    if histories := {fold.number: fold.history for fold in run.folds if fold.history}:
        picture = context.draw(
            "learning",
            draw_learning(
                histories,
                {fold.number: fold.details.get("best_epoch") for fold in run.folds},
                run.task_metric,
            ),
            "Loss and metric over epochs of training",
            "One line per fold. A validation loss that rises while the training loss falls means "
            "overfitting. Dots: the epoch that is kept.",
        )
        figures.append(picture)
    else:
        what = "The run has no training history, so there are no learning curves."
        context.missing[what] = f"gcemil train COHORT --out {context.path}"
    votes = [fold.details.get("vote") for fold in run.folds]
    return render_section(
        "performance",
        "How good is the model?",
        main=_describe_main_mode(context, draws),
        vote=describe_vote([vote["weight"] for vote in votes if vote is not None]),
        comparison=compare_with_host(context, draws),
        table=_tabulate_metrics(context, values, draws),
        plates=[context.show(one) for one in plates if isinstance(one, Plate)],
        tables=[one for one in plates if isinstance(one, Table)],
        figures=figures,
        is_survival=bool(draws) and run.task == "survival",
        folds=context.draw(
            "prediction_folds",
            draw_fold_pairs(values),
            "Task metrics of every arm, fold by fold",
            "Dots are folds, lines join the same fold under different arms, bars are means.",
        ),
        significance=tests
        and context.make_table(
            tests.rows,
            TESTS,
            "Difference to the plain host "
            f"({tests.settings.get('against', 'host')}), all its patches",
            labels={"mode": "host + GCE", "metric": "Metric"},
            naming={
                "mode": lambda key: style.MODE_NAMES.get(key, key),
                "metric": lambda key: METRICS[key].label,
            },
            grouped=False,
            within=None,
            notes=tests.notes,
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
    folds = f"{len(run.folds)} fold{'s' if len(run.folds) > 1 else ''}"
    bags = f"{context.count_units(len(run.bags))} in {folds}"
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
            before, after = (
                fmean(context.read_values(mode, metric).values()) for mode in (host, "gce")
            )
            numbers = (f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
            gain = ours - theirs
            words = _judge_interval(-gain if METRICS[metric].direction == "lower" else gain)
            labels = (METRICS[metric].label, ARMS[host])
            rows.append((*labels, *numbers, _format_interval(gain), words))
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


def _tabulate_metrics(context: Context, values: Values, draws: Sampled) -> Table:
    """Mean and deviation over folds and the interval over bags, one line per arm."""
    columns = []
    for metric in values:
        columns.append(Column(metric, METRICS[metric].label, metric))
        columns.append(Column(f"{metric}_interval", "95 % interval"))
    lines = []
    for mode in ARMS:
        cells = []
        for metric, modes in values.items():
            cells.append(metric_cell(metric, *mean_and_deviation(modes.get(mode, {}).values())))
            cells.append(Cell(_format_interval(draws.get((mode, metric)))))
        if any(mode in modes for modes in values.values()):
            lines.append(Line((ARMS[mode],), "ours", tuple(cells), comparison=""))
    count = len(context.run.folds)
    spread = f"± standard deviation over {count} folds. " if count > 1 else ""
    note = (
        f"{spread}Intervals: bootstrap over the test cases of each fold, the same draws for all "
        "modes; networks are not trained again."
    )
    return Table("", "", "", ("Prediction",), tuple(columns), tuple(lines), notes=(note,))


def draw_learning(
    histories: Mapping[int, Sequence[Record]], kept: Mapping[int, int | None], metric: str
) -> Figure:
    """Training loss, validation loss and validation metric over all epochs, one line per fold.

    `kept` is the epoch of the last stage that each fold keeps.
    """
    figure = style.new_figure(2.3)
    panels = style.add_panels(figure, 3)
    for number, history in histories.items():
        losses = [record.get("terms", {}).get("task") for record in history]
        series = (losses, *([record.get(key) for record in history] for key in ("val_loss", "val")))
        look: dict[str, Any] = {"color": style.MUTED, "linewidth": 1.2, "label": f"fold {number}"}
        for axes, values in zip(panels, series, strict=True):
            numbers = np.array(values, dtype=float)
            axes.plot(np.arange(len(numbers)), numbers, **look)
        # A host with two stages has two records of the same epoch; the last one counts.
        places = [i for i, record in enumerate(history) if record["epoch"] == kept[number]]
        if places:
            color, marker = style.EVIDENCE_COLOR, style.MARKERS[number % len(style.MARKERS)]
            best = places[-1]
            panels[-1].plot(best, numbers[best], color=color, marker=marker, markersize=4)
    titles = ("Training loss ↓", "Validation loss ↓", f"Validation {METRICS[metric].label} ↑")
    for axes, title in zip(panels, titles, strict=True):
        style.draw_grid(axes).set(title=title, xlabel="epoch")
    return figure


def draw_fold_pairs(values: Values) -> Figure:
    """Per metric, every fold under every arm; a line joins the folds that two arms share."""
    modes = list(dict.fromkeys(mode for by_mode in values.values() for mode in by_mode))
    figure = style.new_figure(0.85 + 0.42 * len(modes))
    panels = style.add_panels(figure, len(values), sharey=True)
    look: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.6, "marker": "o", "markersize": 3.6}
    for axes, (metric, by_mode) in zip(panels, values.items(), strict=True):
        places = pd.Series(style.label_rows(axes, [ARMS[mode] for mode in modes]), modes)
        table = pd.DataFrame(by_mode).reindex(columns=[mode for mode in modes if mode in by_mode])
        for _, fold in table.iterrows():
            shared = fold.dropna()
            axes.plot(shared, places[shared.index], color=style.MUTED, **look)
        for mode, mean in table.mean().items():
            top = places[mode] + 0.26
            color = style.INK if mode == modes[0] and len(modes) > 1 else style.EVIDENCE_COLOR
            axes.plot([mean, mean], [top - 0.52, top], color=color, linewidth=2.6)
            axes.text(mean, top + 0.05, f"{mean:.3f}", ha="center", fontsize=7.5)
        axes.margins(x=0.12)
        title = f"{METRICS[metric].label} {METRICS[metric].arrow}"
        style.draw_grid(axes, grid="x").set_title(title)
    return figure
