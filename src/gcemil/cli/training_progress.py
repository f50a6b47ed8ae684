"""Progress of a training: a bar on a terminal, a line per epoch elsewhere; and its summary."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from gcemil.cli.console import (
    QUIET,
    bar_columns,
    is_set,
    print_table,
    say,
    shows_bars,
    warn_of_model,
)
from gcemil.errors import printable
from gcemil.files import is_file, read_text, write_text
from gcemil.records import MODE_WORDS, MODES
from gcemil.runs.folder import Run, describe_vote
from gcemil.tables import UNDEFINED, format_spread
from gcemil.training.epochs import warning_kind

FIRST_WORD_S = 10.0
"""Seconds after which a training without a terminal prints how long it will take."""
FIRST_BAGS = 5
"""Bags after the first from which the remaining time is estimated."""
BLOCKS = " ▁▂▃▄▅▆▇█"


class TrainingWatch:
    """Moves the bar or prints a line after every epoch, and keeps the log of the run."""

    def __init__(self, folds: Sequence[int], n_epochs: int, out: Path, bar: Progress) -> None:
        self._run, self._bar = Run(out), bar
        # A run that is continued has finished epochs.
        self._before = sum(len(self._run.fold(fold).read_history()) for fold in folds)
        self._total = max(n_epochs, self._before)
        self._task = bar.add_task(
            printable(f"training {out}"), total=self._total, completed=self._before
        )
        self._started, self._done = time.monotonic(), 0
        self._partial: dict[int, float] = {}
        self._is_announced = False
        self._first: tuple[float, float] | None = None
        """When the first bags were done, and how much of an epoch they are."""
        self._warned: set[tuple[int, str]] = set()

    def epoch(self, fold: int, record: dict[str, Any]) -> None:
        """An epoch of a fold is over."""
        self._done += 1
        self._partial[fold] = 0.0
        # Hosts with a preparing stage have more epochs than the settings name.
        self._total = max(self._total, self._before + self._done)
        lines = [f"fold {fold} {_describe_epoch(record)}"]
        self._bar.update(
            self._task, completed=self._before + self._done, total=self._total, description=lines[0]
        )
        self._print(lines[0])
        for text in record["warnings"]:
            kind = (fold, warning_kind(text))
            if kind not in self._warned:
                self._warned.add(kind)
                lines.append(f"warning: fold {fold}, epoch {record['epoch'] + 1}: {text}")
                self._bar.console.print(lines[-1], markup=False)
        # Rewritten whole, so that a run that is killed leaves no half line.
        before = read_text(self._run.log) if is_file(self._run.log) else ""
        write_text(self._run.log, before + "".join(f"{printable(line)}\n" for line in lines))

    def bag(self, fold: int, done: int, total: int) -> None:
        """Count the bags of an epoch, to estimate the remaining time before it ends."""
        self._partial[fold] = min(1.0, done / max(1, total))
        self._bar.update(
            self._task, completed=self._before + self._done + sum(self._partial.values())
        )
        waited = time.monotonic() - self._started
        if self._first is None:
            # The first bag takes longer than others: nothing is cached yet.
            self._first = time.monotonic(), sum(self._partial.values())
        if (
            not self._is_announced
            and self._done == 0
            and waited >= FIRST_WORD_S
            and sum(self._partial.values()) - self._first[1] >= FIRST_BAGS / max(1, total)
        ):
            self._is_announced = True
            self._print(f"fold {fold}: {done} of {total} bags of the first epoch")

    def _print(self, line: str) -> None:
        """A line with the time that is left, where no bar shows it."""
        if shows_bars() or is_set(QUIET):
            return
        done = self._done + sum(self._partial.values())
        since, before = self._first if self._first and self._done == 0 else (self._started, 0.0)
        seconds = (
            (time.monotonic() - since)
            / max(done - before, 1e-9)
            * max(0.0, self._total - self._before - done)
        )
        left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        print(f"{line} · about {left} left", file=sys.stderr, flush=True)


@contextmanager
def show_training(folds: Sequence[int], n_epochs: int, out: Path) -> Iterator[TrainingWatch]:
    """Show progress of a training; `n_epochs` counts the epochs of all folds."""
    console = Console(stderr=True, highlight=False)
    is_hidden = is_set(QUIET) or not shows_bars()
    with Progress(*bar_columns(), console=console, transient=True, disable=is_hidden) as bar:
        yield TrainingWatch(folds, n_epochs, out, bar)


def _describe_epoch(record: dict[str, Any]) -> str:
    """One epoch in one line: loss terms, validation, evidence fraction, gate histogram."""
    terms = " ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
    text = f"{record['stage']} epoch {record['epoch'] + 1} · {terms}"
    if "val" in record:
        text += f" · val {record['val']:.3f}"
    if "gate_histogram" in record:
        # Ten bars from gate 0 to gate 1.
        top = max(*record["gate_histogram"], 1e-9)
        bars = "".join(
            BLOCKS[min(8, round(8 * (share / top) ** 0.5))] for share in record["gate_histogram"]
        )
        text += f" · evidence {record['evidence_fraction']:.3f} · gates [{bars}]"
    return text


def print_summary(out: Path, summary: dict[str, Any]) -> None:
    """Whether the model has learned; then mean and deviation over folds, a row per mode."""
    targets = Run(out).targets
    for name, run in targets.items():
        if (warning := run.model_warning) is not None:
            warn_of_model(f"{name}: {warning}")
    if not targets:
        warn_of_model(summary["model_warning"])
    # Targets have a table of their own, with the figures of the shared model in it.
    modes = [mode for mode in MODES if mode in summary and not targets]
    names = list(summary[modes[0]]) if modes else []
    rows, n_folds = [], len(summary["folds"])
    for mode in modes:
        spreads = [summary[mode].get(name) for name in names]
        texts = [
            UNDEFINED.text if one is None else format_spread(one["mean"], one["std"], n_folds)
            for one in spreads
        ]
        rows.append((f"{mode}: {MODE_WORDS[mode]}", *texts))
    if rows:
        print_table(f"{out}: test, {n_folds} fold{'s' * (n_folds != 1)}", ("bag", *names), rows)
    if targets:
        from gcemil.report.targets import tabulate_targets

        table = tabulate_targets(Run(out))
        heads = [f"{one.group}: {one.header}" for one in table.columns]
        print_table(
            f"{out}: test, {n_folds} fold{'s' * (n_folds != 1)}",
            ("target", *heads),
            [(*line.row_labels, *(cell.text for cell in line.cells)) for line in table.lines],
        )
    if (vote := describe_vote(summary.get("vote"))) is not None:
        say(vote)
    if counts := summary.get("no_evidence"):
        n_false = sum(round(one["reached_rate"] * one["n_test"]) for one in counts)
        n_test = sum(one["n_test"] for one in counts)
        promised = counts[0]["promised_rate"]
        say(
            f"confirmed evidence on '{counts[0]['class']}' slides: {n_false} of {n_test} (at most "
            f"{promised:.0%} intended)"
        )
    if summary["anchors"] != ["None"]:
        say(f"anchors: {', '.join(summary['anchors'])}")
    for text in summary["warnings"]:
        say(f"warning: {text}")


def suggest_next(out: Path, *, is_wrapped: bool) -> None:
    """What one does with a trained run."""
    folder = shlex.quote(str(out))
    if is_wrapped:
        say(f"next: gcemil diagnose {folder} --only snr")
    say(f"next: gcemil report {folder}")
    one = next(iter(Run(out).targets.values()), Run(out)).path
    say(f"next: gcemil view {shlex.quote(str(one))}")
