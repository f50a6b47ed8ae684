"""Sufficiency, necessity and recoverability: every rule beside its controls, over slides and over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gcemil.exports.certificate import CRITERIA, VerdictName
from gcemil.findings import Row
from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.claim import ORACLE_MEANING, RuleSlides
from gcemil.report.html import Section, render_section
from gcemil.report.sections.context import Context, filter_rows, order_rows, save_figure
from gcemil.rules import find_rule, order_rules

FULL_KEPT = (
    "evidence_sufficiency", "keep_only_drop", "full_kept_gap", "sufficient_share", "complement_degradation",
    "removal_gap", "necessary_share", "both_share",
)  # fmt: skip
SOFT_KEPT = ("cd_gap", "cd_metric_gap", "recoverable_share", "gate_margin", "gate_distance")
BOUNDS = {
    "coverage_bound": (
        "coverage_residual",
        "coverage_bound",
        "coverage_slack",
        "coverage_broken_share",
    ),
    "margin_bound": ("margin_bound", "margin_slack", "margin_broken_share"),
}
"""Each bound with its figures."""
SIZES = ("empty_share", "runaway_share")
PANELS: dict[VerdictName, tuple[str, str]] = {
    "sufficient": ("Keep only", "|Φ(all) - Φ(kept)|  ↓"),
    "necessary": ("Remove", "|Φ(all) - Φ(removed)|  ↑"),
    "recoverable": ("Recover", "|Φ(gated) - Φ(kept)|  ↓"),
}
OF_PLAIN = ", plain host"
LARGEST_CHANGE = 1.0
"""A probability cannot move further, so a bound above it says nothing."""


def render_snr(context: Context) -> Section | None:
    """The S/N/R diagnostic."""
    finding = context.find("snr")
    if finding is None:
        return None
    claim = context.run.claim
    figure = draw_slides_by_rule(claim.rules if claim else (), finding.settings)
    every = filter_rows(finding.rows, **{"class": "all"})
    gates = filter_rows(every, comparison="soft-kept")
    own = filter_rows(finding.rows, rule=context.run.rule, network="wrapped")
    classes = [row for row in own if row.labels["class"] != "all"]
    return render_section(
        "snr",
        "Sufficiency, necessity, recoverability",
        oracle=ORACLE_MEANING,
        figure=figure
        and save_figure(
            context.figures,
            "snr_slides",
            figure,
            alt="Change of the output per slide when patches are kept, removed or gated, by rule",
            caption=f"One dot is one {context.run.bag_unit}, the bar its median, the dashed line the tolerance. Φ is {context.run.phi}.",
        ),
        kept=context.make_table(
            order_rows(filter_rows(every, comparison="full-kept")),
            FULL_KEPT,
            caption="All patches against kept and removed",
            notes=[
                f"{context.describe_spread('snr')} Bold: best, the oracle aside.",
                *finding.notes,
            ],
        ),
        gated=gates
        and context.make_table(gates, SOFT_KEPT, caption="Gated bag against recovered patches"),
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
        **_tabulate_bounds(
            context, filter_rows(own, **{"class": "all"}) if context.run.is_wrapped else []
        ),
    )


def _tabulate_bounds(context: Context, rows: Sequence[Row]) -> dict[str, Any]:
    """The bounds that limit something; of the others only that they do not."""
    names: list[str] = []
    notes: list[str] = []
    for bound, figures in BOUNDS.items():
        values = [value for row in rows if (value := row.values.get(bound)) is not None]
        if values and context.run.task == "classification" and max(values) >= LARGEST_CHANGE:
            notes.append(
                f"{METRICS[bound].label}: above {LARGEST_CHANGE:g} on average, so it limits nothing here and is not shown."
            )
        elif values:
            names += figures
    caption = "Bounds and sizes: a negative slack is a broken bound" if names else "Sizes"
    names += SIZES
    rows = [row for row in rows if any(row.values.get(name) is not None for name in names)]
    options: Any = {"labels": {"comparison": "Comparison"}, "naming": {"comparison": str}}
    table = context.make_table(rows, names, caption=caption, **options) if rows else None
    return {"bounds": table, "bound_notes": notes}


def draw_slides_by_rule(rules: Sequence[RuleSlides], limits: Mapping[str, Any]) -> Figure | None:
    """How far the output of every slide moves: a dot per slide, a bar at the median, and the tolerance."""
    panels: dict[VerdictName, dict[str, list[float]]] = {}
    for name in PANELS:
        changes = {
            f"{slides.rule}{OF_PLAIN * (slides.network == 'plain')}": [
                float(change)
                for record in slides.records
                if (change := record.get(CRITERIA[name].change)) is not None
            ]
            for slides in rules
        }
        if any(changes.values()):
            panels[name] = {rule: values for rule, values in changes.items() if values}
    if not panels:
        return None
    keys = order_rules([rule for changes in panels.values() for rule in changes])
    names = [
        style.readable_name(key.removesuffix(OF_PLAIN)) + OF_PLAIN * key.endswith(OF_PLAIN)
        for key in keys
    ]
    figure = style.new_figure(0.95 + 0.42 * len(keys))
    for axes, (name, changes) in zip(
        style.add_axes_row(figure, len(panels), sharey=True), panels.items(), strict=True
    ):
        for key, place in zip(keys, style.label_rows(axes, names), strict=True):
            if key in changes:
                values = changes[key]
                axes.plot(
                    values, place + style.spread_positions(values), linestyle="", marker="o", markersize=3.6,
                    color=find_rule(key.removesuffix(OF_PLAIN)).color, alpha=0.6, markeredgewidth=0,
                    rasterized=len(values) > 500,
                )  # fmt: skip
                middle = float(np.median(values))
                axes.plot(
                    [middle, middle], [place - 0.3, place + 0.3], color=style.INK, linewidth=1.6,
                    solid_capstyle="butt",
                )  # fmt: skip
        if (limit := limits.get(CRITERIA[name].tolerance)) is not None:
            axes.axvline(limit, color=style.INK, linewidth=0.9, linestyle=(0, (4, 2)))
            axes.annotate(
                f"{'≥' if name == 'necessary' else '≤'} {limit:g}", (limit, 1.0), va="top", fontsize=7.5,
                xycoords=("data", "axes fraction"), xytext=(3, -1), textcoords="offset points",
            )  # fmt: skip
        title, label = PANELS[name]
        style.draw_grid(axes, grid="x").set(title=title, xlabel=label)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    return figure
