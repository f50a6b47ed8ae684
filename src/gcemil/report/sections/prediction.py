"""Does the wrapper cost or gain accuracy? The plain host beside host + GCE, fold by fold."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, stdev

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from gcemil.findings import Finding, Row
from gcemil.metrics import METRICS
from gcemil.report.html import Section, join_markup, paragraph
from gcemil.report.sections.context import Context, Naming, quote_path
from gcemil.report.style import (
    EVIDENCE_COLOR,
    INK,
    MODE_NAMES,
    MUTED,
    add_axes_row,
    apply_style,
    draw_grid,
    new_figure,
)

CLASSIFICATION = ("accuracy", "macro_f1", "auc")
TESTS = (
    "difference",
    "difference_low",
    "difference_high",
    "bag_difference_low",
    "bag_difference_high",
    "p_paired_t_holm",
    "p_wilcoxon_holm",
    "cohens_dz",
)
PLAIN = "plain host, all patches"


def render_section(context: Context) -> Section:
    """Task metrics of every arm, and the tests of their differences."""
    parts = [
        paragraph(
            "Test metrics of every way to predict. All patches: the host as it is. Gated: every patch weighed by its gate. "
            "Evidence alone: the host sees the recovered patches and nothing else."
        ),
        _render_figure(context),
        context.render_rows(
            list_metric_rows(context),
            _list_metrics(context),
            labels={"arm": "Prediction"},
            grouped=False,
            naming={"arm": str},
            notes=[_describe_spread(context)],
        ),
    ]
    if context.against is None and context.run.is_wrapped:
        remedy = f"gcemil report {quote_path(context.run.folder)} --against HOST_RUN"
        context.list_missing("The plain host is not shown: no run of it was given.", remedy)
    elif context.against is not None and (finding := context.find("significance")) is not None:
        parts.append(_render_significance(context, finding))
    return Section("prediction", "Host against host + GCE", join_markup(parts))


def _list_metrics(context: Context) -> tuple[str, ...]:
    return ("c_index",) if context.run.task == "survival" else CLASSIFICATION


def _group_values_by_arm(context: Context, metric: str) -> dict[str, dict[int, float]]:
    """The value of every fold under every arm."""
    found: dict[str, dict[int, float]] = {}
    if context.against is not None:
        found[PLAIN] = context.against.values("full", metric)
    name = "host + GCE" if context.run.is_wrapped else "host"
    for mode in context.run.folds[0].modes:
        found[f"{name}, {MODE_NAMES[mode]}"] = context.run.values(mode, metric)
    return {arm: values for arm, values in found.items() if values}


def list_metric_rows(context: Context) -> list[Row]:
    """Mean and deviation over folds, one row per arm."""
    rows: dict[str, tuple[dict[str, float | None], dict[str, float]]] = {}
    for metric in _list_metrics(context):
        for arm, by_fold in _group_values_by_arm(context, metric).items():
            means, deviations = rows.setdefault(arm, ({}, {}))
            numbers = list(by_fold.values())
            means[metric] = fmean(numbers)
            if len(numbers) > 1:
                deviations[metric] = stdev(numbers)
    return [Row({"arm": arm}, means, deviations) for arm, (means, deviations) in rows.items()]


def _describe_spread(context: Context) -> str:
    count = len(context.run.folds)
    return (
        f"Mean ± standard deviation over {count} folds."
        if count > 1
        else "One fold: no spread over folds exists."
    )


def _render_figure(context: Context) -> Markup:
    panels = {
        METRICS[metric].label + " ↑": _group_values_by_arm(context, metric)
        for metric in _list_metrics(context)
    }
    return context.figures.save(
        "prediction_folds", draw_fold_pairs(panels),
        alt="Task metrics of every arm, fold by fold",
        caption="Dots are folds, lines join the same fold under different arms, bars are means.",
    )  # fmt: skip


def _render_significance(context: Context, finding: Finding) -> Markup:
    naming: dict[str, Naming] = {
        "mode": lambda key: MODE_NAMES.get(key, key),
        "metric": lambda key: METRICS[key].label,
    }
    return context.render_rows(
        finding.rows,
        TESTS,
        labels={"mode": "host + GCE", "metric": "Metric"},
        grouped=False,
        bold=False,
        naming=naming,
        notes=finding.notes,
        caption=f"Difference to the plain host ({finding.settings.get('against', 'host')}), all its patches",
    )


@apply_style
def draw_fold_pairs(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Per metric, the value of every fold under every arm; a line joins the folds that two arms share."""
    names = list(dict.fromkeys(name for arms in panels.values() for name in arms))
    figure = new_figure(0.85 + 0.42 * len(names))
    axes_row = add_axes_row(figure, len(panels), sharey=True)
    places = {name: len(names) - number for number, name in enumerate(names)}
    for axes, (title, arms) in zip(axes_row, panels.items(), strict=True):
        draw_grid(axes, grid="x")
        for fold in dict.fromkeys(fold for values in arms.values() for fold in values):
            points = [(arms[name][fold], places[name]) for name in arms if fold in arms[name]]
            axes.plot(
                *zip(*points, strict=True), color=MUTED, linewidth=0.8, alpha=0.6, marker="o", markersize=3.6
            )
        for name, by_fold in arms.items():
            if by_fold:
                mean, place = float(np.mean(list(by_fold.values()))), places[name]
                color = INK if name == names[0] and len(names) > 1 else EVIDENCE_COLOR
                axes.plot([mean, mean], [place - 0.26, place + 0.26], color=color, linewidth=2.6)
                axes.annotate(
                    f"{mean:.3f}",
                    (mean, place + 0.26),
                    xytext=(0, 1.5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7.5,
                )
        axes.set_ylim(0.5, len(names) + 0.75)
        axes.margins(x=0.12)
        axes.set_title(title)
    axes_row[0].set_yticks(list(places.values()), names)
    axes_row[0].tick_params(axis="y", length=0)
    return figure
