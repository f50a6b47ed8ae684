"""gcemil review: a pathologist's marks against the evidence of a run, and against attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.options import TRUST_HOST, seed_option

if TYPE_CHECKING:
    from gcemil.tables import Table


def review(
    run: Path | None = typer.Argument(None, help="A run folder."),
    marks: list[Path] = typer.Argument(
        None,
        help="<slide>.geojson as QuPath exports it, folders of such files, or reviews that the viewer saved. "
        "By default the reviews that the viewer saved in the run.",
    ),
    against: Path | None = typer.Option(
        None, help="The run of the plain host on the same cohort: its attention is judged too."
    ),
    seed: int = seed_option("the bootstrap and the random patches"),
    resamples: int = typer.Option(2000, min=1, help="Draws of the bootstrap."),
    script: Path | None = typer.Option(
        None, help="Write the QuPath script that shows evidence and exports marks to this file, and leave."
    ),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print the finding as JSON."),
) -> None:
    """Ask how far a reviewer agrees with the evidence, and with attention at the same number of patches.

    Marks are regions or points of the class accept, reject or missed. A patch is judged when marks cover at least half of
    it: positive under accept or missed, negative under reject. Precision, recall and Cohen's kappa come with bootstrap
    intervals, over all slides and slide by slide. Slides that no trained fold tests are listed, and the command then exits with 1.

    Example: gcemil review runs/bracs_abmil reviews/
    """
    from gcemil.cli.console import print_json, say
    from gcemil.diagnostics.agreement import review_slide_table, review_table
    from gcemil.diagnostics.review import describe_review, review_run
    from gcemil.errors import UsageError
    from gcemil.files import without_nan, write_text
    from gcemil.resources import read_shipped_text

    if script is not None:
        write_text(script, read_shipped_text("qupath", "gcemil_review.groovy"))
        say(f"wrote {script}; in QuPath: Automate > Script editor, open it, Run")
        return
    if run is None:
        raise UsageError(
            "Name the run that was reviewed: gcemil review RUN MARKS. For the QuPath script: --script FILE."
        )
    found = review_run(run, marks or (), against=against, seed=seed, resamples=resamples)
    if as_json:
        print_json(without_nan(describe_review(found)))
    else:
        print_review(review_table(found.finding))
        print_review(review_slide_table(found.finding))
        for note in found.finding.notes:
            say(f"note: {note}")
        say(f"wrote {run / 'diagnostics' / 'review.json'}")
    raise typer.Exit(1 if found.left_out else 0)


def print_review(table: Table) -> None:
    """One table of a review."""
    from gcemil.cli.console import print_table

    columns = [f"{column.header} {column.arrow}".strip() for column in table.columns]
    rows = [(*line.row_labels, *(cell.text for cell in line.cells)) for line in table.lines]
    print_table(table.title, (*table.row_labels, *columns), rows)
