"""Subset rules side by side: slide by slide, at one size, and over sizes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.metrics import METRICS
from gcemil.report.figures.style import (
    WIDTH,
    new_figure,
    quiet,
    row_of_axes,
    shortened,
    spread_positions,
    styled,
)
from gcemil.report.palette import INK, MARKERS, MUTED, readable_name
from gcemil.rules import CONTROLS, FIRST_RULES, MAIN_RULES, find_rule, order_rules


@dataclass(frozen=True)
class SlidePanel:
    """What one panel shows of every slide."""

    title: str
    label: str
    by_rule: Mapping[str, Sequence[float]]
    limit: float | None = None
    is_upper: bool = True
    """Whether the limit must not be passed, or must be reached."""


@dataclass(frozen=True)
class RuleBar:
    """One rule at one size, under one network."""

    rule: str
    network: str
    values: Mapping[str, float | None]
    deviations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RuleCurve:
    """One rule over sizes: M from the kept patches, and M lost without them."""

    rule: str
    shares: Float[np.ndarray, "s"]
    kept: Float[np.ndarray, "s"]
    lost: Float[np.ndarray, "s"]


@styled
def slides_by_rule(panels: Sequence[SlidePanel]) -> Figure:
    """A dot per slide, a bar at the median, and the line a slide has to keep to."""
    rules = order_rules([rule for panel in panels for rule in panel.by_rule])
    figure = new_figure(WIDTH, 0.95 + 0.42 * len(rules))
    places = {rule: len(rules) - number for number, rule in enumerate(rules)}
    axes_row = row_of_axes(figure, len(panels), sharey=True)
    for axes, panel in zip(axes_row, panels, strict=True):
        quiet(axes, grid="x")
        for rule, values in panel.by_rule.items():
            strip(axes, places[rule], values, find_rule(rule).color)
        if panel.limit is not None:
            axes.axvline(panel.limit, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
            side = "≤" if panel.is_upper else "≥"
            axes.annotate(
                f"{side} {panel.limit:g}", (panel.limit, 1.0), xycoords=("data", "axes fraction"),
                xytext=(3, -1), textcoords="offset points", fontsize=7.5, va="top",
            )  # fmt: skip
        axes.set_title(panel.title)
        axes.set_xlabel(panel.label)
        axes.set_ylim(0.4, len(rules) + 0.75)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes_row[0].set_yticks(list(places.values()), [readable_name(rule) for rule in places])
    axes_row[0].tick_params(axis="y", length=0)
    return figure


def strip(axes: Axes, place: int, values: Sequence[float], color: str) -> None:
    if not len(values):
        return
    shift = spread_positions(values)
    axes.plot(
        values,
        place + shift,
        linestyle="",
        marker="o",
        markersize=3.6,
        color=color,
        alpha=0.6,
        markeredgewidth=0,
        rasterized=len(values) > 500,
    )
    middle = float(np.median(values))
    axes.plot([middle, middle], [place - 0.3, place + 0.3], color=INK, linewidth=1.6, solid_capstyle="butt")


@styled
def same_budget_bars(bars: Sequence[RuleBar], metrics: Sequence[str], *, title: str) -> Figure:
    """Every rule with the same number of patches; bars under the wrapped host, diamonds under the plain one."""
    rules = order_rules([bar.rule for bar in bars])
    figure = new_figure(WIDTH, 0.95 + 0.23 * len(rules))
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    places = {rule: len(rules) - number for number, rule in enumerate(rules)}
    axes_row = row_of_axes(figure, len(metrics), sharey=True)
    for axes, name in zip(axes_row, metrics, strict=True):
        quiet(axes, grid="x")
        for bar in bars:
            if (value := bar.values.get(name)) is not None:
                draw_bar(axes, places[bar.rule], bar, value, bar.deviations.get(name))
        metric = METRICS[name]
        axes.set_title(textwrap.fill(f"{metric.label}\u00a0{metric.arrow}", 20), fontsize=9)
        axes.axvline(0, color=MUTED, linewidth=0.7)
    axes_row[0].set_yticks(list(places.values()), [shortened(readable_name(rule), 30) for rule in places])
    axes_row[0].tick_params(axis="y", length=0)
    return figure


def draw_bar(axes: Axes, place: int, bar: RuleBar, value: float, deviation: float | None) -> None:
    color = find_rule(bar.rule).color
    if bar.network == "plain":
        axes.plot(
            value, place, marker="D", markersize=3.8, color="white", markeredgecolor=INK, markeredgewidth=0.9
        )
        return
    strong = bar.rule in MAIN_RULES
    axes.barh(place, value, height=0.64, color=color, alpha=1.0 if strong else 0.75)
    if deviation:
        axes.plot([value - deviation, value + deviation], [place, place], color=INK, linewidth=0.9)


@styled
def keep_and_remove(
    curves: Sequence[RuleCurve], *, metric: str, full: float | None, evidence_share: float | None = None
) -> Figure:
    """The task metric from the kept patches alone, and what is lost without them, over the share of patches."""
    figure = new_figure(WIDTH, 3.5)
    keep, remove = row_of_axes(figure, 2)
    label = METRICS[metric].label
    rivals = [curve.rule for curve in curves if curve.rule not in MAIN_RULES]
    for curve in sorted(curves, key=drawing_order):
        strong = curve.rule in MAIN_RULES
        marker = "o" if strong else MARKERS[1 + rivals.index(curve.rule) % (len(MARKERS) - 1)]
        look: dict[str, Any] = {
            "color": find_rule(curve.rule).color,
            "linewidth": 1.9 if strong else 0.9,
            "linestyle": (0, (4, 2)) if curve.rule in CONTROLS else "-",
            "marker": marker,
            "markersize": 4.5 if strong else 3.4,
            "label": readable_name(curve.rule),
        }
        keep.plot(100 * curve.shares, curve.kept, **look)
        remove.plot(100 * curve.shares, curve.lost, **look)
    if full is not None:
        keep.axhline(full, color=INK, linewidth=0.8)
        keep.annotate(
            "all patches", (0.01, full), xycoords=("axes fraction", "data"), xytext=(0, 2),
            textcoords="offset points", ha="left", fontsize=7.5,
        )  # fmt: skip
    for axes, title in ((keep, f"Keep only: {label} ↑"), (remove, f"Remove: {label} lost ↑")):
        quiet(axes)
        axes.set_xscale("log")
        axes.set_xlabel("patches kept or removed, % of the bag")
        axes.set_title(title)
        ticks = sorted({float(100 * share) for curve in curves for share in curve.shares})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        if evidence_share is not None:
            axes.axvline(
                100 * evidence_share, color=find_rule("evidence").color, linewidth=0.8, linestyle=(0, (1, 2))
            )
    remove.axhline(0, color=MUTED, linewidth=0.7)
    handles, names = keep.get_legend_handles_labels()
    order = [readable_name(rule) for rule in order_rules([curve.rule for curve in curves])]
    ranked = sorted(zip(names, handles, strict=True), key=lambda pair: order.index(pair[0]))
    figure.legend(
        [handle for _, handle in ranked], [name for name, _ in ranked], loc="outside lower left", ncols=4
    )
    return figure


def drawing_order(curve: RuleCurve) -> int:
    """Rivals below, controls above them, ours on top."""
    strength = ("", *CONTROLS, *reversed(FIRST_RULES))
    return strength.index(curve.rule) if curve.rule in strength else 0
