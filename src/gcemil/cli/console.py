"""Printing: tables, JSON for scripts, a progress bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gcemil.errors import printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

PLAIN_INTERVAL_S = 5.0
QUIET, VERBOSE = "GCEMIL_QUIET", "GCEMIL_VERBOSE"
"""Set to 1 by --quiet and --verbose: no progress, or a line for every step."""
PIPE_WIDTH = 100
"""Columns of a file or a pipe, which have no width of their own."""
WORD = 24
"""Columns that running text needs at least; figures are never broken."""
HEADING, WRAPPED_HEADING = 16, 12
"""A heading longer than the first is wrapped to the second."""

Advance = Callable[[int, int], None]


def console() -> Console:
    """As wide as the terminal; a file or a pipe is as wide as a usual one."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def say(text: object, *, err: bool = False) -> None:
    """Print one line; control characters are escaped, so that the terminal ignores them."""
    typer.echo(printable(text), err=err)


def warn_of_model(warning: str | None) -> None:
    """Warn first that a model has not learned."""
    if warning is not None:
        say(f"warning: {warning}")


def print_json(value: object) -> None:
    """For scripts: sorted keys, so that equal results are equal text."""
    print(json.dumps(value, indent=2, sort_keys=True, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A title that is never wrapped, so that a path in it can be copied, and the table below.

    What is wider than the terminal becomes several tables, each beginning with the first column.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    columns = [printable(column) for column in columns]
    terminal = console()
    terminal.print(Text(printable(title)), soft_wrap=True)
    for chosen in _split_columns(columns, cells, terminal.width):
        table = Table(header_style="bold")
        for number in chosen:
            shown = [row[number] for row in cells]
            table.add_column(
                Text(_wrap_heading(columns[number], shown)),
                overflow="fold",
                no_wrap=_is_short(shown),
            )
        for row in cells:
            # Text and not str: rich would read square brackets in a slide id as markup.
            table.add_row(*[Text(row[number]) for number in chosen])
        terminal.print(table)


def print_records(title: str, records: Sequence[Mapping[str, object]]) -> None:
    """A table with a row for each record, all of which have the same keys."""
    print_table(title, list(records[0]), [list(one.values()) for one in records])


def _split_columns(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int
) -> list[list[int]]:
    """Numbers of the columns of each table: as many as fit, the first one in all of them."""
    needs = []
    for number, column in enumerate(columns):
        shown = [row[number] for row in cells]
        longest = max(map(len, (*shown, *_wrap_heading(column, shown).split("\n"))), default=0)
        needs.append(3 + (longest if _is_short(shown) else min(longest, WORD)))
    tables = [[0]] if columns else []
    for number in range(1, len(columns)):
        if (
            1 + sum(needs[one] for one in tables[-1]) + needs[number] > width
            and len(tables[-1]) > 1
        ):
            tables.append([0])
        tables[-1].append(number)
    return tables


def _is_short(shown: Sequence[str]) -> bool:
    """Figures and single words, which are not broken into lines."""
    return max(map(len, shown), default=0) <= WORD - 6


def _wrap_heading(heading: str, shown: Sequence[str]) -> str:
    if len(heading) <= HEADING:
        return heading
    width = max(WRAPPED_HEADING, *(map(len, shown) if _is_short(shown) else (WORD,)), 0)
    return textwrap.fill(heading, width, break_long_words=False, break_on_hyphens=False)


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """A function `advance(done, total)`; without a terminal it prints a line every few seconds."""
    if is_set(QUIET):
        yield lambda done, total: None
        return
    if not shows_bars():
        yield _plain_progress(what, 0.0 if is_set(VERBOSE) else PLAIN_INTERVAL_S)
        return
    # Imported where a bar is drawn: most commands end, or fail, without one.
    from rich.progress import Progress

    with Progress(*bar_columns(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def is_set(variable: str) -> bool:
    """Whether a variable of the environment switches something on."""
    return os.environ.get(variable, "0") not in ("", "0")


def shows_bars() -> bool:
    """Whether progress is a moving bar: on a terminal, without --verbose."""
    return sys.stderr.isatty() and not is_set(VERBOSE)


def bar_columns() -> tuple[ProgressColumn, ...]:
    """What a progress bar shows; its description is data, without markup."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )


def _plain_progress(what: str, interval: float) -> Advance:
    last = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= interval:
            last = time.monotonic()
            print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)

    return advance
