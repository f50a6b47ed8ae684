"""What the evidence costs to find, and what it saves once found."""

from __future__ import annotations

from gcemil.findings import Finding
from gcemil.report.html import Markup, Section, joined, paragraph, table
from gcemil.report.sections.context import Context
from gcemil.report.sections.finding_tables import finding_table

METRICS = (
    "aggregation_time",
    "explained_time",
    "peak_memory",
    "patch_ratio",
    "relative_utility",
    "extraction_time",
    "end_to_end_time",
)
LABELS = {"mode": "Prediction from", "network": "By", "timing": "Timing"}


def section(context: Context) -> Section:
    finding = context.run.finding("cost")
    return Section("cost", "Cost", context.missing("cost") if finding is None else shown(context, finding))


def shown(context: Context, finding: Finding) -> Markup:
    settings = finding.settings
    facts = (
        f"Medians of {settings.get('repeats')} interleaved rounds on {settings.get('timed_bags')} bags per fold, "
        f"{settings.get('threads')} thread; ± standard deviation over {context.run.spread('cost')}."
    )
    made = finding_table(
        finding.rows, LABELS, METRICS, naming={"network": context.network, "timing": str}, grouped=False,
        notes=[facts, *finding.notes],
    )  # fmt: skip
    return joined(
        [
            paragraph(
                "Everything is relative to one pass of the host over all patches, which is 1. Aggregation: the subset is known. "
                "Explained: finding it counts too."
            ),
            table(made),
        ]
    )
