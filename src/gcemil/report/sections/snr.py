"""Sufficiency, necessity and recoverability: every rule beside its controls, over slides and over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.findings import Finding
from gcemil.report.html import EMPTY, Markup, Section, element, joined, paragraph, table
from gcemil.report.run_data import Record
from gcemil.report.sections.context import Context
from gcemil.report.sections.finding_tables import Naming, finding_table, in_order, rows_with
from gcemil.report.sections.headline import judged
from gcemil.report.style import (
    INK,
    WIDTH,
    new_figure,
    quiet,
    readable_name,
    row_of_axes,
    spread_positions,
    styled,
)
from gcemil.rules import find_rule, order_rules

FULL_KEPT = (
    "evidence_sufficiency", "keep_only_drop", "full_kept_gap", "sufficient_share", "complement_degradation",
    "removal_gap", "necessary_share",
)  # fmt: skip
SOFT_KEPT = ("cd_gap", "cd_metric_gap", "recoverable_share", "gate_margin", "gate_distance")
BOUNDS = (
    "coverage_residual",
    "coverage_bound",
    "coverage_slack",
    "coverage_broken_share",
    "margin_bound",
    "margin_slack",
    "margin_broken_share",
    "empty_share",
    "runaway_share",
)
LABELS = {"rule": "Patches chosen by", "network": "Predicted by"}


def section(context: Context) -> Section:
    finding = context.run.finding("snr")
    body = context.missing("snr") if finding is None else shown(context, finding)
    return Section("snr", "Sufficiency, necessity, recoverability", body)


def shown(context: Context, finding: Finding) -> Markup:
    naming = {"network": context.network}
    spread = context.run.spread("snr")
    everyone = in_order(rows_with(finding.rows, **{"class": "all", "comparison": "full-kept"}))
    gates = rows_with(finding.rows, **{"class": "all", "comparison": "soft-kept"})
    notes = [f"± standard deviation over {spread}. Bold: best, the oracle aside.", *finding.notes]
    parts = [
        paragraph(
            "All rules choose the same number of patches. Keep-only: the network sees these patches alone. Removal: it sees "
            "all the others. The oracle takes the annotated truth first and exists only where the truth is known."
        ),
        figure(context, finding),
        table(
            finding_table(
                everyone,
                LABELS,
                FULL_KEPT,
                caption="All patches against kept and removed",
                notes=notes,
                naming=naming,
            )
        ),
    ]
    if gates:
        parts.append(
            table(
                finding_table(
                    gates, LABELS, SOFT_KEPT, caption="Gated bag against recovered patches", naming=naming
                )
            )
        )
        parts.append(
            paragraph(
                "The C-D gap compares the gated bag with the recovered patches; the full-kept gap compares all patches with "
                "them. They are different quantities and stand in different tables.",
                kind="note",
            )
        )
    parts.append(folded("By class, and the bounds of the paper", details(context, finding)))
    return joined(parts)


def figure(context: Context, finding: Finding) -> Markup:
    by_rule = judged(context)
    settings = finding.settings
    panels = [
        SlidePanel(
            "Keep only",
            "|Φ(all) - Φ(kept)|  ↓",
            values(by_rule, "full_kept_gap"),
            settings.get("sufficiency_tolerance"),
        ),
        SlidePanel(
            "Remove",
            "|Φ(all) - Φ(removed)|  ↑",
            values(by_rule, "removal_gap"),
            settings.get("necessity_tolerance"),
            is_upper=False,
        ),
        SlidePanel(
            "Recover",
            "|Φ(gated) - Φ(kept)|  ↓",
            values(by_rule, "cd_gap"),
            settings.get("recoverability_tolerance"),
        ),
    ]
    shown = [panel for panel in panels if panel.by_rule]
    if not shown:
        return EMPTY
    phi = (
        "the risk in units of the training risks"
        if context.run.task == "survival"
        else "the probability of the predicted class"
    )
    return context.album.figure(
        "snr_slides",
        slides_by_rule(shown),
        alt="Change of the output per slide when patches are kept, removed or gated, by rule",
        caption=f"One dot is one {context.unit}, the bar its median, the dashed line the tolerance. Φ is {phi}.",
    )


def values(by_rule: dict[str, list[Record]], name: str) -> dict[str, list[float]]:
    found = {
        rule: [float(record[name]) for record in records if record.get(name) is not None]
        for rule, records in by_rule.items()
    }
    return {rule: numbers for rule, numbers in found.items() if numbers}


def details(context: Context, finding: Finding) -> Markup:
    naming: dict[str, Naming] = {"network": context.network, "class": str}
    own = rows_with(finding.rows, rule=context.run.rule, network="wrapped")
    classes = [row for row in own if row.labels["class"] != "all"]
    parts = []
    for comparison, metrics in (("full-kept", FULL_KEPT), ("soft-kept", SOFT_KEPT)):
        rows = rows_with(classes, comparison=comparison)
        if rows:
            caption = f"By class, {comparison}"
            parts.append(
                table(finding_table(rows, {"class": "Class"}, metrics, caption=caption, naming=naming))
            )
    bounds = rows_with(own, **{"class": "all"})
    if context.run.is_wrapped:
        caption = "Bounds: a negative slack is a broken bound"
        made = finding_table(
            bounds, {"comparison": "Comparison"}, BOUNDS, caption=caption, naming={"comparison": str}
        )
        parts.append(table(made))
    return joined(parts)


def folded(title: str, body: Markup) -> Markup:
    return element("details", element("summary", title), body, class_="fold")


@dataclass(frozen=True)
class SlidePanel:
    """What one panel shows of every slide."""

    title: str
    label: str
    by_rule: Mapping[str, Sequence[float]]
    limit: float | None = None
    is_upper: bool = True
    """Whether the limit must not be passed, or must be reached."""


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
