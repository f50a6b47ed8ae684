"""Where a grid stands, for people: a live table on a terminal, a line per run elsewhere, and the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gcemil.benchmark.plan import CohortKey, Key
from gcemil.benchmark.runner import Ending, Outcome
from gcemil.errors import printable

Clock = Callable[[], float]
SHOWN = 8
"""Runs at work that the live table names."""


@dataclass
class Board:
    """Counts by cohort, what is at work, and the seconds that were expected of each key."""

    all_keys: Sequence[Key]
    todo: Sequence[Key]
    expected: dict[Key, float]
    workers: int
    clock: Clock = time.monotonic
    at_work: dict[Key, float] = field(default_factory=dict)
    endings: dict[Key, Outcome] = field(default_factory=dict)

    def started(self, key: Key) -> None:
        self.at_work[key] = self.clock()

    def ended(self, key: Key, outcome: Outcome) -> None:
        del self.at_work[key]
        if outcome.ending is not Ending.busy:
            self.endings[key] = outcome

    def tick(self) -> None:
        """Time passes."""

    @property
    def done(self) -> int:
        return len(self.all_keys) - len(self.todo) + len(self.endings)

    @property
    def failed(self) -> int:
        return sum(outcome.ending is Ending.failed for outcome in self.endings.values())

    def seconds_left(self) -> float:
        """What is expected of all that is left, corrected by how long the rest took, spread over the workers."""
        now = self.clock()
        waiting = sum(
            self.expected[key] for key in self.todo if key not in self.endings and key not in self.at_work
        )
        running = [max(0.0, self.expected[key] - (now - since)) for key, since in self.at_work.items()]
        # Nothing ends before the longest of those at work, however many workers there are.
        together = (waiting + sum(running)) / self.workers
        return self.correction() * max(together, max(running, default=0.0))

    def correction(self) -> float:
        """Seconds taken per second expected, over what finished in this session."""
        finished = [(key, end) for key, end in self.endings.items() if end.ending is Ending.finished]
        expected = sum(self.expected[key] for key, _ in finished)
        return sum(end.seconds for _, end in finished) / expected if expected else 1.0

    def line(self, key: Key, outcome: Outcome) -> str:
        """One key that ended, in one line."""
        took = f" in {duration(outcome.seconds)}" if outcome.ending is Ending.finished else ""
        why = f": {outcome.reason}" if outcome.reason else ""
        left = f" · about {duration(self.seconds_left())} left" if self.done < len(self.all_keys) else ""
        return f"[{self.done}/{len(self.all_keys)}] {key.path} {outcome.ending}{took}{why}{left}"

    def table(self) -> Table:
        """Cohorts with their counts, then what is at work."""
        title = f"{self.done} of {len(self.all_keys)} done · {self.failed} failed · about {duration(self.seconds_left())} left"
        table = Table(title=title, title_justify="left", header_style="bold")
        for column in ("cohort", "all", "done", "failed", "at work"):
            table.add_column(column, justify="left" if column == "cohort" else "right")
        todo = set(self.todo)
        for cohort in dict.fromkeys(key.cohort for key in self.all_keys):
            keys = [key for key in self.all_keys if key.cohort == cohort]
            counts = (
                len(keys),
                sum(key not in todo or key in self.endings for key in keys),
                sum(key in self.endings and self.endings[key].ending is Ending.failed for key in keys),
                sum(key in self.at_work for key in keys),
            )
            table.add_row(cohort, *map(str, counts))
        for key, since in list(self.at_work.items())[:SHOWN]:
            what = "preparing" if isinstance(key, CohortKey) else key.path.relative_to("runs")
            table.add_row(f"  {what}", "", "", "", duration(self.clock() - since))
        return table


class LineBoard(Board):
    """Prints a line for every key that ends."""

    def ended(self, key: Key, outcome: Outcome) -> None:
        super().ended(key, outcome)
        if outcome.ending is not Ending.busy:
            print(printable(self.line(key, outcome)), file=sys.stderr, flush=True)


class LiveBoard(Board):
    """Redraws its table; failures stay above it."""

    live: Live | None = None

    def ended(self, key: Key, outcome: Outcome) -> None:
        super().ended(key, outcome)
        if self.live is not None and outcome.ending is Ending.failed:
            self.live.console.print(printable(self.line(key, outcome)), markup=False, highlight=False)

    def tick(self) -> None:
        if self.live is not None:
            self.live.update(self.table(), refresh=True)


@contextmanager
def board(
    all_keys: Sequence[Key], todo: Sequence[Key], expected: dict[Key, float], workers: int
) -> Iterator[Board]:
    """Live on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield LineBoard(all_keys, todo, expected, workers)
        return
    shown = LiveBoard(all_keys, todo, expected, workers)
    with Live(shown.table(), console=Console(stderr=True), auto_refresh=False, transient=True) as shown.live:
        yield shown


def duration(seconds: float) -> str:
    """Two units at most: 45 s, 12 min, 3 h 20 min, 2 d 4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
