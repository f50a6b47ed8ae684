"""Print the comparisons with their intervals and verdicts; print all tables, write the page, or
collect a grid. See README.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gcemil.errors import GcemilError
from gcemil.tables import FORMATS, render_tables
from paper.comparison import paper_figures
from paper.measured import RESULTS, read_measured, write_measured
from paper.overview import headline_table
from paper.page import render_page
from paper.tables import TABLES

ALL_TABLES = {"headline": headline_table, **TABLES}
PAGE = Path(__file__).parents[1] / "docs" / "paper.md"


def main(arguments: list[str] | None = None) -> None:
    """Print the page, or run one of the three commands."""
    parser = argparse.ArgumentParser(prog="python -m paper", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    tables = commands.add_parser("tables", help="print tables: the paper's lines and ours")
    tables.add_argument(
        "--table", action="append", choices=ALL_TABLES, help="a table; all by default"
    )
    tables.add_argument(
        "--format", choices=FORMATS, default="markdown", help="csv has one line per cell"
    )
    page = commands.add_parser(
        "page", help="write docs/paper.md: paper, ours and a verdict, table by table"
    )
    page.add_argument("--out", type=Path, default=PAGE)
    collect = commands.add_parser(
        "collect", help="write the figures of a results folder without its runs"
    )
    collect.add_argument("--out", type=Path, default=RESULTS)
    for command in (tables, page, collect):
        command.add_argument(
            "results",
            type=Path,
            nargs="?",
            default=RESULTS,
            help="of 'gcemil benchmark'; paper/results by default",
        )
    options = parser.parse_args(arguments)
    try:
        if options.command is None:
            print(render_page(read_measured(), paper_figures()), end="")
            return
        measured = read_measured(options.results)
        if options.command == "collect":
            print(f"wrote {write_measured(measured, options.out)}")
        elif options.command == "page":
            options.out.write_text(render_page(measured, paper_figures()), encoding="utf-8")
            print(f"wrote {options.out}")
        else:
            chosen = [
                ALL_TABLES[name](measured, paper_figures()) for name in options.table or ALL_TABLES
            ]
            print(render_tables(chosen, options.format), end="")
    except GcemilError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
