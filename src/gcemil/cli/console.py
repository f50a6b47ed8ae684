"""What the commands print: tables, JSON for scripts, a progress bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from gcemil.errors import printable

PLAIN_INTERVAL_S = 5.0
QUIET, VERBOSE = "GCEMIL_QUIET", "GCEMIL_VERBOSE"
"""Set to 1 by --quiet and --verbose: no progress, or a line for every step."""
PIPE_WIDTH = 160

Advance = Callable[[int, int], None]


def console() -> Console:
    """As wide as the terminal; a file or a pipe has room for a whole table."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def say(text: object, *, err: bool = False) -> None:
    """One line; what a file holds is shown as data and never obeyed by the terminal."""
    typer.echo(printable(text), err=err)


def print_json(value: object) -> None:
    """For scripts: sorted keys, so that equal results are equal text."""
    print(json.dumps(value, indent=2, sort_keys=True, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A title on a line of its own, never wrapped so that a path in it can be copied, and the table below."""
    table = Table(header_style="bold")
    for column in columns:
        table.add_column(Text(printable(column)), overflow="fold")
    for row in rows:
        # Text and not str: rich would read square brackets in a slide id as markup.
        table.add_row(*[Text(printable(cell)) for cell in row])
    console().print(Text(printable(title)), soft_wrap=True)
    console().print(table)


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """A function `advance(done, total)`; without a terminal it prints a line every few seconds."""
    if is_set(QUIET):
        yield lambda done, total: None
        return
    if not shows_bars():
        yield _plain_progress(what, 0.0 if is_set(VERBOSE) else PLAIN_INTERVAL_S)
        return
    with Progress(*bar_columns(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def is_set(variable: str) -> bool:
    """Whether a variable of the environment switches something on."""
    return os.environ.get(variable, "0") not in ("", "0")


def shows_bars() -> bool:
    """Whether progress is a bar that moves; on a pipe, or where lines were asked for, it is not."""
    return sys.stderr.isatty() and not is_set(VERBOSE)


def bar_columns() -> tuple[ProgressColumn, ...]:
    """What a progress bar shows; its description is data, without markup."""
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
