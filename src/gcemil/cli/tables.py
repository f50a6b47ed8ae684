"""gcemil tables: every table of the paper from a results folder, the paper's figures beside ours."""

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
        help="A results folder of 'gcemil benchmark', or one with a figures.json of it."
    ),
    table: list[str] = typer.Option(
        [],
        "--table",
        help="A table by name, or headline; may be repeated, all by default. An unknown name lists the known ones.",
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
    from gcemil.benchmark.tables.table import TABLES, build_table
    from gcemil.cli.console import say
    from gcemil.tables import render_tables

    paper, measured = paper_figures(), read_results(results)
    if export is not None:
        say(f"wrote {export_figures(measured, export)}")
        return
    if page is not None:
        command = f"gcemil tables {results} --page {page}"
        say(f"wrote {write_page(measured, paper, page, command=command)}")
        return
    made = [
        headline_table(measured, paper) if name == "headline" else build_table(name, measured, paper)
        for name in (table or ["headline", *TABLES])
    ]
    for line in render_tables(made, form.value).splitlines():
        say(line)
