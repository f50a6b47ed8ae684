"""Kaplan-Meier curves of the risk groups: from all patches, from the evidence alone, and without it.

A group is the half of a fold's test cases with the higher risk. Risks of different folds share no unit, so every fold is
split at its own median and the groups are then joined. Curves and log-rank test are those of lifelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gcemil.report import style
from gcemil.report.html import Picture
from gcemil.report.sections.context import Context, save_figure

CASE = ["fold", "time", "event", "risk"]
"""Columns of a table of cases."""


def draw_survival(context: Context) -> Picture:
    """The curves of every way to predict, and of the bags without their evidence."""
    run = context.run
    panels = {
        style.MODE_NAMES[mode].capitalize(): [
            (fold.number, float(row["target"]), float(row["event"]) == 1, float(row["risk"]))
            for fold in run.folds
            for row in fold.predictions(mode) or []
        ]
        for mode in ("full", "head", "gce", "discrete")
    }
    removed = [
        (record["fold"], float(record["time"]), record["event"] == 1, float(record["phi_removed"]))
        for record in run.own_slides("snr")
        if record["phi_removed"] is not None
    ]
    if not removed:
        context.list_unmeasured("snr")
    panels["Evidence removed" if run.is_wrapped else "Attention removed"] = removed
    return save_figure(
        context.figures,
        "kaplan_meier",
        draw_risk_groups(
            {title: pd.DataFrame(cases, columns=CASE) for title, cases in panels.items() if cases}
        ),
        alt="Kaplan-Meier curves of the higher and the lower risk half",
        caption="Test cases of every fold split at the median risk of that fold, then joined. Ticks: censored cases. Evidence that "
        "holds separates the groups as all patches do; without it the separation should fade.",
    )


def split_at_median(cases: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cases with a risk above the median of their own fold, and the others."""
    is_high = cases.risk > cases.groupby("fold").risk.transform("median")
    return cases[is_high], cases[~is_high]


def draw_risk_groups(
    panels: Mapping[str, pd.DataFrame], *, shows_numbers: bool = False, width: float = style.WIDTH
) -> Figure:
    """One panel per way to predict, two curves each, with the p-value of the log-rank test.

    With `shows_numbers` every curve has its 95 % interval, and the cases at risk stand below the time axis.
    """
    columns = min(3, len(panels))
    height = 3.4 if shows_numbers else 2.9
    figure = style.new_figure(height * -(-len(panels) // columns), width=width)
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
            _draw_curve(axes, group, name, has_band=shows_numbers, **look)
        value = log_rank_p(high, low)
        words = "log-rank: not defined" if value is None else f"log-rank p = {value:.2g}"
        axes.annotate(
            words, (0.98, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=style.INK
        )
        axes.set(title=title, xlabel="time", ylim=(0, 1.14), yticks=np.linspace(0, 1, 6), xlim=(0, longest))
        axes.legend(loc="lower left")
        if shows_numbers:
            _write_numbers_at_risk(
                axes, {name: (group, look["color"]) for name, (group, look) in groups.items()}
            )
    axes_row[0].set_ylabel("share without event")
    return figure


def _write_numbers_at_risk(axes: Axes, groups: Mapping[str, tuple[pd.DataFrame, str]]) -> None:
    """How many cases of each group are left at the ticks of the time axis, below the axis."""
    axes.xaxis.set_major_locator(MaxNLocator(5, min_n_ticks=3))
    end = axes.get_xlim()[1]
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= end]
    for row, (cases, color) in enumerate(groups.values()):
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
    has_band: bool = False,
) -> None:
    """The estimate of one group, with a tick per censored case."""
    if cases.empty:
        return
    # lifelines takes seconds to import, and a classification run needs none of it.
    from lifelines import KaplanMeierFitter

    fitted = KaplanMeierFitter().fit(cases.time, cases.event)
    curve = fitted.survival_function_["KM_estimate"]
    label = f"{name} ({cases.event.sum()}/{len(cases)} events)"
    axes.step(curve.index, curve.to_numpy(), where="post", color=color, linestyle=linestyle, label=label)
    if has_band:
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
