"""Survival: Kaplan-Meier curves of risk groups, time-dependent AUC and Brier score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gcemil.report import style
from gcemil.report.bootstrap import (
    PLAIN,
)
from gcemil.report.publication.sample import (
    COLORS,
    COLUMN,
    Plate,
    Sample,
    draw_band,
    format_value,
    tabulate_metrics,
    write_legend,
)
from gcemil.report.sections.context import Context, quote_path
from gcemil.report.sections.performance import ARMS
from gcemil.report.sections.survival import CASE, draw_risk_groups
from gcemil.report.survival_scores import (
    choose_times,
    integrate_over_time,
    measure_auc_over_time,
    measure_brier,
    predict_survival,
)
from gcemil.tables import Table

REFERENCE = "reference"
"""Kaplan-Meier, which knows no risk."""


def describe_survival(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    sample = _join_patients(sample)
    bags, run = sample.bags, context.run
    shown = [mode for mode in sample.modes if mode in ("full", sample.main)]
    panels = {
        ARMS[mode].capitalize(): pd.DataFrame(
            zip(
                bags.folds if bags.folds is not None else (),
                bags.times,
                bags.labels == 1,
                bags.by_mode[mode],
                strict=True,
            ),
            columns=CASE,
        )
        for mode in shown
    }
    yield Plate(
        "kaplan_meier",
        draw_risk_groups(panels, shows_numbers=True, width=min(style.WIDTH, 4.6 * len(panels))),
        "Kaplan-Meier curves with 95 % intervals. Test patients of every fold are split at the median risk of that fold and then "
        f"joined; ticks are censored patients, numbers below are patients at risk. {sample.count.capitalize()}.",
    )
    at = choose_times(bags.times, bags.labels == 1)
    if not len(at):
        context.list_missing(
            "Fewer than two event times, so no score over time.",
            f"gcemil split {quote_path(run.cohort)} --folds 5",
        )
        yield tabulate_metrics(context, sample)
        return
    areas = {mode: measure_auc_over_time(bags, mode, sample.weights, at) for mode in sample.modes}
    means = {mode: np.ma.masked_invalid(values).mean(axis=1).filled(np.nan) for mode, values in areas.items()}
    yield Plate(
        "auc_over_time",
        draw_over_time(
            {mode: (values, format_value("mean", means[mode])) for mode, values in areas.items()},
            at,
            "Time-dependent AUC",
            "AUC(t)",
            chance=0.5,
        ),
        "Time-dependent AUC: patients with the event by t against those who live beyond t, pairs of one fold, weighted by the inverse "
        f"probability of being uncensored. {sample.note}",
    )
    scores = _score_survival(context, sample, at)
    integrated = {mode: integrate_over_time(values, at) for mode, values in scores.items()}
    if scores:
        yield Plate(
            "brier",
            draw_over_time(
                {mode: (values, format_value("IBS", integrated[mode])) for mode, values in scores.items()},
                at,
                "Brier score",
                "Brier score(t)",
            ),
            "Brier score, weighted by the inverse probability of being uncensored; lower is better. Survival probabilities come from a Cox "
            "model with the risk as its only covariate, fitted on the validation patients of the fold; Kaplan-Meier of the same patients "
            f"knows no risk. IBS: mean over the span of time. {sample.note}",
        )
    extra = {"Mean AUC(t)": means, "IBS": integrated}
    yield tabulate_metrics(context, sample, {name: values for name, values in extra.items() if values})


def _join_patients(sample: Sample) -> Sample:
    """One line per patient and fold: the mean risk of the bags."""
    bags = sample.bags
    table = pd.DataFrame(
        {"fold": bags.folds, "case": bags.cases, "time": bags.times, "event": bags.labels, **bags.by_mode}
    )
    if not table.duplicated(["fold", "case"]).any():
        return sample
    kept = ~table.duplicated(["fold", "case"]).to_numpy()
    means = table.groupby(["fold", "case"], sort=False)[list(bags.by_mode)].mean()
    joined = replace(
        bags,
        cases=bags.cases[kept],
        labels=bags.labels[kept],
        times=bags.times[kept],
        folds=None if bags.folds is None else bags.folds[kept],
        by_mode={mode: means[mode].to_numpy() for mode in bags.by_mode},
    )
    return replace(sample, bags=joined, weights=sample.weights[:, kept])


def _score_survival(context: Context, sample: Sample, at: np.ndarray) -> dict[str, np.ndarray]:
    """The Brier score of every mode and of Kaplan-Meier over time; empty where a fold cannot be calibrated."""
    bags, run = sample.bags, context.run
    events = bags.labels == 1
    scores = {}
    reference = np.empty((len(events), len(at)))
    for mode in sample.modes:
        survival = np.empty((len(events), len(at)))
        for position, fold in enumerate(run.folds):
            source = fold if mode != PLAIN or context.against is None else context.against.fold(fold.number)
            lines = source.predictions("full" if mode == PLAIN else mode, "val") or []
            fitted_on = (
                pd.DataFrame(
                    [
                        (row["case_id"], float(row["target"]), float(row["event"]) == 1, float(row["risk"]))
                        for row in lines
                    ],
                    columns=["case", "time", "event", "risk"],
                )
                .groupby("case")
                .mean()
            )
            own = bags.folds == position
            found = predict_survival(fitted_on, bags.by_mode[mode][own], at)
            if found is None:
                context.list_missing(
                    f"No Brier score: the validation part of fold {fold.number} has no event, or all its risks are equal.",
                    f"gcemil split {quote_path(run.cohort)} --folds 3",
                )
                return {}
            survival[own], reference[own] = found
        scores[mode] = measure_brier(bags.times, events, survival, sample.weights, at)
    scores[REFERENCE] = measure_brier(bags.times, events, reference, sample.weights, at)
    return scores


def draw_over_time(
    lines: dict[str, tuple[np.ndarray, str]],
    at: np.ndarray,
    title: str,
    up: str,
    *,
    chance: float | None = None,
) -> Figure:
    """One line with its band per mode, over time; the text of each stands in the legend."""
    figure = style.new_figure(3.0 + 0.19 * len(lines), width=COLUMN)
    (axes,) = style.add_axes_row(figure, 1)
    if chance is not None:
        axes.axhline(chance, **style.DASHED)
    for (mode, (values, words)), marker in zip(lines.items(), style.MARKERS, strict=False):
        if mode == REFERENCE:
            axes.plot(at, values[0], label=f"Kaplan-Meier: {words}", **style.DASHED)
            continue
        look = {"color": COLORS[mode], "marker": marker, "markersize": 3.4, "markevery": 8}
        draw_band(axes, values, at, label=f"{ARMS[mode]}: {words}", **look)
    style.draw_grid(axes, grid="both").set(title=title, xlabel="time", ylabel=up)
    write_legend(axes)
    return figure
