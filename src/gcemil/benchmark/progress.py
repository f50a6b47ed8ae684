"""The progress of a grid, and how long it will take: the time of one unit per host, multiplied.

A unit is a cohort to prepare, a fold to train or a fold to diagnose. It is expected to take as long
as the finished units of the same kind on the same cohort, host and kind of arm; where there is
none, as those of the host, else as all of its kind. Without a finished unit of its kind nothing is
expected.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gcemil.benchmark.grid import CohortKey, DiagnosisKey, Key
from gcemil.benchmark.results import Results, read_log
from gcemil.benchmark.runner import Ending, Outcome
from gcemil.errors import printable


class UnitTimes:
    """Seconds of finished units by kind, cohort, host and arm."""

    def __init__(self, keys: Collection[Key], results: Results) -> None:
        self._seconds: dict[Hashable, list[float]] = defaultdict(list)
        by_path = {str(key.path): key for key in keys}
        for record in read_log(results):
            if record["event"] == "end" and record["whole"] and record["key"] in by_path:
                self.add(by_path[record["key"]], record["seconds"])

    def add(self, key: Key, seconds: float) -> None:
        """Count a unit that has finished."""
        for group in _list_groups(key):
            self._seconds[group].append(seconds)

    def expect(self, key: Key) -> float | None:
        """Seconds of a unit on one worker; None where none of its kind has finished."""
        times = (self._seconds[group] for group in _list_groups(key) if group in self._seconds)
        return next(map(median, times), None)

    def total(self, keys: Collection[Key]) -> float | None:
        """Seconds of several units on one worker; None where nothing is known of one of them."""
        seconds = [self.expect(key) for key in keys]
        return None if None in seconds else sum(filter(None, seconds))


def _list_groups(key: Key) -> list[Hashable]:
    """The groups whose times apply to a unit, the nearest first."""
    kind = type(key).__name__
    if isinstance(key, CohortKey):
        return [kind]
    run = key.run if isinstance(key, DiagnosisKey) else key
    host = (kind, run.host, run.is_plain)
    return [(*host, run.cohort), host, kind]


@dataclass
class Board:
    """What has ended, and how long the rest will take; a bar, or without a terminal lines."""

    all_keys: Sequence[Key]
    todo: Sequence[Key]
    times: UnitTimes
    workers: int
    bar: Progress | None = None
    endings: dict[Key, Outcome] = field(default_factory=dict)

    def end(self, key: Key, outcome: Outcome) -> None:
        """Show that a unit has ended."""
        self.endings[key] = outcome
        is_finished = outcome.ending is Ending.finished
        if is_finished:
            self.times.add(key, outcome.seconds)
        took = f" in {duration(outcome.seconds)}" if is_finished else ""
        why = f": {outcome.reason}" if outcome.reason else ""
        count, left = f"[{self.done}/{len(self.all_keys)}]", self._left()
        line = printable(f"{count} {key.path} {outcome.ending}{took}{why}{left}")
        if self.bar is None:
            print(line, file=sys.stderr, flush=True)
            return
        if outcome.ending is Ending.failed:
            self.bar.console.print(line, markup=False, highlight=False)
        self.bar.update(self.bar.task_ids[0], completed=self.done, description=self.title())

    @property
    def done(self) -> int:
        return len(self.all_keys) - len(self.todo) + len(self.endings)

    def title(self) -> str:
        """The numbers of units that are done and that failed."""
        failed = sum(outcome.ending is Ending.failed for outcome in self.endings.values())
        return f"{self.done} of {len(self.all_keys)} done · {failed} failed{self._left()}"

    def _left(self) -> str:
        """How long the rest will take, in words; empty where that is not known."""
        seconds = self.times.total([key for key in self.todo if key not in self.endings])
        return f" · about {duration(seconds / self.workers)} left" if seconds else ""


@contextmanager
def show_board(
    all_keys: Sequence[Key], todo: Sequence[Key], times: UnitTimes, workers: int
) -> Iterator[Board]:
    """A bar on a terminal, plain lines elsewhere."""
    board = Board(all_keys, todo, times, workers)
    if not sys.stderr.isatty():
        yield board
        return
    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as board.bar:
        board.bar.add_task(board.title(), total=len(all_keys), completed=board.done)
        yield board


def duration(seconds: float) -> str:
    """Two units at most: 45 s, 12 min, 3 h 20 min, 2 d 4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
