"""Does the evidence lie where the truth is: against the annotation of a cohort, and against the marks of a reviewer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.agreement import review_slide_table, review_table
from gcemil.findings import Row
from gcemil.report.html import Section, render_section
from gcemil.report.sections.context import Context, filter_rows, order_rows
from gcemil.tables import Table

OVERLAP = ("precision", "recall", "average_precision", "region_coverage")
LOCALISATION = (
    "dice", "normal_specificity", "patch_specificity", "froc", "froc_official", "marked_share", "map_threshold",
)  # fmt: skip


def render_truth(context: Context) -> Section | None:
    """None where the cohort has no truth."""
    snr, localisation = context.run.finding("snr"), context.run.finding("localisation")
    judged = (
        [] if snr is None else filter_rows(snr.rows, **{"class": "all", "comparison": "full-kept"})
    )
    overlaps = [row for row in judged if row.values.get("precision") is not None]
    tables = []
    if overlaps:
        spread = context.describe_spread("snr").removesuffix(".")
        tables.append(
            context.make_table(
                order_rows(overlaps),
                OVERLAP,
                grouped=False,
                caption="Chosen patches against annotated patches",
                notes=[f"{spread}; slides without annotated patches do not count."],
            )
        )
    notes: tuple[str, ...] = ()
    if localisation is not None:
        rows = [row for row in localisation.rows if "froc" not in row.labels]
        if rows:
            tables.append(make_detector_table(context, rows, localisation.notes))
        else:
            notes = localisation.notes
    elif overlaps or any((context.run.cohort / "truth").glob("*.h5")):
        context.list_unmeasured("localisation")
    if not tables and not notes:
        return None
    return render_section("truth", "Against the annotation", tables=tables, notes=notes)


def make_detector_table(context: Context, rows: Sequence[Row], notes: Sequence[str]) -> Table:
    """Score maps as lesion detectors; nothing is best by FROC, which a map that marks all tissue reaches in full."""
    table = context.make_table(
        order_rows(rows),
        LOCALISATION,
        grouped=False,
        caption="Score maps as lesion detectors",
        notes=notes,
    )
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
