"""Sufficiency, necessity and recoverability: every rule beside its controls, and by class."""

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
from gcemil.report.context import Context, pick_rows
from gcemil.report.html import Section, render_section
from gcemil.rules import find_rule, order_rules

FULL_KEPT = (
    "evidence_sufficiency", "keep_only_drop", "full_kept_gap", "sufficient_share",
    "complement_degradation", "removal_gap", "necessary_share", "both_share",
)  # fmt: skip
SOFT_KEPT = ("cd_gap", "cd_metric_gap", "recoverable_share", "gate_margin", "gate_distance")
BOUNDS = {
    "coverage_bound": (
        "coverage_residual", "coverage_bound", "coverage_slack", "coverage_broken_share",
    ),
    "margin_bound": ("margin_bound", "margin_slack", "margin_broken_share"),
}  # fmt: skip
"""Each bound with its figures."""
SIZES = ("empty_share", "runaway_share")
PANELS: dict[VerdictName, tuple[str, str]] = {
    "sufficient": ("Keep only", "|Φ(all) - Φ(kept)|  ↓"),
    "necessary": ("Remove", "|Φ(all) - Φ(removed)|  ↑"),
    "recoverable": ("Recover", "|Φ(gated) - Φ(kept)|  ↓"),
}
OF_PLAIN = ", plain host"
LARGEST_CHANGE = 1.0
"""A probability cannot move further, so a bound above it is empty."""


def render_snr(context: Context) -> Section | None:
    finding = context.find("snr")
    if finding is None:
        return None
    run = context.run
    figure = draw_slides_by_rule(run.claim.rules if run.claim else (), finding.settings)
    every = pick_rows(finding.rows, **{"class": "all"})
    gates = pick_rows(every, comparison="soft-kept")
    own = pick_rows(finding.rows, rule=run.rule, network="wrapped")
    classes = [row for row in own if row.labels["class"] != "all"]
    class_names: Any = {"labels": {"class": "Class"}, "naming": {"class": str}}
    return render_section(
        "snr",
        "Sufficiency, necessity, recoverability",
        oracle=ORACLE_MEANING,
        figure=figure
        and context.draw(
            "snr_slides",
            figure,
            "Change of the output per slide when patches are kept, removed or gated, by rule",
            f"One dot is one {run.bag_unit}, the bar its median, the dashed line the tolerance. "
            f"Φ is {run.phi}.",
        ),
        kept=context.make_table(
            pick_rows(every, comparison="full-kept"),
            FULL_KEPT,
            "All patches against kept and removed",
            notes=[
                f"{context.describe_spread('snr')} Bold: best, the oracle aside.",
                *finding.notes,
            ],
        ),
        gated=gates and context.make_table(gates, SOFT_KEPT, "Gated bag against recovered patches"),
        classes=[
            context.make_table(rows, metrics, f"By class, {comparison}", **class_names)
            for comparison, metrics in (("full-kept", FULL_KEPT), ("soft-kept", SOFT_KEPT))
            if (rows := pick_rows(classes, comparison=comparison))
        ],
        **_tabulate_bounds(context, pick_rows(own, **{"class": "all"}) if run.is_wrapped else []),
    )


def _tabulate_bounds(context: Context, rows: Sequence[Row]) -> dict[str, Any]:
    """The bounds that limit something; of the others only that they do not."""
    names: list[str] = []
    notes: list[str] = []
    for bound, figures in BOUNDS.items():
        values = [value for row in rows if (value := row.values.get(bound)) is not None]
        if values and context.run.task == "classification" and max(values) >= LARGEST_CHANGE:
            notes.append(
                f"{METRICS[bound].label}: above {LARGEST_CHANGE:g} on average, so it limits "
                "nothing here and is not shown."
            )
        elif values:
            names += figures
    caption = "Bounds and sizes: a negative slack is a broken bound" if names else "Sizes"
    names += SIZES
    rows = [row for row in rows if any(row.values.get(name) is not None for name in names)]
    options: Any = {"labels": {"comparison": "Comparison"}, "naming": {"comparison": str}}
    table = context.make_table(rows, names, caption, **options) if rows else None
    return {"bounds": table, "bound_notes": notes}


def draw_slides_by_rule(rules: Sequence[RuleSlides], limits: Mapping[str, Any]) -> Figure | None:
    """How far the output of every slide moves: a dot per slide, the median, and the tolerance."""
    panels: dict[VerdictName, dict[str, list[float]]] = {}
    for name in PANELS:
        for slides in rules:
            key = f"{slides.rule}{OF_PLAIN * (slides.network == 'plain')}"
            changes = [record.get(CRITERIA[name].change) for record in slides.records]
            if values := [float(change) for change in changes if change is not None]:
                panels.setdefault(name, {})[key] = values
    if not panels:
        return None
    keys = order_rules([key for by_rule in panels.values() for key in by_rule])
    plain = [key.removesuffix(OF_PLAIN) for key in keys]
    names = [
        style.readable_name(rule) + OF_PLAIN * key.endswith(OF_PLAIN)
        for rule, key in zip(plain, keys, strict=True)
    ]
    figure = style.new_figure(0.95 + 0.42 * len(keys))
    grid = style.add_panels(figure, len(panels), sharey=True)
    for axes, (name, by_rule) in zip(grid, panels.items(), strict=True):
        for key, rule, place in zip(keys, plain, style.label_rows(axes, names), strict=True):
            if values := by_rule.get(key, []):
                look: Any = {"alpha": 0.6, "markeredgewidth": 0, "rasterized": len(values) > 500}
                heights = place + style.spread_positions(values)
                style.draw_dots(axes, values, heights, find_rule(rule).color, 3.6, **look)
                middle, ends = float(np.median(values)), [place - 0.3, place + 0.3]
                look = {"linewidth": 1.6, "solid_capstyle": "butt"}
                axes.plot([middle, middle], ends, color=style.INK, **look)
        if (limit := limits.get(CRITERIA[name].tolerance)) is not None:
            axes.axvline(limit, color=style.INK, linewidth=0.9, linestyle=(0, (4, 2)))
            words = f"{'≥' if name == 'necessary' else '≤'} {limit:g}"
            look = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(words, (limit, 1.0), xytext=(3, -1), va="top", fontsize=7.5, **look)
        title, label = PANELS[name]
        style.draw_grid(axes, grid="x").set(title=title, xlabel=label)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    return figure
