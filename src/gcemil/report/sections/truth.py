"""Against the annotation: does the evidence lie where the truth is?"""

from __future__ import annotations

from gcemil.report.html import Markup, Section, joined, paragraph, table
from gcemil.report.sections.context import Context
from gcemil.report.sections.controls import LABELS
from gcemil.report.sections.finding_tables import finding_table, in_order, rows_with

OVERLAP = ("precision", "recall", "average_precision", "region_coverage")
LOCALISATION = (
    "dice", "normal_specificity", "patch_specificity", "froc", "froc_official", "marked_share", "map_threshold",
)  # fmt: skip


def section(context: Context) -> Section | None:
    """None where the cohort has no truth."""
    snr = context.run.finding("snr")
    parts: list[Markup] = []
    known = (
        []
        if snr is None
        else [
            row
            for row in rows_with(snr.rows, **{"class": "all", "comparison": "full-kept"})
            if row.values.get("precision") is not None
        ]
    )
    if known:
        made = finding_table(
            in_order(known),
            LABELS,
            OVERLAP,
            naming={"network": context.network},
            grouped=False,
            caption="Chosen patches against annotated patches",
            notes=[
                f"± standard deviation over {context.run.spread('snr')}; slides without annotated patches do not count."
            ],
        )
        parts.append(table(made))
    has_truth = bool(known) or any((context.run.cohort / "truth").glob("*.h5"))
    finding = context.run.finding("localisation")
    if finding is not None:
        rows = [row for row in finding.rows if "froc" not in row.labels]
        made = finding_table(
            in_order(rows),
            LABELS,
            LOCALISATION,
            naming={"network": context.network},
            notes=finding.notes,
            grouped=False,
            caption="Score maps as lesion detectors",
        )
        parts.append(table(made) if rows else joined(paragraph(note, kind="note") for note in finding.notes))
    elif has_truth:
        parts.append(context.missing("localisation"))
    return Section("truth", "Against the annotation", joined(parts)) if parts else None
