"""Diagnostics that are a table each: is there one answer, does it stay, what can be promised, and what does it cost?

subsets, regions, stability, guarantee, adaptive, sweep and sanity make one section, cost another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gcemil.diagnostics.table import QUESTIONS
from gcemil.findings import Finding, Row
from gcemil.report.html import Section, render_section
from gcemil.report.sections.context import RULE_HEADINGS, Context, filter_rows, order_rows

SUBSETS = (
    "subsets_per_slide", "two_subsets_share", "three_subsets_share", "kept_output_drop", "remove_union_1",
    "remove_union_2", "remove_union_3", "remove_random", "subset_patches",
)  # fmt: skip
REGIONS = (
    "regions_per_slide", "region_patches", "region_sufficient_share", "region_necessary_share",
    "regions_reached_share", "regions_needed",
)  # fmt: skip
STABILITY = ("jaccard", "prediction_flip", "output_gap", "cd_gap", "full_kept_gap")
GUARANTEE = (
    "promised_rate", "realised_rate", "realised_floor", "certified_fraction", "certified_share",
    "fallback_share", "guarded_fraction", "calibration_bags",
)  # fmt: skip
SWEEP = (
    "evidence_fraction", "evidence_sufficiency", "keep_only_drop", "complement_degradation", "cd_gap",
    "precision", "recall", "repaired_patches",
)  # fmt: skip
ADAPTIVE = (
    "evidence_fraction", "reached_share", "capped_share", "evidence_sufficiency", "keep_only_drop",
    "full_kept_gap", "complement_degradation", "precision",
)  # fmt: skip
METRICS_OF = {
    "subsets": SUBSETS,
    "regions": REGIONS,
    "stability": STABILITY,
    "guarantee": GUARANTEE,
    "adaptive": ADAPTIVE,
    "bounds": ("utility_share", "greedy_share", "greedy_factor", "curvature"),
    "sweep": SWEEP,
    "sanity": ("control_value", "control_beside", "control_passed"),
}
OF_WRAPPED_RUNS = ("bounds", "sweep")
"""Diagnostics of gates and coverage, which a plain host does not have."""
HEADINGS = {**RULE_HEADINGS, "k": "k", "perturbation": "What changed", "method": "Method"}
ORIGINAL: tuple[str, ...] = ("k", "threshold", "coverage_target", "perturbation", "control")
"""Labels shown as they stand."""
BLOCKS = ("k", "perturbation", "method", "comparison")
"""Lines compete only where this label is the same."""


COST_METRICS = (
    "aggregation_time", "explained_time", "peak_memory", "patch_ratio", "relative_utility",
    "extraction_time", "end_to_end_time",
)  # fmt: skip
COST_LABELS = {"mode": "Prediction from", "network": "By", "timing": "Timing"}


def render_robustness(context: Context) -> Section | None:
    """One table per diagnostic of METRICS_OF."""
    parts = {
        QUESTIONS[name]: _describe_finding(context, finding)
        for name in METRICS_OF
        if context.run.is_wrapped or name not in OF_WRAPPED_RUNS
        if (finding := context.find(name)) is not None
    }
    title = "Is there one answer, and does it stay?"
    return render_section("robustness", title, parts=parts) if parts else None


def _describe_finding(context: Context, finding: Finding) -> dict[str, Any]:
    """The lines of the run itself in view, all lines folded below; only notes where there are no lines."""
    rows = sort_rows(finding)
    if not rows:
        return {"table": None, "all": None, "count": 0, "notes": finding.notes}
    names = list(dict.fromkeys(label for row in finding.rows for label in row.labels))
    first = [name for name in ("rule", "network", "perturbation", "method", "k") if name in names]
    options: dict[str, Any] = {
        "labels": {
            name: HEADINGS.get(name, name.replace("_", " "))
            for name in dict.fromkeys([*first, *names])
        },
        "naming": dict.fromkeys(ORIGINAL, str),
        "grouped": False,
        "within": next((name for name in BLOCKS if name in names), ""),
    }
    metrics, main = METRICS_OF[finding.name], choose_main_rows(context, finding.name, rows)
    notes = [context.describe_spread(finding.name), *finding.notes]
    return {
        "table": context.make_table(main, metrics, notes=notes, **options),
        "all": context.make_table(rows, metrics, **options) if len(rows) > len(main) else None,
        "count": len(rows),
        "notes": (),
    }


def sort_rows(finding: Finding) -> list[Row]:
    """By what was changed or tried, and ours first within each."""
    rows = list(finding.rows)
    if not rows or not {"rule", "network"} <= rows[0].labels.keys():
        return rows
    first = next((name for name in BLOCKS if name in rows[0].labels), "rule")
    ranks = list(dict.fromkeys(row.labels.get(first, "") for row in rows))
    return sorted(order_rows(rows), key=lambda row: ranks.index(row.labels.get(first, "")))


def choose_main_rows(context: Context, name: str, rows: Sequence[Row]) -> list[Row]:
    """What a first reader needs: the run's own network, one size, the run's own threshold."""
    own = [row for row in rows if row.labels.get("network", "wrapped") == "wrapped"]
    if name == "subsets":
        sizes = list(dict.fromkeys(row.labels["k"] for row in own))
        own = filter_rows(own, k=sizes[len(sizes) // 2])
    if name == "adaptive":
        return filter_rows(rows, comparison="full-kept")
    if name == "sweep":
        threshold = f"{context.run.evidence.selection_threshold:g}"
        own = [
            row
            for row in own
            if row.labels["rule"] == "evidence" and row.labels["threshold"] == threshold
        ]
    return own or list(rows)


def render_cost(context: Context) -> Section | None:
    """Time and memory relative to one pass of the host."""
    finding = context.find("cost")
    if finding is None:
        return None
    settings = finding.settings
    facts = (
        f"Medians of {settings.get('repeats')} interleaved rounds on {settings.get('timed_bags')} bags per fold, "
        f"{settings.get('threads')} thread; {context.describe_spread('cost')}"
    )
    # Lines that name an encoder are computed from these; tables print them.
    rows = [row for row in finding.rows if "encoder" not in row.labels]
    table = context.make_table(
        rows, COST_METRICS, labels=COST_LABELS, naming={"timing": str}, grouped=False,
        notes=[facts, *finding.notes],
    )  # fmt: skip
    return render_section("cost", "Cost", table=table)
