"""Which slides fail, and how: the audit's rates, and every failing slide by name."""

from __future__ import annotations

from markupsafe import Markup

from gcemil.findings import Finding
from gcemil.metrics import FAILURE_TYPES
from gcemil.report.html import EMPTY, Section, join_markup, render_element, render_rows
from gcemil.report.sections.context import Context, filter_rows, order_rows
from gcemil.tables import NOT_MEASURED


def render_section(context: Context, places: dict[str, str]) -> Section:
    """`places` leads from a bag to its part of the page."""
    finding = context.find("failures")
    return Section(
        "failures", "Failures", EMPTY if finding is None else _render_finding(context, finding, places)
    )


def _render_finding(context: Context, finding: Finding, places: dict[str, str]) -> Markup:
    rates = context.render_rows(
        order_rows(filter_rows(finding.rows, **{"class": "all"})),
        [f"{kind}_share" for kind in FAILURE_TYPES],
        grouped=False,
        caption=f"Share of {context.unit}s that fail",
        notes=[
            "The thresholds are ours: the paper states none, so its rates are no yardstick; the control rows are. "
            + _describe_thresholds(finding),
            *finding.notes,
        ],
    )
    return join_markup([rates, _render_failing_slides(context, places)])


def _render_failing_slides(context: Context, places: dict[str, str]) -> Markup:
    """Every type with the slides that show it."""
    own = context.run.own_slides("failures")
    rows = []
    for kind, title in FAILURE_TYPES.items():
        failing = [str(record["bag_id"]) for record in own if record[kind]]
        known = sum(record[kind] is not None for record in own)
        names = render_element("links", [(bag, places.get(bag)) for bag in failing])
        count = f"{len(failing)} of {known}" if known else NOT_MEASURED.text
        rows.append((title, count, names if failing else ("none" if known else "not known")))
    headings = ("Failure", "Count", f"{context.unit.capitalize()}s")
    return render_rows(headings, rows, numeric={"Count"}, caption="By name") if own else EMPTY


def _describe_thresholds(finding: Finding) -> str:
    """The lines the audit drew."""
    found = finding.settings
    words = {
        "ambiguity": "two classes within {}",
        "artifact_share": "artifacts from {} of the evidence",
        "sufficiency_tolerance": "sufficient to {}",
        "necessity_tolerance": "necessary from {}",
        "severe_count": "severe from {} failures",
    }
    return (
        "Lines: " + "; ".join(text.format(found[name]) for name, text in words.items() if name in found) + "."
    )


def list_failures(context: Context) -> dict[str, list[str]]:
    """The failures of every bag, in words."""
    return {
        str(record["bag_id"]): [FAILURE_TYPES[kind] for kind in FAILURE_TYPES if record[kind]]
        for record in context.run.own_slides("failures")
    }
