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
from gcemil.report.context import Context, pick_rows
from gcemil.report.html import Section, render_section
from gcemil.rules import CONTROLS, FIRST_RULES, MAIN_RULES, SMOOTHED, find_rule, order_rules

RECOVERED = "recovered"
BUDGET_METRICS = (
    "evidence_sufficiency", "keep_only_drop", "full_kept_gap", "complement_degradation",
    "removal_gap", "precision", "recall", "region_coverage",
)  # fmt: skip
POSTHOC_METRICS = (
    "evidence_sufficiency", "full_kept_gap", "srg", "least_first_area", "complement_degradation",
    "removal_gap", "most_first_area", "average_precision", "runtime_ratio",
)  # fmt: skip
KEPT, LOST = "evidence_sufficiency", "complement_degradation"
BAR_METRICS = (KEPT, LOST, "precision")
KEEP_REMOVE = (
    "Left: the metric from the chosen patches alone; a good rule reaches the line of all patches "
    "early. Right: what is lost without them; a good rule loses much. Dashed: the two controls. "
    "Dotted, where shown: mean size of the recovered evidence."
)
POSTHOC_NOTE = (
    "SRG is the area between the two flipping curves (0 for a random order); runtime counts passes "
    "of the host. The diagnostic keeps the areas of the curves, not their points."
)


def render_controls(context: Context) -> Section | None:
    """Every rule at the same number of patches, and explanations made after training."""
    budget, posthoc = context.find("budget"), context.find("posthoc")
    if budget is None and posthoc is None:
        return None
    explained = None
    if posthoc is not None:
        rows = pick_rows(posthoc.rows, comparison="full-kept")
        own, plain = pick_rows(rows, network="wrapped"), pick_rows(rows, network="plain")
        labels, notes = {"rule": "Patches chosen by"}, [POSTHOC_NOTE, *posthoc.notes]
        explained = {
            "own": context.make_table(own, POSTHOC_METRICS, notes=notes),
            "plain": plain and context.make_table(plain, POSTHOC_METRICS, labels=labels),
        }
    return render_section(
        "controls",
        "Controls and rivals",
        oracle=ORACLE_MEANING,
        budget=budget and _describe_budget(context, budget),
        posthoc=explained,
    )


def _describe_budget(context: Context, finding: Finding) -> dict[str, Any]:
    """Curves over sizes, bars at the main size, and a table of every size."""
    rows = pick_rows(finding.rows, comparison="full-kept")
    budgets = dict.fromkeys(
        row.labels["budget"] for row in finding.rows if row.labels["comparison"] == "full-kept"
    )
    sizes = {
        budget: "the size of the recovered evidence"
        if budget == RECOVERED
        else f"{100 * float(budget):g} % of the patches"
        for budget in budgets
    }
    spread = context.describe_spread("budget")
    tables = {
        size: context.make_table(
            pick_rows(rows, budget=budget), BUDGET_METRICS, f"At {size}", notes=[spread]
        )
        for budget, size in sizes.items()
    }
    figures = []
    if (curves := draw_budget_curves(finding, context.run.task_metric)) is not None:
        alt = "Task metric when patches are kept or removed, over the share of patches, by rule"
        figures.append(context.draw("keep_remove", curves, alt, KEEP_REMOVE))
    main = RECOVERED if RECOVERED in sizes else list(sizes)[-1]
    shown = _leave_out_smoothed(pick_rows(rows, budget=main))
    metrics = [
        name for name in BAR_METRICS if any(row.values.get(name) is not None for row in shown)
    ]
    if metrics:
        caption = f"Bars: judged by the run's own network; lines: {spread.removeprefix('± ')}"
        if pick_rows(shown, network="plain"):
            caption += " Diamonds: the same rule under the plain host."
        bars = draw_same_budget(shown, metrics, title=f"Every rule at {sizes[main]}")
        alt = "Sufficiency, necessity and precision of every rule at the same number of patches"
        figures.append(context.draw("same_budget", bars, alt, caption))
    return {"figures": figures, "tables": tables, "notes": finding.notes}


def _leave_out_smoothed(rows: Sequence[Row]) -> list[Row]:
    """Smoothed rivals are only in the tables; twice the lines and bars would hide the picture."""
    return [row for row in rows if not row.labels["rule"].endswith(SMOOTHED)]


def draw_budget_curves(finding: Finding, metric: str) -> Figure | None:
    """Keep and remove curves; None where no rule was measured at two sizes."""
    rows = _leave_out_smoothed(pick_rows(finding.rows, comparison="full-kept", network="wrapped"))
    recovered = pick_rows(rows, rule="gce_discrete", budget=RECOVERED)
    share = recovered[0].values.get("evidence_fraction") if recovered else None
    return draw_keep_and_remove(rows, metric=metric, evidence_share=share)


def draw_same_budget(rows: Sequence[Row], metrics: Sequence[str], *, title: str) -> Figure:
    """Every rule at one size: bars under the wrapped host, diamonds under the plain one."""
    rules = order_rules([row.labels["rule"] for row in rows])
    names = [style.readable_name(rule) for rule in rules]
    figure = style.new_figure(0.95 + 0.23 * len(rules), title)
    panels = style.add_panels(figure, len(metrics), sharey=True)
    for axes, name in zip(panels, metrics, strict=True):
        places = dict(zip(rules, style.label_rows(axes, names), strict=True))
        for row in rows:
            rule, value = row.labels["rule"], row.values.get(name)
            place, deviation = places[rule], row.deviations.get(name)
            if value is None:
                continue
            if row.labels["network"] == "plain":
                look: Any = {"markeredgecolor": style.INK, "markeredgewidth": 0.9}
                axes.plot(value, place, marker="D", color="white", markersize=3.8, **look)
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
    """The task metric from the kept patches alone, and what is lost without them, by share.

    None where no rule was measured at two sizes.
    """
    curves: dict[str, tuple[list[float], Any, Any]] = {}
    for rule in order_rules([row.labels["rule"] for row in rows]):
        points = [row for row in pick_rows(rows, rule=rule) if row.labels["budget"] != RECOVERED]
        shares = [100 * float(point.labels["budget"]) for point in points]
        kept, lost = ([point.values.get(name) for point in points] for name in (KEPT, LOST))
        if len(points) > 1 and None not in kept and None not in lost:
            curves[rule] = shares, kept, lost
    if not curves:
        return None
    figure = style.new_figure(3.5)
    keep, remove = style.add_panels(figure, 2)
    rivals = [rule for rule in curves if rule not in MAIN_RULES]
    # Rivals below, controls above them, ours on top.
    layers = (*CONTROLS, *reversed(FIRST_RULES))
    handles = {}
    for rule in sorted(curves, key=lambda rule: layers.index(rule) + 1 if rule in layers else 0):
        shares, kept, lost = curves[rule]
        look: Any = {
            "color": find_rule(rule).color,
            "linestyle": (0, (4, 2)) if rule in CONTROLS else "-",
            "linewidth": 1.9,
            "marker": "o",
            "markersize": 4.5,
        }
        if rule in rivals:
            marker = style.MARKERS[1 + rivals.index(rule) % (len(style.MARKERS) - 1)]
            look |= {"linewidth": 0.9, "marker": marker, "markersize": 3.4}
        handles[rule] = keep.plot(shares, kept, **look)[0]
        remove.plot(shares, lost, **look)
    full = next((row.values.get("task_metric") for row in rows), None)
    if full is not None:
        keep.axhline(full, color=style.INK, linewidth=0.8)
        look = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        keep.annotate("all patches", (0.01, full), xytext=(0, 2), ha="left", fontsize=7.5, **look)
    label = METRICS[metric].label
    ticks = sorted({share for shares, _, _ in curves.values() for share in shares})
    for axes, title in ((keep, f"Keep only: {label} ↑"), (remove, f"Remove: {label} lost ↑")):
        style.mark_shares(axes, ticks, title)
        if evidence_share is not None:
            look = {"color": style.EVIDENCE_COLOR, "linewidth": 0.8, "linestyle": (0, (1, 2))}
            axes.axvline(100 * evidence_share, **look)
    remove.axhline(0, color=style.MUTED, linewidth=0.7)
    names = [style.readable_name(rule) for rule in curves]
    figure.legend([handles[rule] for rule in curves], names, loc="outside lower left", ncols=4)
    return figure
