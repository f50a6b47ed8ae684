"""Against the annotation: does the evidence lie where the truth is?"""

from __future__ import annotations

from markupsafe import Markup

from gcemil.report.html import Section, join_markup, paragraph, render_table
from gcemil.report.sections.context import Context
from gcemil.report.sections.finding_tables import RULE_HEADINGS, filter_rows, finding_table, order_rows

OVERLAP = ("precision", "recall", "average_precision", "region_coverage")
LOCALISATION = (
    "dice", "normal_specificity", "patch_specificity", "froc", "froc_official", "marked_share", "map_threshold",
)  # fmt: skip


def render_section(context: Context) -> Section | None:
    """None where the cohort has no truth."""
    snr = context.run.finding("snr")
    parts: list[Markup] = []
    known = (
        []
        if snr is None
        else [
            row
            for row in filter_rows(snr.rows, **{"class": "all", "comparison": "full-kept"})
            if row.values.get("precision") is not None
        ]
    )
    if known:
        made = finding_table(
            order_rows(known),
            RULE_HEADINGS,
            OVERLAP,
            naming={"network": context.name_network},
            grouped=False,
            caption="Chosen patches against annotated patches",
            notes=[
                f"± standard deviation over {context.run.spread('snr')}; slides without annotated patches do not count."
            ],
        )
        parts.append(render_table(made))
    has_truth = bool(known) or any((context.run.cohort / "truth").glob("*.h5"))
    finding = context.run.finding("localisation")
    if finding is not None:
        rows = [row for row in finding.rows if "froc" not in row.labels]
        made = finding_table(
            order_rows(rows),
            RULE_HEADINGS,
            LOCALISATION,
            naming={"network": context.name_network},
            notes=finding.notes,
            grouped=False,
            caption="Score maps as lesion detectors",
        )
        parts.append(
            render_table(made)
            if rows
            else join_markup(paragraph(note, kind="note") for note in finding.notes)
        )
    elif has_truth:
        context.list_unmeasured("localisation")
    return Section("truth", "Against the annotation", join_markup(parts)) if parts else None
