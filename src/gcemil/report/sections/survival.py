"""Survival: do the risk groups live differently, from all patches, from the evidence alone, and without it?

  S(t) = product over event times t_i <= t of (1 - d_i / n_i)          d_i events among n_i at risk (Kaplan-Meier)
  log-rank: sum of (events - expected events) of one group, squared, over its variance; chi-squared with 1 degree

A group is the half of a fold's test cases with the higher risk. Risks of different folds share no unit, so every fold is
split at its own median and the groups are then joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Real
from matplotlib.figure import Figure
from scipy.stats import chi2

from gcemil.report.html import Section, join_markup, paragraph
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import Context
from gcemil.report.style import (
    ATTENTION_COLOR,
    EVIDENCE_COLOR,
    INK,
    MODE_NAMES,
    add_axes_row,
    apply_style,
    draw_grid,
    new_figure,
)

Times = Real[np.ndarray, "n"]
Events = Bool[np.ndarray, "n"]


def render_section(context: Context) -> Section | None:
    """None for a classification run."""
    if context.run.task != "survival":
        return None
    panels = {
        MODE_NAMES[mode].capitalize(): found
        for mode in ("full", "discrete")
        if (found := _read_predicted_groups(context.run, mode)) is not None
    }
    without = _read_removed_groups(context.run)
    if without is not None:
        panels["Evidence removed" if context.run.is_wrapped else "Attention removed"] = without
    parts = [
        context.figures.save(
            "kaplan_meier",
            draw_risk_groups(panels),
            alt="Kaplan-Meier curves of the higher and the lower risk half",
            caption="Test cases of every fold split at the median risk of that fold, then joined. Ticks: censored cases. Evidence that "
            "holds separates the groups as all patches do; without it the separation should fade.",
        )
    ]
    if without is None:
        context.list_unmeasured("snr")
    parts.append(
        paragraph(
            "The test assumes that the groups were formed without the outcome; they were, since these cases were not trained on. "
            "Networks of different folds share training cases, so p is too small rather than too large.",
            kind="note",
        )
    )
    return Section("survival", "Survival of the risk groups", join_markup(parts))


def _read_predicted_groups(run: RunData, mode: str) -> RiskGroups | None:
    """From the tables of predictions."""
    found = [
        (float(row["target"]), float(row["event"]) == 1, float(row["risk"]), fold.number)
        for fold in run.folds
        for row in fold.predictions(mode) or []
    ]
    return form_risk_groups(found) if found else None


def _read_removed_groups(run: RunData) -> RiskGroups | None:
    """From the bags without their evidence, where S/N/R was measured."""
    found = [
        (float(record["time"]), record["event"] == 1, float(record["phi_removed"]), int(record["fold"]))
        for record in run.own_slides("snr")
        if record["phi_removed"] is not None
    ]
    return form_risk_groups(found) if found else None


def form_risk_groups(cases: list[tuple[float, bool, float, int]]) -> RiskGroups:
    """Cases as (time, event, risk, fold), split at the median risk of each fold."""
    times, events, risks, folds = (np.array(column) for column in zip(*cases, strict=True))
    return RiskGroups(times, events.astype(bool), split_at_median(risks, folds))


@dataclass(frozen=True, eq=False)
class RiskGroups:
    """Cases with their outcome, and which of them are in the half of higher risk."""

    times: Times
    events: Events
    is_high: Bool[np.ndarray, "n"]


@dataclass(frozen=True, eq=False)
class _SurvivalCurve:
    """Steps of S(t), from time 0."""

    times: Float[np.ndarray, "s"]
    survival: Float[np.ndarray, "s"]
    censored: Float[np.ndarray, "c"]


@apply_style
def draw_risk_groups(panels: Mapping[str, RiskGroups]) -> Figure:
    """One panel per way to predict, two curves each, with the p-value of the log-rank test."""
    figure = new_figure(2.9)
    axes_row = add_axes_row(figure, len(panels), sharey=True, sharex=True)
    for axes, (title, groups) in zip(axes_row, panels.items(), strict=True):
        draw_grid(axes)
        for is_high, color, name, style in (
            (True, EVIDENCE_COLOR, "higher risk", "-"),
            (False, ATTENTION_COLOR, "lower risk", (0, (5, 1.5))),
        ):
            chosen = groups.is_high == is_high
            if chosen.any():
                curve = estimate_survival(groups.times[chosen], groups.events[chosen])
                label = f"{name} ({int(groups.events[chosen].sum())}/{int(chosen.sum())} events)"
                axes.step(
                    curve.times, curve.survival, where="post", color=color, linestyle=style, label=label
                )
                heights = curve.survival[np.searchsorted(curve.times, curve.censored, side="right") - 1]
                axes.plot(curve.censored, heights, linestyle="", marker="|", markersize=5, color=color)
        value = log_rank_p(groups)
        words = "log-rank: not defined" if value is None else f"log-rank p = {value:.2g}"
        axes.annotate(
            words, (0.98, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=INK
        )
        axes.set_title(title)
        axes.set_xlabel("time")
        axes.set_ylim(0, 1.14)
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.set_xlim(left=0)
        axes.legend(loc="lower left")
    axes_row[0].set_ylabel("share without event")
    return figure


def estimate_survival(times: Times, events: Events) -> _SurvivalCurve:
    """The product-limit estimate; those censored at an event time are still at risk there."""
    moments = np.unique(times[events])
    at_risk = np.array([(times >= moment).sum() for moment in moments], dtype=float)
    died = np.array([(events & (times == moment)).sum() for moment in moments], dtype=float)
    survival = np.cumprod(1 - died / at_risk) if len(moments) else np.empty(0)
    last = float(times.max())
    return _SurvivalCurve(
        times=np.concatenate([[0.0], moments, [last]]),
        survival=np.concatenate([[1.0], survival, [survival[-1] if len(survival) else 1.0]]),
        censored=np.sort(times[~events]).astype(float),
    )


def log_rank_p(groups: RiskGroups) -> float | None:
    """The p-value; None where a group is empty or no event tells them apart."""
    high, times, events = groups.is_high, groups.times, groups.events
    if high.all() or not high.any():
        return None
    observed = expected = variance = 0.0
    for moment in np.unique(times[events]):
        at_risk, died = times >= moment, events & (times == moment)
        n, d, share = at_risk.sum(), died.sum(), (at_risk & high).sum() / at_risk.sum()
        observed += float((died & high).sum())
        expected += float(d * share)
        if n > 1:
            variance += float(d * share * (1 - share) * (n - d) / (n - 1))
    return float(chi2.sf((observed - expected) ** 2 / variance, 1)) if variance > 0 else None


def split_at_median(risks: Real[np.ndarray, "n"], folds: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Which cases have a risk above the median of their own fold."""
    high = np.zeros(len(risks), dtype=bool)
    for fold in np.unique(folds):
        own = folds == fold
        high[own] = risks[own] > np.median(risks[own])
    return high
