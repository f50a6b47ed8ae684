"""gcemil tables: every table of the paper from a results folder, the paper's figures beside ours; reviews of runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer


class Format(StrEnum):
    """Names of tables.FORMATS."""

    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def tables(
    results: Path = typer.Argument(
        help="A results folder of 'gcemil benchmark', or one with a figures.json of it; a run folder for its review."
    ),
    table: list[str] = typer.Option(
        [],
        "--table",
        help="A table by name, headline or review; may be repeated, all by default. An unknown name lists the known ones.",
    ),
    export: Path | None = typer.Option(
        None, help="Write figures.json into this folder: everything the tables read, without the runs."
    ),
    page: Path | None = typer.Option(
        None, help="Write a page instead: table by table the paper, the results and a verdict."
    ),
    form: Format = typer.Option(Format.markdown, "--format", help="csv has one line per cell."),
) -> None:
    """Print tables: ours from the results, the paper's from its data file, each marked as what it is.

    Example: gcemil tables results/overnight --table classification --format latex
    """
    from gcemil.benchmark.figures import export_figures, paper_figures, read_results
    from gcemil.benchmark.page import write_page
    from gcemil.benchmark.tables.overview import headline_table
    from gcemil.benchmark.tables.review import REVIEW_TABLE, review_tables
    from gcemil.benchmark.tables.table import TABLES, build_table
    from gcemil.cli.console import say
    from gcemil.runs.folder import RunFolder
    from gcemil.tables import render_tables

    if export is not None:
        say(f"wrote {export_figures(read_results(results), export)}")
        return
    if page is not None:
        command = f"gcemil tables {results} --page {page}"
        say(f"wrote {write_page(read_results(results), paper_figures(), page, command=command)}")
        return
    names = table or ([REVIEW_TABLE] if RunFolder(results).is_begun else ["headline", *TABLES])
    made = review_tables(results) if REVIEW_TABLE in names else []
    if others := [name for name in names if name != REVIEW_TABLE]:
        paper, measured = paper_figures(), read_results(results)
        made = [
            headline_table(measured, paper) if name == "headline" else build_table(name, measured, paper)
            for name in others
        ] + made
    for line in render_tables(made, form.value).splitlines():
        say(line)
