"""Which slides fail, and how: the audit's rates, and every failing slide by name."""

from __future__ import annotations

from gcemil.metrics import FAILURE_TYPES
from gcemil.report.html import Section, render_section
from gcemil.report.sections.context import Context, filter_rows, order_rows
from gcemil.tables import NOT_MEASURED

THRESHOLDS = {
    "ambiguity": "two classes within {}",
    "artifact_share": "artifacts from {} of the evidence",
    "sufficiency_tolerance": "sufficient to {}",
    "necessity_tolerance": "necessary from {}",
    "severe_count": "severe from {} failures",
}
"""Settings of the audit in words."""


def render_failures(context: Context, places: dict[str, str]) -> Section | None:
    """`places` leads from a bag to its part of the page."""
    finding = context.find("failures")
    if finding is None:
        return None
    records = context.run.own_slides("failures")
    kinds = []
    for kind, title in FAILURE_TYPES.items():
        failing = [str(record["bag_id"]) for record in records if record[kind]]
        known = sum(record[kind] is not None for record in records)
        count = f"{len(failing)} of {known}" if known else NOT_MEASURED.text
        links = [(bag, places.get(bag)) for bag in failing]
        kinds.append((title, count, links, "none" if known else "not known"))
    limits = [
        words.format(finding.settings[name])
        for name, words in THRESHOLDS.items()
        if name in finding.settings
    ]
    rates = context.make_table(
        order_rows(filter_rows(finding.rows, **{"class": "all"})),
        [f"{kind}_share" for kind in FAILURE_TYPES],
        grouped=False,
        caption=f"Share of {context.run.bag_unit}s that fail",
        notes=[
            "The thresholds are ours: the paper states none, so compare with the control rows and not with its rates. "
            f"Limits: {'; '.join(limits)}.",
            *finding.notes,
        ],
    )
    return render_section(
        "failures",
        "Failures",
        rates=rates,
        kinds=kinds if records else [],
        unit=context.run.bag_unit,
    )
