"""What reviewers said of a run, or of every run of a results folder that was reviewed."""

from __future__ import annotations

from pathlib import Path

from gcemil.diagnostics.agreement import review_slide_table, review_table
from gcemil.errors import RunError
from gcemil.findings import read_finding
from gcemil.runs.folder import RunFolder
from gcemil.tables import Table

REVIEW_TABLE = "review"


def review_tables(folder: Path) -> list[Table]:
    """Over all slides and slide by slide; of a results folder the first kind alone, one table per reviewed run."""
    if RunFolder(folder).is_begun:
        path = RunFolder(folder).finding(REVIEW_TABLE)
        if not path.is_file():
            raise RunError(f"{folder} was not reviewed. Review it with 'gcemil review {folder} MARKS'.")
        finding = read_finding(path)
        return [review_table(finding), review_slide_table(finding)]
    runs = sorted(
        path.parent.parent for path in (folder / "runs").glob(f"**/diagnostics/{REVIEW_TABLE}.json")
    )
    if not runs:
        raise RunError(f"No run in {folder} was reviewed. Review one with 'gcemil review RUN MARKS'.")
    return [
        review_table(
            read_finding(RunFolder(run).finding(REVIEW_TABLE)), f"review {run.relative_to(folder / 'runs')}"
        )
        for run in runs
    ]
