"""What is printed of a training: a bar on a terminal, a line per epoch elsewhere, warnings, and the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from gcemil.cli.console import QUIET, bar_columns, is_set, print_table, say, shows_bars
from gcemil.errors import printable
from gcemil.tables import UNDEFINED, format_spread

Report = Callable[[int, dict[str, Any]], None]
BLOCKS = " ▁▂▃▄▅▆▇█"


@contextmanager
def show_training(folds: Sequence[int], settings: Any, out: Path) -> Iterator[Report]:
    """A function to call after every epoch; it moves the bar or prints a line."""
    warned: set[tuple[int, str]] = set()
    total = settings.epochs * len(folds)
    started, seen = time.monotonic(), 0
    terminal, quiet = shows_bars(), is_set(QUIET)
    console = Console(stderr=True, highlight=False)
    with Progress(*bar_columns(), console=console, transient=True, disable=quiet or not terminal) as bar:
        task = bar.add_task(printable(f"training {out}"), total=total)

        def report(fold: int, record: dict[str, Any]) -> None:
            nonlocal seen
            seen += 1
            # Hosts with a preparing stage have more epochs than the settings name.
            bar.update(
                task,
                completed=seen,
                total=max(total, seen),
                description=f"fold {fold} {_describe_epoch(record)}",
            )
            if not terminal and not quiet:
                left = (time.monotonic() - started) / seen * max(0, total - seen)
                print(
                    f"fold {fold} {_describe_epoch(record)} · about {left:.0f} s left",
                    file=sys.stderr,
                    flush=True,
                )
            for text in record["warnings"]:
                if (fold, text) not in warned:
                    warned.add((fold, text))
                    console.print(f"warning: fold {fold}, epoch {record['epoch'] + 1}: {text}", markup=False)

        yield report


def _describe_epoch(record: dict[str, Any]) -> str:
    """One epoch in one line: loss terms, validation, evidence fraction, gate histogram."""
    terms = " ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
    text = f"{record['stage']} epoch {record['epoch'] + 1} · {terms}"
    if "val" in record:
        text += f" · val {record['val']:.3f}"
    if "gate_histogram" in record:
        text += f" · evidence {record['evidence_fraction']:.3f} · gates [{_draw_sparkline(record['gate_histogram'])}]"
    return text


def _draw_sparkline(shares: Sequence[float]) -> str:
    """Ten bars from gate 0 to gate 1."""
    top = max(*shares, 1e-9)
    return "".join(BLOCKS[min(8, round(8 * (share / top) ** 0.5))] for share in shares)


def print_summary(out: Path, summary: dict[str, Any]) -> None:
    """Mean and deviation over folds, a row per mode."""
    modes = [mode for mode in ("full", "soft", "discrete") if mode in summary]
    names = list(summary[modes[0]]) if modes else []
    rows = [(mode, *(_format_mean(summary[mode].get(name)) for name in names)) for mode in modes]
    print_table(f"{out}: test, {len(summary['folds'])} folds", ("bag", *names), rows)
    if summary["anchors"] != ["None"]:
        say(f"anchors: {', '.join(summary['anchors'])}")
    for text in summary["warnings"]:
        say(f"warning: {text}")


def _format_mean(spread: dict[str, Any] | None) -> str:
    return UNDEFINED.text if spread is None else format_spread(spread["mean"], spread["std"])
