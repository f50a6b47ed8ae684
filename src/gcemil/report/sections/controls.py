"""The same number of patches for every rule: random below, the oracle above, rivals between."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.findings import Finding, Row
from gcemil.metrics import METRICS
from gcemil.report.claim import ORACLE_MEANING
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.sections.context import RULE_HEADINGS, Context, filter_rows, order_rows
from gcemil.report.style import (
    INK,
    MARKERS,
    MUTED,
    add_axes_row,
    apply_style,
    draw_grid,
    label_rows,
    new_figure,
    readable_name,
)
from gcemil.rules import CONTROLS, FIRST_RULES, MAIN_RULES, SMOOTHED, find_rule, order_rules

RECOVERED = "recovered"
BUDGET_METRICS = (
    "evidence_sufficiency", "keep_only_drop", "full_kept_gap", "complement_degradation", "removal_gap",
    "precision", "recall", "region_coverage",
)  # fmt: skip
POSTHOC_METRICS = (
    "evidence_sufficiency", "full_kept_gap", "srg", "least_first_area", "complement_degradation", "removal_gap",
    "most_first_area", "average_precision", "runtime_ratio",
)  # fmt: skip
BAR_METRICS = ("evidence_sufficiency", "complement_degradation", "precision")
RULE_ONLY = {"rule": RULE_HEADINGS["rule"]}


def render_controls(context: Context) -> Section | None:
    """Every rule at the same number of patches, and explanations made after training."""
    budget, posthoc = context.find("budget"), context.find("posthoc")
    if budget is None and posthoc is None:
        return None
    return render_section(
        "controls",
        "Controls and rivals",
        oracle=ORACLE_MEANING,
        budget=budget and _describe_budget(context, budget),
        posthoc=posthoc and _describe_posthoc(context, posthoc),
    )


def _describe_budget(context: Context, finding: Finding) -> dict[str, Any]:
    """Curves over sizes, bars at the main size, and a table of every size."""
    rows = filter_rows(finding.rows, comparison="full-kept")
    budgets = list(dict.fromkeys(row.labels["budget"] for row in rows))
    main = RECOVERED if RECOVERED in budgets else budgets[-1]
    tables = {
        _name_size(budget): context.make_table(
            order_rows(filter_rows(rows, budget=budget)),
            BUDGET_METRICS,
            caption=f"At {_name_size(budget)}",
            notes=[context.describe_spread("budget")],
        )
        for budget in budgets
    }
    figures = [_draw_curves(context, rows, budgets), _draw_bars(context, rows, main)]
    return {"figures": [one for one in figures if one], "tables": tables, "notes": finding.notes}


def _name_size(budget: str) -> str:
    return (
        "the size of the recovered evidence"
        if budget == RECOVERED
        else f"{100 * float(budget):g} % of the patches"
    )


def _draw_curves(context: Context, rows: list[Row], budgets: list[str]) -> Picture | None:
    """Keep and remove curves of the rules that are not smoothed, under the run's own network."""
    shares = [budget for budget in budgets if budget != RECOVERED]
    own = [row for row in filter_rows(rows, network="wrapped") if not row.labels["rule"].endswith(SMOOTHED)]
    curves = []
    for rule in order_rules([row.labels["rule"] for row in own]):
        points = [row for share in shares for row in filter_rows(own, rule=rule, budget=share)]
        kept, lost = (
            [point.values.get(name) for point in points]
            for name in ("evidence_sufficiency", "complement_degradation")
        )
        if len(points) > 1 and None not in kept and None not in lost:
            values = (np.array(one, dtype=float) for one in (shares, kept, lost))
            curves.append(RuleCurve(rule, *values))
    if not curves:
        return None
    full = next((row.values.get("task_metric") for row in own), None)
    recovered = filter_rows(own, rule="gce_discrete", budget=RECOVERED)
    share = recovered[0].values.get("evidence_fraction") if recovered else None
    dotted = " Dotted: mean size of the recovered evidence." if share is not None else ""
    return context.figures.save(
        "keep_remove",
        draw_keep_and_remove(curves, metric=context.run.task_metric, full=full, evidence_share=share),
        alt="Task metric when patches are kept or removed, over the share of patches, by rule",
        caption="Left: the metric from the chosen patches alone; a good rule reaches the line of all patches early. Right: what is "
        f"lost without them; a good rule loses much. Dashed: the two controls.{dotted}",
    )


def _draw_bars(context: Context, rows: list[Row], budget: str) -> Picture | None:
    # Smoothed rivals stand in the tables; twice the bars would hide the picture.
    chosen = [row for row in filter_rows(rows, budget=budget) if not row.labels["rule"].endswith(SMOOTHED)]
    metrics = [name for name in BAR_METRICS if any(row.values.get(name) is not None for row in chosen)]
    if not metrics:
        return None
    spread = context.describe_spread("budget").removeprefix("± ")
    diamonds = (
        " Diamonds: the same rule under the plain host." if filter_rows(chosen, network="plain") else ""
    )
    return context.figures.save(
        "same_budget",
        draw_same_budget(chosen, metrics, title=f"Every rule at {_name_size(budget)}"),
        alt="Sufficiency, necessity and precision of every rule at the same number of patches",
        caption=f"Bars: judged by the run's own network; lines: {spread}{diamonds}",
    )


def _describe_posthoc(context: Context, finding: Finding) -> dict[str, Any]:
    """The run's own network in view, the plain host folded below."""
    rows = order_rows(filter_rows(finding.rows, comparison="full-kept"))
    plain = filter_rows(rows, network="plain")
    notes = [
        "SRG is the area between the two flipping curves (0 for a random order); runtime counts passes of the host. The "
        "diagnostic keeps the areas of the curves, not their points.",
        *finding.notes,
    ]
    return {
        "own": context.make_table(filter_rows(rows, network="wrapped"), POSTHOC_METRICS, notes=notes),
        "plain": plain and context.make_table(plain, POSTHOC_METRICS, labels=RULE_ONLY),
    }


@dataclass(frozen=True, eq=False)
class RuleCurve:
    """One rule over sizes: M from the kept patches, and M lost without them."""

    rule: str
    shares: Float[np.ndarray, "s"]
    kept: Float[np.ndarray, "s"]
    lost: Float[np.ndarray, "s"]


@apply_style
def draw_same_budget(rows: Sequence[Row], metrics: Sequence[str], *, title: str) -> Figure:
    """Every rule with the same number of patches; bars under the wrapped host, diamonds under the plain one."""
    rules = order_rules([row.labels["rule"] for row in rows])
    figure = new_figure(0.95 + 0.23 * len(rules), title)
    for axes, name in zip(add_axes_row(figure, len(metrics), sharey=True), metrics, strict=True):
        places = dict(zip(rules, label_rows(axes, [readable_name(rule) for rule in rules]), strict=True))
        for row in rows:
            if (value := row.values.get(name)) is not None:
                _draw_bar(axes, places[row.labels["rule"]], row, value, row.deviations.get(name))
        metric = METRICS[name]
        draw_grid(axes, grid="x").set_title(
            textwrap.fill(f"{metric.label}\u00a0{metric.arrow}", 20), fontsize=9
        )
        axes.axvline(0, color=MUTED, linewidth=0.7)
    return figure


def _draw_bar(axes: Axes, place: int, row: Row, value: float, deviation: float | None) -> None:
    rule = row.labels["rule"]
    if row.labels["network"] == "plain":
        look: Any = {"marker": "D", "markersize": 3.8, "markeredgecolor": INK, "markeredgewidth": 0.9}
        axes.plot(value, place, color="white", **look)
        return
    strength = 1.0 if rule in MAIN_RULES else 0.75
    axes.barh(place, value, height=0.64, color=find_rule(rule).color, alpha=strength)
    if deviation:
        axes.plot([value - deviation, value + deviation], [place, place], color=INK, linewidth=0.9)


@apply_style
def draw_keep_and_remove(
    curves: Sequence[RuleCurve], *, metric: str, full: float | None, evidence_share: float | None = None
) -> Figure:
    """The task metric from the kept patches alone, and what is lost without them, over the share of patches."""
    figure = new_figure(3.5)
    keep, remove = add_axes_row(figure, 2)
    label = METRICS[metric].label
    rivals = [curve.rule for curve in curves if curve.rule not in MAIN_RULES]
    for curve in sorted(curves, key=_rank_layer):
        strong = curve.rule in MAIN_RULES
        look: dict[str, Any] = {
            "color": find_rule(curve.rule).color,
            "linewidth": 1.9 if strong else 0.9,
            "linestyle": (0, (4, 2)) if curve.rule in CONTROLS else "-",
            "marker": "o" if strong else MARKERS[1 + rivals.index(curve.rule) % (len(MARKERS) - 1)],
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
    ticks = sorted({float(100 * share) for curve in curves for share in curve.shares})
    for axes, title in ((keep, f"Keep only: {label} ↑"), (remove, f"Remove: {label} lost ↑")):
        draw_grid(axes).set(xscale="log", xlabel="patches kept or removed, % of the bag", title=title)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        if evidence_share is not None:
            color = find_rule("evidence").color
            axes.axvline(100 * evidence_share, color=color, linewidth=0.8, linestyle=(0, (1, 2)))
    remove.axhline(0, color=MUTED, linewidth=0.7)
    handles, names = keep.get_legend_handles_labels()
    shown = dict(zip(names, handles, strict=True))
    order = [readable_name(rule) for rule in order_rules([curve.rule for curve in curves])]
    figure.legend([shown[name] for name in order], order, loc="outside lower left", ncols=4)
    return figure


def _rank_layer(curve: RuleCurve) -> int:
    """Rivals below, controls above them, ours on top."""
    strength = ("", *CONTROLS, *reversed(FIRST_RULES))
    return strength.index(curve.rule) if curve.rule in strength else 0
