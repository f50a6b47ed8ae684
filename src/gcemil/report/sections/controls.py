"""The same number of patches for every rule: random below, the oracle above, rivals between."""

from __future__ import annotations

import numpy as np

from gcemil.findings import Finding, Row
from gcemil.report.figures.rules import RuleBar, RuleCurve, keep_and_remove, same_budget_bars
from gcemil.report.html import EMPTY, Markup, Section, element, joined, paragraph, table
from gcemil.report.sections.context import Context
from gcemil.report.sections.finding_tables import finding_table, in_order, rows_with
from gcemil.report.sections.snr import folded
from gcemil.rules import SMOOTHED, order_rules

RECOVERED = "recovered"
BUDGET_METRICS = (
    "evidence_sufficiency",
    "keep_only_drop",
    "full_kept_gap",
    "complement_degradation",
    "removal_gap",
    "precision",
    "recall",
    "region_coverage",
)
POSTHOC_METRICS = (
    "evidence_sufficiency", "full_kept_gap", "srg", "least_first_area", "complement_degradation", "removal_gap",
    "most_first_area", "average_precision", "runtime_ratio",
)  # fmt: skip
LABELS = {"rule": "Patches chosen by", "network": "Predicted by"}
RULE_ONLY = {"rule": "Patches chosen by"}


def section(context: Context) -> Section:
    parts = [
        paragraph(
            "A subset is only as good as what it beats. Every rule below picks the same number of patches of every bag, and "
            "the same network judges them: random patches are the floor, the annotated truth is a reference from above."
        )
    ]
    budget, posthoc = context.run.finding("budget"), context.run.finding("posthoc")
    parts.append(context.missing("budget") if budget is None else shown_budget(context, budget))
    parts.append(element("h3", "Explanations made after training"))
    parts.append(context.missing("posthoc") if posthoc is None else shown_posthoc(context, posthoc))
    return Section("controls", "Controls and rivals", joined(parts))


def shown_budget(context: Context, finding: Finding) -> Markup:
    rows = rows_with(finding.rows, comparison="full-kept")
    budgets = list(dict.fromkeys(row.labels["budget"] for row in rows))
    main = RECOVERED if RECOVERED in budgets else budgets[-1]
    parts = [curves_figure(context, rows, budgets), bars_figure(context, rows, main)]
    for budget in budgets:
        made = finding_table(
            in_order(rows_with(rows, budget=budget)),
            LABELS,
            BUDGET_METRICS,
            naming={"network": context.network},
            caption=f"At {size_words(budget)}",
            notes=[f"± standard deviation over {context.run.spread('budget')}."],
        )
        parts.append(folded(f"All rules at {size_words(budget)}", table(made)))
    parts += [paragraph(note, kind="note") for note in finding.notes]
    return joined(parts)


def size_words(budget: str) -> str:
    return (
        "the size of the recovered evidence"
        if budget == RECOVERED
        else f"{100 * float(budget):g} % of the patches"
    )


def curves_figure(context: Context, rows: list[Row], budgets: list[str]) -> Markup:
    """Keep and remove curves of the rules that are not smoothed, under the run's own network."""
    shares = [budget for budget in budgets if budget != RECOVERED]
    own = [row for row in rows_with(rows, network="wrapped") if not row.labels["rule"].endswith(SMOOTHED)]
    curves = []
    for rule in order_rules([row.labels["rule"] for row in own]):
        points = [row for share in shares for row in rows_with(own, rule=rule, budget=share)]
        kept, lost = (
            [point.values.get(name) for point in points]
            for name in ("evidence_sufficiency", "complement_degradation")
        )
        if len(points) > 1 and None not in kept and None not in lost:
            values = (np.array(one, dtype=float) for one in ([float(share) for share in shares], kept, lost))
            curves.append(RuleCurve(rule, *values))
    if not curves:
        return EMPTY
    full = next((row.values.get("task_metric") for row in own), None)
    recovered = rows_with(own, rule="gce_discrete", budget=RECOVERED)
    share = recovered[0].values.get("evidence_fraction") if recovered else None
    dotted = " Dotted: mean size of the recovered evidence." if share is not None else ""
    return context.album.figure(
        "keep_remove",
        keep_and_remove(curves, metric=context.run.task_metric, full=full, evidence_share=share),
        alt="Task metric when patches are kept or removed, over the share of patches, by rule",
        caption="Left: the metric from the chosen patches alone; a good rule reaches the line of all patches early. Right: what is "
        f"lost without them; a good rule loses much. Dashed: the two controls.{dotted}",
    )


def bars_figure(context: Context, rows: list[Row], budget: str) -> Markup:
    chosen = rows_with(rows, budget=budget)
    metrics = ["evidence_sufficiency", "complement_degradation", "precision"]
    metrics = [name for name in metrics if any(row.values.get(name) is not None for row in chosen)]
    if not metrics:
        return EMPTY
    # Smoothed rivals stand in the tables; twice the bars would hide the picture.
    drawn = [row for row in chosen if not row.labels["rule"].endswith(SMOOTHED)]
    bars = [RuleBar(row.labels["rule"], row.labels["network"], row.values, row.deviations) for row in drawn]
    diamonds = (
        "" if not rows_with(chosen, network="plain") else " Diamonds: the same rule under the plain host."
    )
    return context.album.figure(
        "same_budget",
        same_budget_bars(bars, metrics, title=f"Every rule at {size_words(budget)}"),
        alt="Sufficiency, necessity and precision of every rule at the same number of patches",
        caption=f"Bars: judged by the run's own network; lines: standard deviation over {context.run.spread('budget')}.{diamonds}",
    )


def shown_posthoc(context: Context, finding: Finding) -> Markup:
    """The run's own network in view, the plain host folded below."""
    rows = in_order(rows_with(finding.rows, comparison="full-kept"))
    notes = [
        "SRG is the area between the two flipping curves (0 for a random order); runtime counts passes of the host. The "
        "diagnostic keeps the areas of the curves, not their points.",
        *finding.notes,
    ]
    naming = {"network": context.network}
    own = finding_table(
        rows_with(rows, network="wrapped"), LABELS, POSTHOC_METRICS, naming=naming, notes=notes
    )
    plain = rows_with(rows, network="plain")
    parts = [table(own)]
    if plain:
        parts.append(
            folded(
                "The same methods on the plain host",
                table(finding_table(plain, RULE_ONLY, POSTHOC_METRICS, naming=naming)),
            )
        )
    return joined(parts)
