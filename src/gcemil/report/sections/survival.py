"""Kaplan-Meier curves of the risk groups: from all patches, from the evidence alone, and without it.

A group is the half of a fold's test cases with the higher risk. Risks of different folds share no unit, so every fold is
split at its own median and the groups are then joined. Curves and log-rank test are those of lifelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Real
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.report.html import Picture
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import Context
from gcemil.report.style import (
    ATTENTION_COLOR,
    EVIDENCE_COLOR,
    INK,
    MODE_NAMES,
    add_axes_grid,
    apply_style,
    draw_grid,
    new_figure,
)


@dataclass(frozen=True, eq=False)
class RiskGroups:
    """Cases with their outcome, and which of them are in the half of higher risk."""

    times: Real[np.ndarray, "n"]
    events: Bool[np.ndarray, "n"]
    is_high: Bool[np.ndarray, "n"]


def draw_survival(context: Context) -> Picture:
    """The curves of every way to predict, and of the bags without their evidence."""
    found = {
        MODE_NAMES[mode].capitalize(): _read_predicted(context.run, mode)
        for mode in ("full", "head", "gce", "discrete")
    }
    without = _read_removed(context.run)
    found["Evidence removed" if context.run.is_wrapped else "Attention removed"] = without
    if not without:
        context.list_unmeasured("snr")
    return context.figures.save(
        "kaplan_meier",
        draw_risk_groups({title: form_risk_groups(cases) for title, cases in found.items() if cases}),
        alt="Kaplan-Meier curves of the higher and the lower risk half",
        caption="Test cases of every fold split at the median risk of that fold, then joined. Ticks: censored cases. Evidence that "
        "holds separates the groups as all patches do; without it the separation should fade.",
    )


Case = tuple[float, bool, float, int]
"""Time, event, risk, fold."""


def _read_predicted(run: RunData, mode: str) -> list[Case]:
    """Cases of the tables of predictions."""
    return [
        (float(row["target"]), float(row["event"]) == 1, float(row["risk"]), fold.number)
        for fold in run.folds
        for row in fold.predictions(mode) or []
    ]


def _read_removed(run: RunData) -> list[Case]:
    """Cases without their evidence, where S/N/R was measured."""
    return [
        (float(record["time"]), record["event"] == 1, float(record["phi_removed"]), int(record["fold"]))
        for record in run.own_slides("snr")
        if record["phi_removed"] is not None
    ]


def form_risk_groups(cases: list[Case]) -> RiskGroups:
    """Split the cases at the median risk of each fold."""
    times, events, risks, folds = (np.array(column) for column in zip(*cases, strict=True))
    return RiskGroups(times, events.astype(bool), split_at_median(risks, folds))


def split_at_median(risks: Real[np.ndarray, "n"], folds: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Which cases have a risk above the median of their own fold."""
    high = np.zeros(len(risks), dtype=bool)
    for fold in np.unique(folds):
        own = folds == fold
        high[own] = risks[own] > np.median(risks[own])
    return high


@apply_style
def draw_risk_groups(panels: Mapping[str, RiskGroups]) -> Figure:
    """One panel per way to predict, two curves each, with the p-value of the log-rank test."""
    columns = min(3, len(panels))
    figure = new_figure(2.9 * -(-len(panels) // columns))
    longest = 1.04 * max(float(groups.times.max()) for groups in panels.values())
    axes_row = add_axes_grid(figure, len(panels), columns)
    for axes, (title, groups) in zip(axes_row, panels.items(), strict=True):
        draw_grid(axes)
        _draw_curve(axes, groups, groups.is_high, "higher risk", color=EVIDENCE_COLOR, style="-")
        _draw_curve(axes, groups, ~groups.is_high, "lower risk", color=ATTENTION_COLOR, style=(0, (5, 1.5)))
        value = log_rank_p(groups)
        words = "log-rank: not defined" if value is None else f"log-rank p = {value:.2g}"
        axes.annotate(
            words, (0.98, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=INK
        )
        axes.set_title(title)
        axes.set_xlabel("time")
        axes.set_ylim(0, 1.14)
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.set_xlim(0, longest)
        axes.legend(loc="lower left")
    axes_row[0].set_ylabel("share without event")
    return figure


def _draw_curve(
    axes: Axes,
    groups: RiskGroups,
    chosen: Bool[np.ndarray, "n"],
    name: str,
    *,
    color: str,
    style: str | tuple[int, tuple[float, ...]],
) -> None:
    """The estimate of one group, with a tick per censored case."""
    if not chosen.any():
        return
    # lifelines takes seconds to import, and a classification run needs none of it.
    from lifelines import KaplanMeierFitter

    times, events = groups.times[chosen], groups.events[chosen]
    fitted = KaplanMeierFitter().fit(times, events)
    curve = fitted.survival_function_["KM_estimate"]
    label = f"{name} ({int(events.sum())}/{int(chosen.sum())} events)"
    axes.step(curve.index, curve.to_numpy(), where="post", color=color, linestyle=style, label=label)
    censored = np.sort(times[~events])
    if len(censored):
        heights = fitted.survival_function_at_times(censored).to_numpy()
        axes.plot(censored, heights, linestyle="", marker="|", markersize=5, color=color)


def log_rank_p(groups: RiskGroups) -> float | None:
    """The p-value; None where a group is empty or there is no event."""
    high, times, events = groups.is_high, groups.times, groups.events
    if high.all() or not high.any() or not events.any():
        return None
    from lifelines.statistics import logrank_test

    return float(logrank_test(times[high], times[~high], events[high], events[~high]).p_value)
