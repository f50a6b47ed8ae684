"""Survival: Kaplan-Meier curves of risk groups, time-dependent AUC and Brier score.

A group is the half of a fold's test cases with the higher risk. Risks of different folds share no
unit, so every fold is split at its own median and the groups are then joined.

Scores are corrected for censoring. G(t) is the Kaplan-Meier estimate of staying uncensored. With
weights w of a bootstrap draw:

  AUC(t)    share of pairs (i had the event by t, j lives beyond t, both of one fold) with
            risk_i > risk_j, weighted by w_i w_j / G(t_i)                    (Uno et al. 2007)
  Brier(t)  mean of  S_i(t)^2 / G(t_i)        for events by t,
                     (1 - S_i(t))^2 / G(t)    for those who live beyond t    (Graf et al. 1999)

S_i(t) comes from a Cox model with the risk as its only covariate, fitted on the validation cases of
the fold (lifelines), so the Brier score is that of the recalibrated model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Real
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.integrate import trapezoid

from gcemil.report import style
from gcemil.report.context import Context, Plate, quote_path
from gcemil.report.sample import Sample, find_band, format_value, tabulate_metrics
from gcemil.report.scores import PLAIN, FoldPredictions, Weights, share_of_pairs
from gcemil.tables import Table

REFERENCE = "reference"
"""Kaplan-Meier, which does not use the risk."""
N_TIMES = 40
RIDGE = 0.1
"""Penalty of the Cox model on risks of unit variance: few cases may separate perfectly."""
Times = Float[np.ndarray, "t"]
Scores = Float[np.ndarray, "d t"]


def describe_survival(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    sample = _join_patients(sample)
    bags, run = sample.bags, context.run
    yield Plate(
        "kaplan_meier",
        draw_risk_groups(_list_cases(context, sample)),
        "Kaplan-Meier curves with 95 % intervals. Test patients of every fold are split at the "
        "median risk of that fold and then joined; ticks are censored patients, numbers below are "
        "patients at risk. Evidence that holds separates the groups as all patches do; without it "
        f"the separation should fade. {sample.count.capitalize()}.",
    )
    at = choose_times(bags.targets, bags.labels == 1)
    if not len(at):
        remedy = f"gcemil split {quote_path(run.cohort)} --folds 5"
        context.missing["Fewer than two event times, so no score over time."] = remedy
        yield tabulate_metrics(context, sample)
        return
    areas = {mode: measure_auc_over_time(bags, mode, sample.weights, at) for mode in sample.modes}
    means = {
        mode: np.ma.masked_invalid(values).mean(axis=1).filled(np.nan)
        for mode, values in areas.items()
    }
    words = {mode: format_value("mean", values) for mode, values in means.items()}
    yield Plate(
        "auc_over_time",
        draw_over_time(areas, words, at, "Time-dependent AUC", "AUC(t)", chance=0.5),
        "Time-dependent AUC: patients with the event by t against those who live beyond t, pairs "
        "of one fold, weighted by the inverse probability of being uncensored. "
        f"{sample.note}",
    )
    scores = _score_survival(context, sample, at)
    integrated = {mode: integrate_over_time(values, at) for mode, values in scores.items()}
    words = {mode: format_value("IBS", values) for mode, values in integrated.items()}
    if scores:
        yield Plate(
            "brier",
            draw_over_time(scores, words, at, "Brier score", "Brier score(t)"),
            "Brier score, weighted by the inverse probability of being uncensored; lower is "
            "better. Survival probabilities come from a Cox model with the risk as its only "
            "covariate, fitted on the validation patients of the fold; Kaplan-Meier of the same "
            f"patients does not use the risk. IBS: mean over the span of time. {sample.note}",
        )
    extra = {"Mean AUC(t)": means, "IBS": integrated}
    extra = {name: values for name, values in extra.items() if values}
    yield tabulate_metrics(context, sample, extra)


def _list_cases(context: Context, sample: Sample) -> dict[str, pd.DataFrame]:
    """Fold, time, event and risk of every case, by what the risk was predicted from."""
    bags, run = sample.bags, context.run
    truth = {"fold": bags.folds, "time": bags.targets, "event": bags.labels == 1}
    panels = {
        style.ARMS[mode].capitalize(): pd.DataFrame({**truth, "risk": bags.by_mode[mode]})
        for mode in sample.modes
        if mode != PLAIN
    }
    removed = [one for one in run.own_slides("snr") if one["phi_removed"] is not None]
    if removed:
        cases = pd.DataFrame(removed).assign(event=lambda cases: cases.event == 1)
        cases = cases.rename(columns={"phi_removed": "risk"})[["fold", "time", "event", "risk"]]
        name = "Evidence removed" if run.is_wrapped else "Attention removed"
        panels[name] = cases.astype({"time": float, "risk": float})
    else:
        context.find("snr")
    return panels


def _join_patients(sample: Sample) -> Sample:
    """One line per patient and fold: the mean risk of the bags."""
    bags = sample.bags
    table = pd.DataFrame({"fold": bags.folds, "case": bags.cases, **bags.by_mode})
    kept = ~table.duplicated(["fold", "case"]).to_numpy()
    if kept.all():
        return sample
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
    """The Brier score of every mode and of Kaplan-Meier; empty if a fold cannot be calibrated."""
    bags, run = sample.bags, context.run
    events = bags.labels == 1
    scores = {}
    reference = np.empty((len(events), len(at)))
    for mode in sample.modes:
        survival = np.empty_like(reference)
        for position, fold in enumerate(run.folds):
            source = fold
            if mode == PLAIN and context.against is not None:
                source = context.against.fold(fold.number)
            lines = source.predictions("full" if mode == PLAIN else mode, "val")
            columns = ["case_id", "target", "event", "risk"]
            cases = pd.DataFrame(lines, columns=columns).set_index("case_id").astype(float)
            cases = cases.rename(columns={"target": "time"}).assign(event=cases.event == 1)
            own = bags.folds == position
            curves = predict_survival(cases.groupby("case_id").mean(), bags.by_mode[mode][own], at)
            if curves is None:
                what = (
                    f"No Brier score: the validation part of fold {fold.number} has no event, or "
                    "all its risks are equal."
                )
                context.missing[what] = f"gcemil split {quote_path(run.cohort)} --folds 3"
                return {}
            survival[own], reference[own] = curves
        scores[mode] = measure_brier(bags.targets, events, survival, sample.weights, at)
    scores[REFERENCE] = measure_brier(bags.targets, events, reference, sample.weights, at)
    return scores


def draw_over_time(
    lines: Mapping[str, np.ndarray],
    words: Mapping[str, str],
    at: np.ndarray,
    title: str,
    up: str,
    *,
    chance: float | None = None,
) -> Figure:
    """One line with its band per mode, over time; `words` stand in the legend."""
    figure = style.new_figure(3.0 + 0.19 * len(lines), width=style.COLUMN)
    (axes,) = style.add_panels(figure, 1)
    if chance is not None:
        axes.axhline(chance, **style.DASHED)
    look: dict[str, Any] = {"markersize": 3.4, "markevery": 8}
    for (mode, values), marker in zip(lines.items(), style.MARKERS, strict=False):
        if mode == REFERENCE:
            axes.plot(at, values[0], label=f"Kaplan-Meier: {words[mode]}", **style.DASHED)
            continue
        look |= {"color": style.ARM_COLORS[mode], "marker": marker}
        look["label"] = f"{style.ARMS[mode]}: {words[mode]}"
        style.draw_band(axes, at, values[0], find_band(values), **look)
    style.draw_grid(axes, grid="both").set(title=title, xlabel="time", ylabel=up)
    style.write_legend(axes)
    return figure


def split_at_median(cases: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cases with a risk above the median of their own fold, and the others."""
    is_high = cases.risk > cases.groupby("fold").risk.transform("median")
    return cases[is_high], cases[~is_high]


def draw_risk_groups(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """A panel per mode: curves of both groups, the log-rank test, and the cases at risk."""
    columns = min(3, len(panels))
    width = min(style.WIDTH, 4.6 * len(panels))
    figure = style.new_figure(3.4 * -(-len(panels) // columns), width=width)
    longest = 1.04 * max(cases.time.max() for cases in panels.values())
    grid = style.add_panels(figure, len(panels), columns)
    for axes, (title, cases) in zip(grid, panels.items(), strict=True):
        high, low = split_at_median(cases)
        style.draw_grid(axes)
        _draw_curve(axes, high, "higher risk", style.EVIDENCE_COLOR, "-")
        _draw_curve(axes, low, "lower risk", style.ATTENTION_COLOR, (0, (5, 1.5)))
        value = log_rank_p(high, low)
        words = "log-rank: not defined" if value is None else f"log-rank p = {value:.2g}"
        look: Any = {"ha": "right", "va": "top", "fontsize": 8, "color": style.INK}
        axes.annotate(words, (0.98, 0.97), xycoords="axes fraction", **look)
        axes.set(title=title, xlabel="time", xlim=(0, longest))
        axes.set(ylim=(0, 1.14), yticks=np.linspace(0, 1, 6))
        axes.legend(loc="lower left")
        groups = [(high, style.EVIDENCE_COLOR), (low, style.ATTENTION_COLOR)]
        _write_numbers_at_risk(axes, groups)
    grid[0].set_ylabel("share without event")
    return figure


def _write_numbers_at_risk(axes: Axes, groups: Sequence[tuple[pd.DataFrame, str]]) -> None:
    """How many cases of each group are left at the ticks of the time axis, below the axis."""
    axes.xaxis.set_major_locator(MaxNLocator(5, min_n_ticks=3))
    end = axes.get_xlim()[1]
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= end]
    look: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    look |= {"fontsize": 7.5, "annotation_clip": False}
    for row, (cases, color) in enumerate(groups):
        look["color"], height = color, -40 - 11 * row
        axes.annotate("at risk", (0, 0), xytext=(-10, height), ha="right", **look)
        for tick in ticks:
            left = str(int((cases.time >= tick).sum()))
            axes.annotate(left, (tick, 0), xytext=(0, height), ha="center", **look)


def _draw_curve(axes: Axes, cases: pd.DataFrame, name: str, color: str, linestyle: Any) -> None:
    """The estimate of one group, with a tick per censored case."""
    if cases.empty:
        return
    # lifelines takes seconds to import, and a classification run needs none of it.
    from lifelines import KaplanMeierFitter

    fitted = KaplanMeierFitter().fit(cases.time, cases.event)
    curve = fitted.survival_function_["KM_estimate"]
    label = f"{name} ({cases.event.sum()}/{len(cases)} events)"
    look: Any = {"color": color, "linestyle": linestyle, "label": label}
    axes.step(curve.index, curve.to_numpy(), where="post", **look)
    low, high = fitted.confidence_interval_.to_numpy().T
    axes.fill_between(curve.index, low, high, step="post", color=color, alpha=0.14, linewidth=0)
    censored = np.sort(cases.time[~cases.event])
    if len(censored):
        heights = fitted.survival_function_at_times(censored).to_numpy()
        style.draw_dots(axes, censored, heights, color, marker="|")


def log_rank_p(high: pd.DataFrame, low: pd.DataFrame) -> float | None:
    """The p-value; None where a group is empty or there is no event."""
    if high.empty or low.empty or not (high.event.any() or low.event.any()):
        return None
    from lifelines.statistics import logrank_test

    return float(logrank_test(high.time, low.time, high.event, low.event).p_value)


# Scores over time


def choose_times(times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]) -> Times:
    """Evenly between the 10th and 90th percentile of the event times; empty without two of them."""
    if len(np.unique(times[events])) < 2:
        return np.empty(0)
    # Beyond the last time no patient is left to compare with.
    low, high = np.quantile(times[events], [0.1, 0.9])
    return np.linspace(low, min(high, np.nextafter(times.max(), 0)), N_TIMES)


def estimate_uncensored(
    times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"], at: Real[np.ndarray, "m"]
) -> Float[np.ndarray, "m"]:
    """G at these times; of equal times the event comes before the censoring."""
    steps = np.unique(times)
    at_risk = (times[:, None] >= steps).sum(axis=0) - (
        (times[:, None] == steps) & events[:, None]
    ).sum(axis=0)
    censored = ((times[:, None] == steps) & ~events[:, None]).sum(axis=0)
    left = np.cumprod(1 - np.divide(censored, at_risk, out=np.zeros(len(steps)), where=at_risk > 0))
    return np.append(1.0, left)[np.searchsorted(steps, at, side="right")]


def measure_auc_over_time(bags: FoldPredictions, mode: str, weights: Weights, at: Times) -> Scores:
    """The AUC at every time, NaN where there is no pair."""
    events, risks = bags.labels == 1, bags.by_mode[mode]
    uncensored = estimate_uncensored(bags.targets, events, bags.targets)
    folds = np.zeros(len(events)) if bags.folds is None else bags.folds
    areas = []
    for time in at:
        had, lives = events & (bags.targets <= time), bags.targets > time
        pairs = (folds[had][:, None] == folds[lives]) / uncensored[had][:, None]
        areas.append(share_of_pairs(weights, had, lives, risks, pairs))
    return np.stack(areas, axis=1)


def measure_brier(
    times: Real[np.ndarray, "n"],
    events: Bool[np.ndarray, "n"],
    survival: Float[np.ndarray, "n t"],
    weights: Weights,
    at: Times,
) -> Scores:
    """The Brier score at every time; `survival` holds S_i(t)."""
    own = estimate_uncensored(times, events, times)[:, None]
    had, lives = (times[:, None] <= at) & events[:, None], times[:, None] > at
    later = np.broadcast_to(estimate_uncensored(times, events, at), survival.shape)
    losses = np.zeros(survival.shape)
    np.divide(survival**2, own, out=losses, where=had)
    np.divide((1 - survival) ** 2, later, out=losses, where=lives)
    return weights @ losses / weights.sum(axis=1, keepdims=True)


def integrate_over_time(scores: Scores, at: Times) -> Float[np.ndarray, "d"]:
    """The mean over the span of time, by the trapezoid rule."""
    return np.asarray(trapezoid(scores, at, axis=1) / (at[-1] - at[0]))


def predict_survival(
    fitted_on: pd.DataFrame, risks: Float[np.ndarray, "n"], at: Times
) -> tuple[Float[np.ndarray, "n t"], Times] | None:
    """S_i(t) of these risks, and S(t) of Kaplan-Meier.

    `fitted_on` has the columns time, event and risk; None if it has no event or a single risk.
    """
    # lifelines takes seconds to import, and a classification run needs none of it.
    from lifelines import CoxPHFitter, KaplanMeierFitter

    middle, spread = fitted_on.risk.mean(), fitted_on.risk.std()
    if not fitted_on.event.any() or not spread > 0:
        return None
    scaled = fitted_on.assign(risk=(fitted_on.risk - middle) / spread)[["time", "event", "risk"]]
    with warnings.catch_warnings():
        # It warns of few or separable cases, which the penalty is there for.
        warnings.simplefilter("ignore")
        model = CoxPHFitter(penalizer=RIDGE).fit(scaled, duration_col="time", event_col="event")
        own = pd.DataFrame({"risk": (risks - middle) / spread})
        survival = model.predict_survival_function(own, times=at)
        reference = KaplanMeierFitter().fit(fitted_on.time, fitted_on.event)
    return survival.to_numpy().T, reference.survival_function_at_times(at).to_numpy()
