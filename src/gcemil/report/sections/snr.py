"""Sufficiency, necessity and recoverability: every rule beside its controls, over slides and over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.exports.certificate import CRITERIA, VerdictName
from gcemil.findings import Finding, Row
from gcemil.metrics import METRICS
from gcemil.report.claim import ORACLE_MEANING, RuleSlides
from gcemil.report.html import HtmlTable, Picture, Section, render_section
from gcemil.report.sections.context import Context, filter_rows, order_rows
from gcemil.report.sections.headline import list_rules
from gcemil.report.style import (
    INK,
    add_axes_row,
    apply_style,
    draw_grid,
    label_rows,
    new_figure,
    readable_name,
    spread_positions,
)
from gcemil.rules import find_rule, order_rules

FULL_KEPT = (
    "evidence_sufficiency", "keep_only_drop", "full_kept_gap", "sufficient_share", "complement_degradation",
    "removal_gap", "necessary_share", "both_share",
)  # fmt: skip
OF_PLAIN = ", plain host"
SOFT_KEPT = ("cd_gap", "cd_metric_gap", "recoverable_share", "gate_margin", "gate_distance")
BOUNDS = {
    "coverage_bound": ("coverage_residual", "coverage_bound", "coverage_slack", "coverage_broken_share"),
    "margin_bound": ("margin_bound", "margin_slack", "margin_broken_share"),
}
"""Each bound with its figures."""
SIZES = ("empty_share", "runaway_share")
PANELS: dict[VerdictName, tuple[str, str]] = {
    "sufficient": ("Keep only", "|Φ(all) - Φ(kept)|  ↓"),
    "necessary": ("Remove", "|Φ(all) - Φ(removed)|  ↑"),
    "recoverable": ("Recover", "|Φ(gated) - Φ(kept)|  ↓"),
}
LARGEST_CHANGE = 1.0
"""A probability cannot move further, so a bound above it says nothing."""


def render_snr(context: Context) -> Section | None:
    """The S/N/R diagnostic."""
    finding = context.find("snr")
    if finding is None:
        return None
    own = filter_rows(finding.rows, rule=context.run.rule, network="wrapped")
    every = filter_rows(finding.rows, **{"class": "all"})
    gates = filter_rows(every, comparison="soft-kept")
    classes = [row for row in own if row.labels["class"] != "all"]
    return render_section(
        "snr",
        "Sufficiency, necessity, recoverability",
        oracle=ORACLE_MEANING,
        figure=_draw_figure(context, finding),
        kept=context.make_table(
            order_rows(filter_rows(every, comparison="full-kept")),
            FULL_KEPT,
            caption="All patches against kept and removed",
            notes=[f"{context.describe_spread('snr')} Bold: best, the oracle aside.", *finding.notes],
        ),
        gated=gates and context.make_table(gates, SOFT_KEPT, caption="Gated bag against recovered patches"),
        classes=[
            context.make_table(
                rows,
                metrics,
                labels={"class": "Class"},
                naming={"class": str},
                caption=f"By class, {comparison}",
            )
            for comparison, metrics in (("full-kept", FULL_KEPT), ("soft-kept", SOFT_KEPT))
            if (rows := filter_rows(classes, comparison=comparison))
        ],
        **_tabulate_bounds(context, filter_rows(own, **{"class": "all"}) if context.run.is_wrapped else []),
    )


def _draw_figure(context: Context, finding: Finding) -> Picture | None:
    """How far the output of every slide moves, by rule."""
    rules, limits = list_rules(context), finding.settings
    panels = [
        SlidePanel(title, label, values, limits.get(CRITERIA[name].tolerance), is_upper=name != "necessary")
        for name, (title, label) in PANELS.items()
        if (values := _collect_values(rules, CRITERIA[name].change))
    ]
    if not panels:
        return None
    is_risk = context.run.task == "survival"
    phi = "the risk in units of the training risks" if is_risk else "the probability of the predicted class"
    return context.figures.save(
        "snr_slides",
        draw_slides_by_rule(panels),
        alt="Change of the output per slide when patches are kept, removed or gated, by rule",
        caption=f"One dot is one {context.unit}, the bar its median, the dashed line the tolerance. Φ is {phi}.",
    )


def _collect_values(rules: Sequence[RuleSlides], name: str) -> dict[str, list[float]]:
    """By rule; those of the plain host, where it is another network, under a name of their own."""
    found = {
        f"{one.rule}{OF_PLAIN}" if one.network == "plain" else one.rule: [
            float(record[name]) for record in one.records if record.get(name) is not None
        ]
        for one in rules
    }
    return {rule: numbers for rule, numbers in found.items() if numbers}


def _tabulate_bounds(context: Context, rows: Sequence[Row]) -> dict[str, Any]:
    """The bounds that limit something; of the others only that they do not."""
    shown: list[str] = []
    notes: list[str] = []
    for bound, figures in BOUNDS.items():
        found = [value for row in rows if (value := row.values.get(bound)) is not None]
        if found and context.run.task != "survival" and max(found) >= LARGEST_CHANGE:
            notes.append(
                f"{METRICS[bound].label}: above {LARGEST_CHANGE:g} on average, so it limits nothing here and is not shown."
            )
        elif found:
            shown += figures
    names = [*shown, *SIZES]
    known = [row for row in rows if any(row.values.get(name) is not None for name in names)]
    table: HtmlTable | None = None
    if known:
        table = context.make_table(
            known,
            names,
            labels={"comparison": "Comparison"},
            naming={"comparison": str},
            caption="Bounds and sizes: a negative slack is a broken bound" if shown else "Sizes",
        )
    return {"bounds": table, "bound_notes": notes}


@dataclass(frozen=True)
class SlidePanel:
    """What one panel shows of every slide."""

    title: str
    label: str
    by_rule: Mapping[str, Sequence[float]]
    limit: float | None = None
    is_upper: bool = True
    """Whether the limit must not be passed, or must be reached."""


@apply_style
def draw_slides_by_rule(panels: Sequence[SlidePanel]) -> Figure:
    """A dot per slide, a bar at the median, and the line a slide has to keep to."""
    rules = order_rules([rule for panel in panels for rule in panel.by_rule])
    figure = new_figure(0.95 + 0.42 * len(rules))
    for axes, panel in zip(add_axes_row(figure, len(panels), sharey=True), panels, strict=True):
        names = [
            readable_name(rule.removesuffix(OF_PLAIN)) + OF_PLAIN * rule.endswith(OF_PLAIN) for rule in rules
        ]
        for rule, place in zip(rules, label_rows(axes, names), strict=True):
            if rule in panel.by_rule:
                _draw_strip(axes, place, panel.by_rule[rule], find_rule(rule.removesuffix(OF_PLAIN)).color)
        if panel.limit is not None:
            axes.axvline(panel.limit, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
            axes.annotate(
                f"{'≤' if panel.is_upper else '≥'} {panel.limit:g}", (panel.limit, 1.0), va="top", fontsize=7.5,
                xycoords=("data", "axes fraction"), xytext=(3, -1), textcoords="offset points",
            )  # fmt: skip
        draw_grid(axes, grid="x").set(title=panel.title, xlabel=panel.label)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    return figure


def _draw_strip(axes: Axes, place: int, values: Sequence[float], color: str) -> None:
    look: Any = {"linestyle": "", "marker": "o", "markersize": 3.6, "alpha": 0.6, "markeredgewidth": 0}
    axes.plot(values, place + spread_positions(values), color=color, rasterized=len(values) > 500, **look)
    middle = float(np.median(values))
    axes.plot([middle, middle], [place - 0.3, place + 0.3], color=INK, linewidth=1.6, solid_capstyle="butt")
