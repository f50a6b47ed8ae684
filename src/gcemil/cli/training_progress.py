"""What is printed of a training: a bar on a terminal, a line per epoch elsewhere, warnings, and the summary."""

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

from gcemil.cli.console import QUIET, bar_columns, is_set, print_table, say, shows_bars, warn_of_model
from gcemil.errors import printable
from gcemil.files import is_file, read_text, write_text
from gcemil.records import MODES
from gcemil.runs.folder import Run, describe_vote
from gcemil.tables import UNDEFINED, format_spread
from gcemil.training.epochs import warning_kind

FIRST_WORD_S = 10.0
"""Seconds after which a training without a terminal says how long it will take, be the first epoch over or not."""
BLOCKS = " ▁▂▃▄▅▆▇█"
MODE_WORDS = {
    "full": "full: the host",
    "head": "head: the evidence head alone",
    "gce": "gce: host and evidence together",
    "soft": "soft: the same, gated",
    "discrete": "discrete: the same, evidence alone",
    "opinion": "opinion: host and evidence together",
}


class TrainingWatch:
    """Moves the bar or prints a line after every epoch and every few bags, and keeps the log of the run."""

    def __init__(
        self, folds: Sequence[int], n_epochs: int, out: Path, bar: Progress, *, has_bar: bool
    ) -> None:
        self._out, self._bar, self._has_bar = out, bar, has_bar
        self._before = _count_epochs(out, folds)
        self._total = max(n_epochs, self._before)
        self._task = bar.add_task(printable(f"training {out}"), total=self._total, completed=self._before)
        self._started, self._seen = time.monotonic(), 0
        self._partial: dict[int, float] = {}
        self._told_first = False
        self._warned: set[tuple[int, str]] = set()

    def epoch(self, fold: int, record: dict[str, Any]) -> None:
        """An epoch of a fold is over."""
        self._seen += 1
        self._partial[fold] = 0.0
        # Hosts with a preparing stage have more epochs than the settings name.
        self._total = max(self._total, self._before + self._seen)
        line = f"fold {fold} {_describe_epoch(record)}"
        self._bar.update(self._task, completed=self._before + self._seen, total=self._total, description=line)
        lines = [line]
        if not self._has_bar:
            self._print(f"{line} · {self._describe_left()}")
        for text in record["warnings"]:
            kind = (fold, warning_kind(text))
            if kind not in self._warned:
                self._warned.add(kind)
                lines.append(f"warning: fold {fold}, epoch {record['epoch'] + 1}: {text}")
                self._bar.console.print(lines[-1], markup=False)
        self._add_to_log(lines)

    def bag(self, fold: int, done: int, total: int) -> None:
        """So many bags of the epoch under way are done: time left is known long before the first epoch ends."""
        self._partial[fold] = min(1.0, done / max(1, total))
        self._bar.update(self._task, completed=self._before + self._seen + sum(self._partial.values()))
        waited = time.monotonic() - self._started
        if not self._has_bar and not self._told_first and self._seen == 0 and waited >= FIRST_WORD_S:
            self._told_first = True
            self._print(f"fold {fold}: {done} of {total} bags of the first epoch · {self._describe_left()}")

    def _describe_left(self) -> str:
        done = self._seen + sum(self._partial.values())
        left = max(0.0, self._total - self._before - done)
        seconds = (time.monotonic() - self._started) / max(done, 1e-9) * left
        return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"

    def _print(self, line: str) -> None:
        if not is_set(QUIET):
            print(line, file=sys.stderr, flush=True)

    def _add_to_log(self, lines: Sequence[str]) -> None:
        """Rewritten whole, so that a run that is killed leaves no half line."""
        path = Run(self._out).log
        before = read_text(path) if is_file(path) else ""
        write_text(path, before + "".join(f"{printable(line)}\n" for line in lines))


@contextmanager
def show_training(folds: Sequence[int], n_epochs: int, out: Path) -> Iterator[TrainingWatch]:
    """Show progress of a training; `n_epochs` counts the epochs of all folds."""
    has_bar = shows_bars()
    console = Console(stderr=True, highlight=False)
    is_hidden = is_set(QUIET) or not has_bar
    with Progress(*bar_columns(), console=console, transient=True, disable=is_hidden) as bar:
        yield TrainingWatch(folds, n_epochs, out, bar, has_bar=has_bar)


def _count_epochs(out: Path, folds: Sequence[int]) -> int:
    """Epochs that a run which goes on has behind it."""
    run = Run(out)
    return sum(len(run.fold(fold).read_history()) for fold in folds)


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
    """Whether the model has learned; then mean and deviation over folds, a row per mode."""
    warn_of_model(summary["model_warning"])
    modes = [mode for mode in MODES if mode in summary]
    names = list(summary[modes[0]]) if modes else []
    rows = [(MODE_WORDS[mode], *(_format_mean(summary[mode].get(name)) for name in names)) for mode in modes]
    print_table(f"{out}: test, {len(summary['folds'])} folds", ("bag", *names), rows)
    if (said := describe_vote(summary.get("vote"))) is not None:
        say(said)
    if counts := summary.get("no_evidence"):
        n_false = sum(round(one["reached_rate"] * one["n_test"]) for one in counts)
        n_test = sum(one["n_test"] for one in counts)
        promised = counts[0]["promised_rate"]
        say(
            f"confirmed evidence on '{counts[0]['class']}' slides: {n_false} of {n_test} (at most {promised:.0%} intended)"
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
    say(f"next: gcemil view {folder}")


def _format_mean(spread: dict[str, Any] | None) -> str:
    return UNDEFINED.text if spread is None else format_spread(spread["mean"], spread["std"])
