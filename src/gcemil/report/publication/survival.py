"""Survival: Kaplan-Meier curves of risk groups, time-dependent AUC and Brier score.

A group is the half of a fold's test cases with the higher risk. Risks of different folds share no unit, so every fold is
split at its own median and the groups are then joined. Curves and log-rank test are those of lifelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gcemil.report import style
from gcemil.report.bootstrap import PLAIN
from gcemil.report.sample import (
    Plate,
    Sample,
    draw_band,
    format_value,
    tabulate_metrics,
    write_legend,
)
from gcemil.report.sections.context import Context, quote_path
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
    panels = {
        style.ARMS[mode].capitalize(): pd.DataFrame(
            {
                "fold": bags.folds,
                "time": bags.targets,
                "event": bags.labels == 1,
                "risk": bags.by_mode[mode],
            }
        )
        for mode in sample.modes
        if mode != PLAIN
    }
    removed = [one for one in run.own_slides("snr") if one["phi_removed"] is not None]
    if removed:
        cases = pd.DataFrame(removed)
        panels["Evidence removed" if run.is_wrapped else "Attention removed"] = pd.DataFrame(
            {
                "fold": cases.fold,
                "time": cases.time,
                "event": cases.event == 1,
                "risk": cases.phi_removed,
            }
        ).astype({"time": float, "risk": float})
    else:
        context.list_unmeasured("snr")
    yield Plate(
        "kaplan_meier",
        draw_risk_groups(panels),
        "Kaplan-Meier curves with 95 % intervals. Test patients of every fold are split at the median risk of that fold and then "
        "joined; ticks are censored patients, numbers below are patients at risk. Evidence that holds separates the groups as all "
        f"patches do; without it the separation should fade. {sample.count.capitalize()}.",
    )
    at = choose_times(bags.targets, bags.labels == 1)
    if not len(at):
        context.list_missing(
            "Fewer than two event times, so no score over time.",
            f"gcemil split {quote_path(run.cohort)} --folds 5",
        )
        yield tabulate_metrics(context, sample)
        return
    areas = {mode: measure_auc_over_time(bags, mode, sample.weights, at) for mode in sample.modes}
    means = {
        mode: np.ma.masked_invalid(values).mean(axis=1).filled(np.nan)
        for mode, values in areas.items()
    }
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
                {
                    mode: (values, format_value("IBS", integrated[mode]))
                    for mode, values in scores.items()
                },
                at,
                "Brier score",
                "Brier score(t)",
            ),
            "Brier score, weighted by the inverse probability of being uncensored; lower is better. Survival probabilities come from a Cox "
            "model with the risk as its only covariate, fitted on the validation patients of the fold; Kaplan-Meier of the same patients "
            f"knows no risk. IBS: mean over the span of time. {sample.note}",
        )
    extra = {"Mean AUC(t)": means, "IBS": integrated}
    yield tabulate_metrics(
        context, sample, {name: values for name, values in extra.items() if values}
    )


def _join_patients(sample: Sample) -> Sample:
    """One line per patient and fold: the mean risk of the bags."""
    bags = sample.bags
    table = pd.DataFrame(
        {
            "fold": bags.folds,
            "case": bags.cases,
            "time": bags.targets,
            "event": bags.labels,
            **bags.by_mode,
        }
    )
    if not table.duplicated(["fold", "case"]).any():
        return sample
    kept = ~table.duplicated(["fold", "case"]).to_numpy()
    means = table.groupby(["fold", "case"], sort=False)[list(bags.by_mode)].mean()
    joined = replace(
        bags,
        cases=bags.cases[kept],
        labels=bags.labels[kept],
        targets=bags.targets[kept],
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
            source = (
                fold
                if mode != PLAIN or context.against is None
                else context.against.fold(fold.number)
            )
            lines = source.predictions("full" if mode == PLAIN else mode, "val") or []
            fitted_on = (
                pd.DataFrame(
                    [
                        (
                            row["case_id"],
                            float(row["target"]),
                            float(row["event"]) == 1,
                            float(row["risk"]),
                        )
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
        scores[mode] = measure_brier(bags.targets, events, survival, sample.weights, at)
    scores[REFERENCE] = measure_brier(bags.targets, events, reference, sample.weights, at)
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
    figure = style.new_figure(3.0 + 0.19 * len(lines), width=style.COLUMN)
    (axes,) = style.add_axes_row(figure, 1)
    if chance is not None:
        axes.axhline(chance, **style.DASHED)
    for (mode, (values, words)), marker in zip(lines.items(), style.MARKERS, strict=False):
        if mode == REFERENCE:
            axes.plot(at, values[0], label=f"Kaplan-Meier: {words}", **style.DASHED)
            continue
        look = {
            "color": style.ARM_COLORS[mode],
            "marker": marker,
            "markersize": 3.4,
            "markevery": 8,
        }
        draw_band(axes, values, at, label=f"{style.ARMS[mode]}: {words}", **look)
    style.draw_grid(axes, grid="both").set(title=title, xlabel="time", ylabel=up)
    write_legend(axes)
    return figure


def split_at_median(cases: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cases with a risk above the median of their own fold, and the others."""
    is_high = cases.risk > cases.groupby("fold").risk.transform("median")
    return cases[is_high], cases[~is_high]


def draw_risk_groups(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """One panel per way to predict: two curves with 95 % intervals, the log-rank test, and below the time axis the cases at risk."""
    columns = min(3, len(panels))
    figure = style.new_figure(
        3.4 * -(-len(panels) // columns), width=min(style.WIDTH, 4.6 * len(panels))
    )
    longest = 1.04 * max(cases.time.max() for cases in panels.values())
    axes_row = style.add_axes_grid(figure, len(panels), columns)
    for axes, (title, cases) in zip(axes_row, panels.items(), strict=True):
        high, low = split_at_median(cases)
        style.draw_grid(axes)
        groups: dict[str, tuple[pd.DataFrame, Any]] = {
            "higher risk": (high, {"color": style.EVIDENCE_COLOR, "linestyle": "-"}),
            "lower risk": (low, {"color": style.ATTENTION_COLOR, "linestyle": (0, (5, 1.5))}),
        }
        for name, (group, look) in groups.items():
            _draw_curve(axes, group, name, **look)
        value = log_rank_p(high, low)
        words = "log-rank: not defined" if value is None else f"log-rank p = {value:.2g}"
        axes.annotate(
            words,
            (0.98, 0.97),
            xycoords="axes fraction",
            ha="right",
            va="top",
            fontsize=8,
            color=style.INK,
        )
        axes.set(
            title=title,
            xlabel="time",
            ylim=(0, 1.14),
            yticks=np.linspace(0, 1, 6),
            xlim=(0, longest),
        )
        axes.legend(loc="lower left")
        _write_numbers_at_risk(axes, [(group, look["color"]) for group, look in groups.values()])
    axes_row[0].set_ylabel("share without event")
    return figure


def _write_numbers_at_risk(axes: Axes, groups: Sequence[tuple[pd.DataFrame, str]]) -> None:
    """How many cases of each group are left at the ticks of the time axis, below the axis."""
    axes.xaxis.set_major_locator(MaxNLocator(5, min_n_ticks=3))
    end = axes.get_xlim()[1]
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= end]
    for row, (cases, color) in enumerate(groups):
        look: Any = {
            "xycoords": ("data", "axes fraction"),
            "textcoords": "offset points",
            "fontsize": 7.5,
            "color": color,
            "annotation_clip": False,
        }
        height = -40 - 11 * row
        axes.annotate("at risk", (0, 0), xytext=(-10, height), ha="right", **look)
        for tick in ticks:
            left = int((cases.time >= tick).sum())
            axes.annotate(str(left), (tick, 0), xytext=(0, height), ha="center", **look)


def _draw_curve(
    axes: Axes,
    cases: pd.DataFrame,
    name: str,
    *,
    color: str,
    linestyle: str | tuple[int, tuple[float, ...]],
) -> None:
    """The estimate of one group, with a tick per censored case."""
    if cases.empty:
        return
    # lifelines takes seconds to import, and a classification run needs none of it.
    from lifelines import KaplanMeierFitter

    fitted = KaplanMeierFitter().fit(cases.time, cases.event)
    curve = fitted.survival_function_["KM_estimate"]
    label = f"{name} ({cases.event.sum()}/{len(cases)} events)"
    axes.step(
        curve.index, curve.to_numpy(), where="post", color=color, linestyle=linestyle, label=label
    )
    low, high = fitted.confidence_interval_.to_numpy().T
    axes.fill_between(curve.index, low, high, step="post", color=color, alpha=0.14, linewidth=0)
    censored = np.sort(cases.time[~cases.event])
    if len(censored):
        heights = fitted.survival_function_at_times(censored).to_numpy()
        axes.plot(censored, heights, linestyle="", marker="|", markersize=5, color=color)


def log_rank_p(high: pd.DataFrame, low: pd.DataFrame) -> float | None:
    """The p-value; None where a group is empty or there is no event."""
    if high.empty or low.empty or not (high.event.any() or low.event.any()):
        return None
    from lifelines.statistics import logrank_test

    return float(logrank_test(high.time, low.time, high.event, low.event).p_value)
