"""Which slides fail, and how: the audit's rates, and every failing slide by name."""

from __future__ import annotations

from gcemil.findings import Finding
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
    own = context.run.own_slides("failures")
    kinds = []
    for kind, title in FAILURE_TYPES.items():
        failing = [str(record["bag_id"]) for record in own if record[kind]]
        known = sum(record[kind] is not None for record in own)
        count = f"{len(failing)} of {known}" if known else NOT_MEASURED.text
        links = [(bag, places.get(bag)) for bag in failing]
        kinds.append((title, count, links, "none" if known else "not known"))
    rates = context.make_table(
        order_rows(filter_rows(finding.rows, **{"class": "all"})),
        [f"{kind}_share" for kind in FAILURE_TYPES],
        grouped=False,
        caption=f"Share of {context.unit}s that fail",
        notes=[_describe_thresholds(finding), *finding.notes],
    )
    return render_section("failures", "Failures", rates=rates, kinds=kinds if own else [], unit=context.unit)


def _describe_thresholds(finding: Finding) -> str:
    """What counts as a failure, and whose limits these are."""
    limits = [
        text.format(finding.settings[name]) for name, text in THRESHOLDS.items() if name in finding.settings
    ]
    return (
        "The thresholds are ours: the paper states none, so compare with the control rows and not with its rates. "
        f"Limits: {'; '.join(limits)}."
    )


def list_failures(context: Context) -> dict[str, list[str]]:
    """The failures of every bag, in words."""
    return {
        str(record["bag_id"]): [FAILURE_TYPES[kind] for kind in FAILURE_TYPES if record[kind]]
        for record in context.run.own_slides("failures")
    }
