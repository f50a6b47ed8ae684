"""Sections that are tables of findings.

truth        does the evidence lie on what was annotated?
review       does it lie on what a reviewer marked?
robustness   one table each for the diagnostics of METRICS_OF
failures     which bags fail, and how
cost         time and memory relative to one pass of the host
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.agreement import review_slide_table, review_table
from gcemil.diagnostics.table import QUESTIONS
from gcemil.findings import Finding, Row
from gcemil.metrics import FAILURE_TYPES
from gcemil.report.context import RULE_HEADINGS, Context, pick_rows
from gcemil.report.html import Section, render_section
from gcemil.tables import NOT_MEASURED, Table

OVERLAP = ("precision", "recall", "average_precision", "region_coverage")
LOCALISATION = (
    "dice", "normal_specificity", "patch_specificity", "froc", "froc_official", "marked_share",
    "map_threshold",
)  # fmt: skip
STABILITY = ("jaccard", "prediction_flip", "output_gap", "cd_gap", "full_kept_gap")
METRICS_OF = {
    "subsets": (
        "subsets_per_slide", "two_subsets_share", "three_subsets_share", "kept_output_drop",
        "remove_union_1", "remove_union_2", "remove_union_3", "remove_random", "subset_patches",
    ),
    "regions": (
        "regions_per_slide", "region_patches", "region_sufficient_share", "region_necessary_share",
        "regions_reached_share", "regions_needed",
    ),
    "stability": STABILITY,
    "guarantee": (
        "promised_rate", "realised_rate", "realised_floor", "certified_fraction", "certified_share",
        "fallback_share", "guarded_fraction", "calibration_bags",
    ),
    "adaptive": (
        "evidence_fraction", "reached_share", "capped_share", "evidence_sufficiency",
        "keep_only_drop", "full_kept_gap", "complement_degradation", "precision",
    ),
    "bounds": ("utility_share", "greedy_share", "greedy_factor", "curvature"),
    "sweep": (
        "evidence_fraction", "evidence_sufficiency", "keep_only_drop", "complement_degradation",
        "cd_gap", "precision", "recall", "repaired_patches",
    ),
    "sanity": ("control_value", "control_beside", "control_passed"),
}  # fmt: skip
COST = (
    "aggregation_time", "explained_time", "peak_memory", "patch_ratio", "relative_utility",
    "extraction_time", "end_to_end_time",
)  # fmt: skip
OF_WRAPPED_RUNS = ("bounds", "sweep")
"""Diagnostics of gates and coverage, which a plain host does not have."""
HEADINGS = {**RULE_HEADINGS, "k": "k", "perturbation": "What changed", "method": "Method"}
BLOCKS = ("k", "perturbation", "method", "comparison")
"""Lines compete only where this label is the same."""
THRESHOLDS = {
    "ambiguity": "two classes within {}",
    "artifact_share": "artifacts from {} of the evidence",
    "sufficiency_tolerance": "sufficient to {}",
    "necessity_tolerance": "necessary from {}",
    "severe_count": "severe from {} failures",
}
"""Settings of the failure audit in words."""


def render_truth(context: Context) -> Section | None:
    """None where the cohort has no truth."""
    snr, localisation = context.run.finding("snr"), context.run.finding("localisation")
    labels = {"class": "all", "comparison": "full-kept"}
    overlaps = [
        row
        for row in ([] if snr is None else pick_rows(snr.rows, **labels))
        if row.values.get("precision") is not None
    ]
    tables: list[Table] = []
    notes: tuple[str, ...] = ()
    if overlaps:
        spread = context.describe_spread("snr").removesuffix(".")
        note = f"{spread}; slides without annotated patches do not count."
        caption = "Chosen patches against annotated patches"
        tables.append(context.make_table(overlaps, OVERLAP, caption, grouped=False, notes=[note]))
    if localisation is not None:
        rows = [row for row in localisation.rows if "froc" not in row.labels]
        if rows:
            tables.append(make_detector_table(context, rows, localisation.notes))
        else:
            notes = localisation.notes
    elif overlaps or any((context.run.cohort / "truth").glob("*.h5")):
        context.find("localisation")
    if not tables and not notes:
        return None
    return render_section("truth", "Against the annotation", tables=tables, notes=notes)


def make_detector_table(context: Context, rows: Sequence[Row], notes: Sequence[str]) -> Table:
    """Score maps as lesion detectors; no FROC is best: a map of all tissue has the highest."""
    caption = "Score maps as lesion detectors"
    table = context.make_table(pick_rows(rows), LOCALISATION, caption, grouped=False, notes=notes)
    columns = (
        replace(one, better="neither") if one.key == "froc" else one for one in table.columns
    )
    return replace(table, columns=tuple(columns))


def render_review(context: Context) -> Section | None:
    """None where nobody reviewed the run."""
    finding = context.run.finding("review")
    if finding is None:
        return None
    used = finding.provenance.get("inputs", {})
    checkpoints = {f"fold_{fold.number}": fold.files.checkpoint for fold in context.run.folds}
    return render_section(
        "review",
        "A reviewer's marks",
        is_outdated=any(
            name in used and path.is_file() and used[name] != content_hash(path)
            for name, path in checkpoints.items()
        ),
        table=review_table(finding),
        slides=review_slide_table(finding),
    )


def render_robustness(context: Context) -> Section | None:
    parts = {
        QUESTIONS[name]: _describe_finding(context, finding)
        for name in METRICS_OF
        if context.run.is_wrapped or name not in OF_WRAPPED_RUNS
        if (finding := context.find(name)) is not None
    }
    title = "Is there one answer, and does it stay?"
    return render_section("robustness", title, parts=parts) if parts else None


def _describe_finding(context: Context, finding: Finding) -> dict[str, Any]:
    """The lines of the run itself in view, all lines folded below; only notes without lines."""
    rows = sort_rows(finding)
    if not rows:
        return {"table": None, "all": None, "count": 0, "notes": finding.notes}
    names = dict.fromkeys(label for row in finding.rows for label in row.labels)
    first = [name for name in ("rule", "network", "perturbation", "method", "k") if name in names]
    plain = ("k", "threshold", "coverage_target", "perturbation", "control")
    options: Any = {
        "labels": {name: HEADINGS.get(name, name.replace("_", " ")) for name in [*first, *names]},
        "naming": dict.fromkeys(plain, str),
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
    """By what was changed or tried, and our rules first within each."""
    rows = list(finding.rows)
    if not rows or not {"rule", "network"} <= rows[0].labels.keys():
        return rows
    first = next((name for name in BLOCKS if name in rows[0].labels), "rule")
    ranks = list(dict.fromkeys(row.labels.get(first, "") for row in rows))
    return sorted(pick_rows(rows), key=lambda row: ranks.index(row.labels.get(first, "")))


def choose_main_rows(context: Context, name: str, rows: Sequence[Row]) -> list[Row]:
    """What a first reader needs: the run's own network, one size, the run's own threshold."""
    if name == "adaptive":
        return pick_rows(rows, comparison="full-kept")
    own = [row for row in rows if row.labels.get("network", "wrapped") == "wrapped"]
    if name == "subsets":
        sizes = list(dict.fromkeys(row.labels["k"] for row in own))
        own = pick_rows(own, k=sizes[len(sizes) // 2])
    if name == "sweep":
        threshold = f"{context.run.evidence.selection_threshold:g}"
        own = pick_rows(own, rule="evidence", threshold=threshold)
    return own or list(rows)


def render_failures(context: Context, places: Mapping[str, str]) -> Section | None:
    """`places` links a bag to its part of the page."""
    finding = context.find("failures")
    if finding is None:
        return None
    records = context.run.own_slides("failures")
    kinds = []
    for kind, title in FAILURE_TYPES.items() if records else ():
        failing = [str(record["bag_id"]) for record in records if record[kind]]
        known = sum(record[kind] is not None for record in records)
        count = f"{len(failing)} of {known}" if known else NOT_MEASURED.text
        links = [(bag, places.get(bag)) for bag in failing]
        kinds.append((title, count, links, "none" if known else "not known"))
    settings = finding.settings
    limits = [words.format(settings[key]) for key, words in THRESHOLDS.items() if key in settings]
    rates = context.make_table(
        pick_rows(finding.rows, **{"class": "all"}),
        [f"{kind}_share" for kind in FAILURE_TYPES],
        f"Share of {context.run.bag_unit}s that fail",
        grouped=False,
        notes=[
            "The thresholds are ours: the paper states none, so compare with the control rows and "
            f"not with its rates. Limits: {'; '.join(limits)}.",
            *finding.notes,
        ],
    )
    unit = context.run.bag_unit
    return render_section("failures", "Failures", rates=rates, kinds=kinds, unit=unit)


def render_cost(context: Context) -> Section | None:
    finding = context.find("cost")
    if finding is None:
        return None
    settings = finding.settings
    facts = (
        f"Medians of {settings.get('repeats')} interleaved rounds on {settings.get('timed_bags')} "
        f"bags per fold, {settings.get('threads')} thread; {context.describe_spread('cost')}"
    )
    table = context.make_table(
        # Lines that name an encoder are computed from these; tables print them.
        [row for row in finding.rows if "encoder" not in row.labels],
        COST,
        labels={"mode": "Prediction from", "network": "By", "timing": "Timing"},
        naming={"timing": str},
        grouped=False,
        notes=[facts, *finding.notes],
    )
    return render_section("cost", "Cost", table=table)
