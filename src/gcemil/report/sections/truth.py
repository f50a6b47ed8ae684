"""Does the evidence lie where the truth is: against the annotation of a cohort, and against the marks of a reviewer?"""

from __future__ import annotations

from markupsafe import Markup

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.agreement import review_slide_table, review_table
from gcemil.findings import Finding
from gcemil.report.html import Section, fold, join_markup, paragraph, render_table
from gcemil.report.sections.context import Context, filter_rows, order_rows
from gcemil.runs.folder import RunFolder

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
        table = context.render_rows(
            order_rows(known),
            OVERLAP,
            grouped=False,
            caption="Chosen patches against annotated patches",
            notes=[
                f"± standard deviation over {context.run.spread('snr')}; slides without annotated patches do not count."
            ],
        )
        parts.append(table)
    has_truth = bool(known) or any((context.run.cohort / "truth").glob("*.h5"))
    finding = context.run.finding("localisation")
    if finding is not None:
        rows = [row for row in finding.rows if "froc" not in row.labels]
        table = context.render_rows(
            order_rows(rows),
            LOCALISATION,
            notes=finding.notes,
            grouped=False,
            caption="Score maps as lesion detectors",
        )
        parts.append(table if rows else join_markup(paragraph(note, "note") for note in finding.notes))
    elif has_truth:
        context.find("localisation")
    return Section("truth", "Against the annotation", join_markup(parts)) if parts else None


JUDGED_PATCHES = (
    "A patch is judged when at least half of it lies under a reviewer's marks: positive under accept or missed, negative under "
    "reject. Every rule has as many patches of a slide as the evidence has there."
)


def render_review_section(context: Context) -> Section | None:
    """None where nobody reviewed the run."""
    finding = context.run.finding("review")
    if finding is None:
        return None
    parts = [paragraph(JUDGED_PATCHES), render_table(review_table(finding))]
    if _is_outdated(context, finding):
        parts.insert(
            0, paragraph("Made from another network than the one that lies here. Review again.", "note")
        )
    parts.append(fold("Slide by slide", render_table(review_slide_table(finding))))
    return Section("review", "A reviewer's marks", join_markup(parts))


def _is_outdated(context: Context, finding: Finding) -> bool:
    """Whether a fold has been trained again since."""
    run = RunFolder(context.run.folder)
    checkpoints = {f"fold_{fold.number}": run.fold(fold.number).checkpoint for fold in context.run.folds}
    used = finding.provenance.get("inputs", {})
    return any(
        name in used and path.is_file() and used[name] != content_hash(path)
        for name, path in checkpoints.items()
    )
