"""The same number of patches for every rule: random below, the oracle above, rivals between."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from gcemil.findings import Finding, Row
from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.claim import ORACLE_MEANING
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.sections.context import (
    RULE_HEADINGS,
    Context,
    filter_rows,
    order_rows,
    save_figure,
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
KEPT, LOST = "evidence_sufficiency", "complement_degradation"
BAR_METRICS = (KEPT, LOST, "precision")


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
    tables = {
        _name_size(budget): context.make_table(
            order_rows(filter_rows(rows, budget=budget)),
            BUDGET_METRICS,
            caption=f"At {_name_size(budget)}",
            notes=[context.describe_spread("budget")],
        )
        for budget in budgets
    }
    rows = _leave_out_smoothed(rows)
    main = RECOVERED if RECOVERED in budgets else budgets[-1]
    figures = [_draw_curves(context, finding)]
    figures.append(_draw_bars(context, filter_rows(rows, budget=main), _name_size(main)))
    return {
        "figures": [figure for figure in figures if figure],
        "tables": tables,
        "notes": finding.notes,
    }


def _name_size(budget: str) -> str:
    if budget == RECOVERED:
        return "the size of the recovered evidence"
    return f"{100 * float(budget):g} % of the patches"


def _leave_out_smoothed(rows: Sequence[Row]) -> list[Row]:
    """Smoothed rivals stand in the tables; twice the lines and bars would hide the picture."""
    return [row for row in rows if not row.labels["rule"].endswith(SMOOTHED)]


KEEP_REMOVE = (
    "Left: the metric from the chosen patches alone; a good rule reaches the line of all patches early. Right: what is "
    "lost without them; a good rule loses much. Dashed: the two controls. Dotted, where shown: mean size of the recovered evidence."
)


def _draw_curves(context: Context, finding: Finding) -> Picture | None:
    """Keep and remove curves under the run's own network."""
    figure = draw_budget_curves(finding, context.run.task_metric)
    if figure is None:
        return None
    return save_figure(
        context.figures,
        "keep_remove",
        figure,
        alt="Task metric when patches are kept or removed, over the share of patches, by rule",
        caption=KEEP_REMOVE,
    )


def draw_budget_curves(finding: Finding, metric: str) -> Figure | None:
    """Keep and remove curves of the budget diagnostic; None where no rule was measured at two sizes."""
    rows = _leave_out_smoothed(filter_rows(finding.rows, comparison="full-kept", network="wrapped"))
    recovered = filter_rows(rows, rule="gce_discrete", budget=RECOVERED)
    share = recovered[0].values.get("evidence_fraction") if recovered else None
    return draw_keep_and_remove(rows, metric=metric, evidence_share=share)


def _draw_bars(context: Context, rows: list[Row], size: str) -> Picture | None:
    """Bars at one size, under both networks."""
    metrics = [
        name for name in BAR_METRICS if any(row.values.get(name) is not None for row in rows)
    ]
    if not metrics:
        return None
    spread = context.describe_spread("budget").removeprefix("± ")
    diamonds = (
        " Diamonds: the same rule under the plain host."
        if filter_rows(rows, network="plain")
        else ""
    )
    return save_figure(
        context.figures,
        "same_budget",
        draw_same_budget(rows, metrics, title=f"Every rule at {size}"),
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
    labels = {"rule": RULE_HEADINGS["rule"]}
    return {
        "own": context.make_table(
            filter_rows(rows, network="wrapped"), POSTHOC_METRICS, notes=notes
        ),
        "plain": plain and context.make_table(plain, POSTHOC_METRICS, labels=labels),
    }


def draw_same_budget(rows: Sequence[Row], metrics: Sequence[str], *, title: str) -> Figure:
    """Every rule with the same number of patches; bars under the wrapped host, diamonds under the plain one."""
    rules = order_rules([row.labels["rule"] for row in rows])
    names = [style.readable_name(rule) for rule in rules]
    figure = style.new_figure(0.95 + 0.23 * len(rules), title)
    for axes, name in zip(
        style.add_axes_row(figure, len(metrics), sharey=True), metrics, strict=True
    ):
        places = dict(zip(rules, style.label_rows(axes, names), strict=True))
        for row in rows:
            rule, value, deviation = (
                row.labels["rule"],
                row.values.get(name),
                row.deviations.get(name),
            )
            place = places[rule]
            if value is None:
                continue
            if row.labels["network"] == "plain":
                look: Any = {
                    "markersize": 3.8,
                    "markeredgecolor": style.INK,
                    "markeredgewidth": 0.9,
                }
                axes.plot(value, place, marker="D", color="white", **look)
                continue
            strength = 1.0 if rule in MAIN_RULES else 0.75
            axes.barh(place, value, height=0.64, color=find_rule(rule).color, alpha=strength)
            if deviation:
                ends = [value - deviation, value + deviation]
                axes.plot(ends, [place, place], color=style.INK, linewidth=0.9)
        metric = METRICS[name]
        heading = textwrap.fill(f"{metric.label}\u00a0{metric.arrow}", 20)
        style.draw_grid(axes, grid="x").set_title(heading, fontsize=9)
        axes.axvline(0, color=style.MUTED, linewidth=0.7)
    return figure


def draw_keep_and_remove(
    rows: Sequence[Row], *, metric: str, evidence_share: float | None = None
) -> Figure | None:
    """The task metric from the kept patches alone, and what is lost without them, over the share of patches.

    None where no rule was measured at two sizes.
    """
    curves: dict[str, tuple[list[float], Any, Any]] = {}
    for rule in order_rules([row.labels["rule"] for row in rows]):
        points = [row for row in filter_rows(rows, rule=rule) if row.labels["budget"] != RECOVERED]
        shares = [100 * float(point.labels["budget"]) for point in points]
        kept: Any = [point.values.get(KEPT) for point in points]
        lost: Any = [point.values.get(LOST) for point in points]
        if len(points) > 1 and None not in kept and None not in lost:
            curves[rule] = shares, kept, lost
    if not curves:
        return None
    figure = style.new_figure(3.5)
    keep, remove = style.add_axes_row(figure, 2)
    rivals = [rule for rule in curves if rule not in MAIN_RULES]
    # Rivals below, controls above them, ours on top.
    layers = (*CONTROLS, *reversed(FIRST_RULES))
    handles = {}
    for rule in sorted(curves, key=lambda rule: layers.index(rule) + 1 if rule in layers else 0):
        shares, kept, lost = curves[rule]
        strong = rule in MAIN_RULES
        look: dict[str, Any] = {
            "color": find_rule(rule).color,
            "linewidth": 1.9 if strong else 0.9,
            "linestyle": (0, (4, 2)) if rule in CONTROLS else "-",
            "marker": "o"
            if strong
            else style.MARKERS[1 + rivals.index(rule) % (len(style.MARKERS) - 1)],
            "markersize": 4.5 if strong else 3.4,
        }
        handles[rule] = keep.plot(shares, kept, **look)[0]
        remove.plot(shares, lost, **look)
    full = next((row.values.get("task_metric") for row in rows), None)
    if full is not None:
        keep.axhline(full, color=style.INK, linewidth=0.8)
        keep.annotate(
            "all patches", (0.01, full), xycoords=("axes fraction", "data"), xytext=(0, 2),
            textcoords="offset points", ha="left", fontsize=7.5,
        )  # fmt: skip
    label = METRICS[metric].label
    ticks = sorted({share for shares, _, _ in curves.values() for share in shares})
    for axes, title in ((keep, f"Keep only: {label} ↑"), (remove, f"Remove: {label} lost ↑")):
        style.draw_grid(axes).set(
            xscale="log", xlabel="patches kept or removed, % of the bag", title=title
        )
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        if evidence_share is not None:
            look = {"color": style.EVIDENCE_COLOR, "linewidth": 0.8, "linestyle": (0, (1, 2))}
            axes.axvline(100 * evidence_share, **look)
    remove.axhline(0, color=style.MUTED, linewidth=0.7)
    names = [style.readable_name(rule) for rule in curves]
    figure.legend([handles[rule] for rule in curves], names, loc="outside lower left", ncols=4)
    return figure
