"""What a pathologist says: marks of `gcemil review` against evidence and attention."""

from __future__ import annotations

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.agreement import review_slide_table, review_table
from gcemil.findings import Finding
from gcemil.report.html import Section, collapse, join_markup, paragraph, render_table
from gcemil.report.sections.context import Context
from gcemil.runs.folder import RunFolder

EXPLAINED = (
    "A patch is judged when at least half of it lies under a reviewer's marks: positive under accept or missed, negative under "
    "reject. Every rule has as many patches of a slide as the evidence has there."
)


def render_section(context: Context) -> Section | None:
    """None where nobody reviewed the run."""
    finding = context.run.finding("review")
    if finding is None:
        return None
    parts = [paragraph(EXPLAINED), render_table(review_table(finding))]
    if _is_outdated(context, finding):
        parts.insert(
            0, paragraph("Made from another network than the one that lies here. Review again.", kind="note")
        )
    parts.append(collapse("Slide by slide", render_table(review_slide_table(finding))))
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
