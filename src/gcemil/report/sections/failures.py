"""Which slides fail, and how: the audit's rates, and every failing slide by name."""

from __future__ import annotations

from gcemil.findings import Finding
from gcemil.report.html import EMPTY, Cell, Column, Line, Markup, Section, Table, joined, link, table
from gcemil.report.sections.context import Context
from gcemil.report.sections.controls import LABELS
from gcemil.report.sections.finding_tables import NONE, finding_table, in_order, rows_with

TYPES = {
    "case_failure": "Case failure",
    "artifact_evidence": "Artifact evidence",
    "low_sufficiency": "Low sufficiency",
    "low_necessity": "Low necessity",
    "semantic_mismatch": "Semantic mismatch",
    "severe_failure": "Severe failure",
}


def section(context: Context, places: dict[str, str]) -> Section:
    """`places` leads from a bag to its part of the page."""
    finding = context.run.finding("failures")
    body = context.missing("failures") if finding is None else shown(context, finding, places)
    return Section("failures", "Failures", body)


def shown(context: Context, finding: Finding, places: dict[str, str]) -> Markup:
    rates = finding_table(
        in_order(rows_with(finding.rows, **{"class": "all"})),
        LABELS,
        [f"{kind}_share" for kind in TYPES],
        naming={"network": context.network},
        grouped=False,
        caption=f"Share of {context.unit}s that fail",
        notes=[
            "The thresholds are ours: the paper states none, so its rates are no yardstick; the control rows are. "
            + thresholds(finding),
            *finding.notes,
        ],
    )
    return joined([table(rates), named(context, places)])


def named(context: Context, places: dict[str, str]) -> Markup:
    """Every type with the slides that show it."""
    own = [
        record
        for record in context.run.slides("failures")
        if (record["rule"], record["network"]) == (context.run.rule, "wrapped")
    ]
    lines = []
    for kind, title in TYPES.items():
        failing = [str(record["bag_id"]) for record in own if record[kind]]
        known = sum(record[kind] is not None for record in own)
        names = joined(
            part
            for number, bag in enumerate(failing)
            for part in (", " if number else "", link(places[bag], bag) if bag in places else bag)
        )
        shown_names = names if failing else ("not known" if not known else "none")
        lines.append(
            Line(
                (
                    Cell(title),
                    Cell(f"{len(failing)} of {known}" if known else NONE, is_number=True),
                    Cell(shown_names),
                )
            )
        )
    columns = (
        Column("Failure", is_number=False),
        Column("Count"),
        Column(f"{context.unit.capitalize()}s", is_number=False),
    )
    return table(Table(columns, tuple(lines), caption="By name")) if own else EMPTY


def thresholds(finding: Finding) -> str:
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


def own_failures(context: Context) -> dict[str, list[str]]:
    """The failures of every bag, in words."""
    return {
        str(record["bag_id"]): [TYPES[kind] for kind in TYPES if record[kind]]
        for record in context.run.slides("failures")
        if (record["rule"], record["network"]) == (context.run.rule, "wrapped")
    }
