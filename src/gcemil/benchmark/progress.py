"""Where a grid stands, and how long it will take, before and while it runs.

A live table on a terminal, a line per run elsewhere. The expected seconds are

  training   cost(host, wrapped) x width x [epochs x (train bags x sampled patches + validation patches / 3)
                                            + evaluation patches / 3]
  diagnostic cost(host, plain) x width x passes x test patches / 3

cost is in microseconds per patch of a training step at width 128, measured on one slow core (docs/benchmark.md) and
kept in hosts/table.py; a pass without a gradient counts a third, and a token host that is narrower than its authors' costs as much
less. Runs that are finished correct it: by the ratio of what
they took to what was expected of them, for the same host and kind of arm where there are any, else over all. Before that it
is good to a factor of about two.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gcemil.bags.arrays import read_patch_layout
from gcemil.bags.cohort import Cohort
from gcemil.benchmark.grid import (
    CohortKey,
    CohortSettings,
    DiagnosisKey,
    Grid,
    Key,
    RunKey,
    fold_diagnostics,
    plan_work,
    run_settings,
)
from gcemil.benchmark.results import Results, read_cohort_record, read_log
from gcemil.benchmark.runner import Ending, Outcome
from gcemil.config import HostSettings
from gcemil.errors import printable
from gcemil.hosts.table import host_cost, host_spec, patch_limit
from gcemil.simulation.profile import find_size, load_profile, patch_bounds, resolve_dials

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
    live: Live | None = None
    """Where the table is drawn, failures above it; without a terminal every key that ends is a line."""
    clock: Clock = time.monotonic
    at_work: dict[Key, float] = field(default_factory=dict)
    endings: dict[Key, Outcome] = field(default_factory=dict)

    def started(self, key: Key) -> None:
        """A piece of work begins."""
        self.at_work[key] = self.clock()

    def ended(self, key: Key, outcome: Outcome) -> None:
        """A piece of work is over."""
        del self.at_work[key]
        if outcome.ending is Ending.busy:
            return
        self.endings[key] = outcome
        if self.live is None:
            print(printable(self.line(key, outcome)), file=sys.stderr, flush=True)
        elif outcome.ending is Ending.failed:
            self.live.console.print(printable(self.line(key, outcome)), markup=False, highlight=False)

    def tick(self) -> None:
        """Time passes."""
        if self.live is not None:
            self.live.update(self.table(), refresh=True)

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


@contextmanager
def board(
    all_keys: Sequence[Key], todo: Sequence[Key], expected: dict[Key, float], workers: int
) -> Iterator[Board]:
    """Live on a terminal, plain lines elsewhere."""
    shown = Board(all_keys, todo, expected, workers)
    if not sys.stderr.isatty():
        yield shown
        return
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


WIDTH_SHARE = 0.1
"""How much of a host's cost grows with the feature width."""
PASSES: dict[str, float] = {"snr": 4, "budget": 40, "posthoc": 120, "subsets": 60, "stability": 20}
"""Passes over the test bags that a diagnostic makes, roughly; one that is not named makes OTHER_PASSES."""
OTHER_PASSES = 5.0
NO_GRADIENT = 1 / 3
TRAIN, VALIDATION, TEST = 0.7, 0.1, 0.2
"""Shares of the bags in one of five folds."""
SIMULATION_US = 0.35
"""Microseconds per simulated number."""
LOOKED_AT = 40
"""Slides of a real cohort whose patches are counted."""


@dataclass(frozen=True)
class Shape:
    """What a cohort weighs."""

    bags: int
    patches: float
    """Mean per bag."""
    width: int
    parts: tuple[float, float, float] = (TRAIN, VALIDATION, TEST)
    """Shares of the bags to train, validate and test on."""

    @property
    def gigabytes(self) -> float:
        """Features in half precision."""
        return self.bags * self.patches * self.width * 2 / 1e9


def estimate_seconds(grid: Grid, results: Results) -> dict[Key, float]:
    """Seconds on one worker for every cohort and fold of the grid."""
    model = model_seconds(grid, results)
    ratios = _read_ratios(model, results)
    return {key: seconds * correction(key, ratios) for key, seconds in model.items()}


def model_seconds(grid: Grid, results: Results) -> dict[Key, float]:
    """The same by the model alone, as if nothing had been run."""
    shapes = {name: cohort_shape(grid, results, name) for name in grid.cohorts}
    return {key: _key_seconds(grid, key, shapes[key.cohort]) for key in plan_work(grid)}


def expected_seconds(results: Results) -> float:
    """What the work of all grids of a folder takes by the model, uncorrected: the estimate before any of it was done."""
    expected: dict[Hashable, float] = {}
    for grid in results.grids():
        for key, seconds in model_seconds(grid, results).items():
            # Two grids may ask for different diagnostics of one fold.
            asked = fold_diagnostics(grid, key.run) if isinstance(key, DiagnosisKey) else ()
            expected[key, asked] = seconds
    return sum(expected.values())


def taken_seconds(keys: Collection[Key], results: Results) -> float:
    """What was spent on these keys so far."""
    paths = {str(key.path) for key in keys}
    return sum(
        line["seconds"] for line in read_log(results) if line["event"] == "end" and line["key"] in paths
    )


def _key_seconds(grid: Grid, key: Key, shape: Shape) -> float:
    match key:
        case CohortKey():
            numbers = shape.bags * shape.patches * (shape.width + 64)
            return SIMULATION_US * 1e-6 * numbers * (0.1 if grid.cohorts[key.cohort].folder else 1.0)
        case RunKey():
            return training_seconds(grid, key, shape)
        case DiagnosisKey(run):
            passes = sum(PASSES.get(name, OTHER_PASSES) for name in fold_diagnostics(grid, run))
            patches = passes * shape.parts[2] * shape.bags * shape.patches
            cost = host_cost(run.host, wrapped=False) * _options_factor(run_settings(grid, run).host)
            return cost * 1e-6 * _width_factor(shape) * NO_GRADIENT * patches


def training_seconds(grid: Grid, run: RunKey, shape: Shape) -> float:
    """Expected seconds of one fold."""
    settings = run_settings(grid, run)
    train, validation, test = shape.parts
    trained = train * shape.bags * min(shape.patches, patch_limit(settings) or math.inf)
    validated = validation * shape.bags * shape.patches
    evaluated = (validation + test) * shape.bags * shape.patches
    epochs = settings.count_epochs(round(train * shape.bags), survival=False)
    steps = epochs * (trained + NO_GRADIENT * validated) + NO_GRADIENT * evaluated
    cost = host_cost(run.host, wrapped=not run.is_plain) * _options_factor(settings.host)
    return cost * 1e-6 * _width_factor(shape) * steps


def _options_factor(host: HostSettings) -> float:
    """What a host costs with its options, relative to its defaults."""
    measured_at, width = host_spec(host.name).cost_width, host.options.get("width")
    return width / measured_at if measured_at and isinstance(width, int) else 1.0


def _width_factor(shape: Shape) -> float:
    return 1 - WIDTH_SHARE + WIDTH_SHARE * shape.width / 128


def cohort_shape(grid: Grid, results: Results, name: str) -> Shape:
    """From the files where the cohort is there, from the profile where it is not yet."""
    record = read_cohort_record(results, name)
    settings = grid.cohorts[name]
    if record is not None:
        mean = record["patches"]["total"] / record["bags"]
        return Shape(record["bags"], mean, record["feature_dim"], _part_shares(settings))
    if settings.folder is None:
        return simulated_shape(settings)
    cohort = Cohort.load(settings.folder)
    looked_at = cohort.slides[:LOOKED_AT]
    counts = [read_patch_layout(cohort.feature_file(row.slide_id))[0] for row in looked_at]
    mean = sum(counts) / len(counts) * len(cohort.slides) / len(cohort.bags)
    return Shape(len(cohort.bags), mean, cohort.card.feature_dim)


def simulated_shape(settings: CohortSettings) -> Shape:
    """Patch counts are log-uniform, so their mean is known."""
    profile, rung = load_profile(str(settings.profile)), find_size(settings.size)
    fewest, most = patch_bounds(profile, settings.size)
    slides = settings.n_slides or rung.slides or profile.slides
    per_case = resolve_dials(profile.dials, settings.dials).slides_per_case
    joined = per_case if profile.task == "survival" else 1.0
    mean = float(most) if most == fewest else (most - fewest) / math.log(most / fewest)
    return Shape(
        bags=round(slides / joined),
        patches=joined * mean,
        width=settings.dim or rung.feature_dim,
        parts=_part_shares(settings),
    )


def _part_shares(settings: CohortSettings) -> tuple[float, float, float]:
    """Those of the parts where the grid names them, else those of one of five folds."""
    if settings.parts is None:
        return TRAIN, VALIDATION, TEST
    train, validation, test = (part / sum(settings.parts) for part in settings.parts)
    return train, validation, test


def _read_ratios(model: dict[Key, float], results: Results) -> dict[Hashable, float]:
    """Taken over expected, by kind of work and host, and over all work of a kind."""
    by_path = {str(key.path): key for key in model}
    found: dict[Hashable, list[float]] = defaultdict(list)
    for record in read_log(results):
        key = by_path.get(record["key"])
        if record["event"] == "end" and record["whole"] and key is not None:
            for group in _ratio_groups(key):
                found[group].append(record["seconds"] / model[key])
    return {group: median(ratios) for group, ratios in found.items()}


def correction(key: Key, ratios: dict[Hashable, float]) -> float:
    """What was taken per second expected, in the nearest group that has finished work."""
    return next((ratios[group] for group in _ratio_groups(key) if group in ratios), 1.0)


def _ratio_groups(key: Key) -> list[Hashable]:
    """Whose ratios speak for this key: the nearest first."""
    kind = type(key).__name__
    match key:
        case CohortKey():
            return [kind]
        case RunKey():
            return [(kind, key.host, key.is_plain), (kind, key.is_plain), kind]
        case DiagnosisKey(run):
            return [(kind, run.host), kind]
