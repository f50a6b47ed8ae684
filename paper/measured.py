"""The measured figures as one long table, and the selections that tables make from it.

results/intervals.csv holds the estimates with intervals (intervals.py). results/figures.csv.gz has
a line per figure: cohort, host, label (arm or variant), seed, fold (-1: the whole run), source
(`task` or a diagnostic), the row labels of the finding (`by_rule`, `by_network`, ...), metric and
value. An empty value was measured and is not defined. results/facts.json describes the cohorts and
holds the tests over slides.

A `Query` selects one figure; `select_values` returns its values as a Series indexed by cohort,
host, seed and fold:

  soft = select_values(measured, Query("macro_f1", labels={"mode": "soft"}, dataset="bracs")) host =
  select_values(measured, Query("macro_f1", labels={"mode": "full"}, dataset="bracs", label="host"))
  gain = subtract_paired(soft, host)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from gcemil.benchmark.figures import RUN, MeasuredRun, list_runs, read_figures
from gcemil.benchmark.results import Results, read_cohort_record, read_log
from gcemil.rules import find_rule
from gcemil.runs.folder import Run
from gcemil.runs.learning import describe_learning

if TYPE_CHECKING:
    from paper.intervals import Interval

ANY_ENCODER = "*"
UNIT = ["cohort", "host", "seed", "fold"]
"""What a value was measured on; values of two arms are paired by it."""
RESULTS = Path(__file__).parent / "results"
FIGURES, FACTS, INTERVALS = "figures.csv.gz", "facts.json", "intervals.csv"
USED_LABELS = ["by_mode", "by_network", "by_rule", "by_perturbation"]
NO_ROWS = pd.DataFrame({name: [] for name in (*UNIT, "value")}).set_index(UNIT, drop=False)
EMPTY = NO_ROWS.value
Choice = str | tuple[str, ...]
"""A value, or several spellings of it."""
Labels = Mapping[str, Choice]


@dataclass(frozen=True)
class CohortFacts:
    """A cohort: the dataset it is or represents, its size, whether it is real."""

    name: str
    dataset: str
    encoder: str | None
    """The encoder as the grid names it; None where the grid names none."""
    record: dict[str, Any] | None
    """What `gcemil benchmark` counted when it prepared the cohort."""

    @property
    def task(self) -> str | None:
        return self.record["task"] if self.record else None

    @property
    def is_simulated(self) -> bool:
        return self.record is not None and "simulator" in self.record["provenance"]

    @property
    def is_stand_in(self) -> bool:
        """Whether no encoder was run: the features themselves were simulated."""
        return self.record is not None and str(self.record["encoder"]).startswith("simulated-")

    @property
    def description(self) -> str:
        if self.record is None:
            return f"{self.name} (no record of it)"
        kind = (
            f"simulated, size {self.record['provenance'].get('size')}"
            if self.is_simulated
            else "real"
        )
        return (
            f"{self.name} ({self.record['slides']} slides, {self.record['feature_dim']}-d, {kind})"
        )


class SlideTest(NamedTuple):
    """A permutation test over test slides: the gated prediction of a host against its full bag."""

    dataset: str
    host: str
    difference: float
    """Of the task metric, averaged over folds."""
    p: float
    slides: int
    moved: int
    """Slides whose two predictions differ; where there is none, p is 1."""


class UnlearnedRun(NamedTuple):
    """A run whose network is no better than chance, or has not fitted its training slides."""

    cohort: str
    host: str
    label: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Measured:
    """All figures of a results folder."""

    rows: pd.DataFrame
    cohorts: tuple[CohortFacts, ...]
    slide_tests: tuple[SlideTest, ...] = ()
    intervals: tuple[Interval, ...] = ()
    unlearned: tuple[UnlearnedRun, ...] = ()
    grids: tuple[str, ...] = ()
    seconds: float = 0.0
    """Of all executions, on one worker each."""

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One line per run: cohort, host, label, seed."""
        return self.rows[RUN].drop_duplicates()

    @cached_property
    def by_metric(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The rows of each source and metric by unit, those with the fewest labels first."""
        n_labels = self.rows.filter(like="by_").notna().sum(axis=1)
        rows = self.rows.iloc[n_labels.argsort(kind="stable")].set_index(UNIT, drop=False)
        return dict(iter(rows.groupby(["source", "metric"], sort=False)))

    @cached_property
    def masks(self) -> dict[tuple[Any, ...], np.ndarray]:
        """Masks of `by_metric` that were computed before; most queries differ in one label."""
        return {}

    @cached_property
    def main_encoders(self) -> dict[str, str | None]:
        """Per dataset the main encoder: none named, else the last named."""
        encoders: dict[str, list[str | None]] = {}
        for cohort in self.cohorts:
            encoders.setdefault(cohort.dataset, []).append(cohort.encoder)
        return {name: None if None in own else own[-1] for name, own in encoders.items()}

    def dataset(self, name: str) -> tuple[CohortFacts, ...]:
        """The cohorts that are, or represent, a dataset of the paper."""
        return tuple(cohort for cohort in self.cohorts if cohort.dataset == name)

    def keep(self, mask: pd.Series) -> Measured:
        """The same results with these rows alone; cohorts without a row are left out."""
        rows = self.rows[mask]
        names = set(rows.cohort)
        return replace(
            self, rows=rows, cohorts=tuple(one for one in self.cohorts if one.name in names)
        )

    def keep_places(self, rows: pd.DataFrame, columns: list[str]) -> Measured:
        """The runs that share these columns with one of the rows; all runs where there is no row."""
        places = pd.MultiIndex.from_frame(self.rows[columns])
        return (
            self.keep(places.isin(pd.MultiIndex.from_frame(rows[columns]))) if len(rows) else self
        )


def read_measured(folder: Path = RESULTS) -> Measured:
    """The figures of a results folder of `gcemil benchmark`, or those that `write_measured` wrote."""
    if not (folder / FIGURES).is_file():
        return collect(folder)
    header = pd.read_csv(folder / FIGURES, nrows=0).columns
    types = dict.fromkeys(header, str) | {"seed": int, "fold": int, "value": float}
    rows = pd.read_csv(folder / FIGURES, dtype=types, keep_default_na=False, na_values=[""])
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    cohorts = tuple(CohortFacts(**cohort) for cohort in facts.pop("cohorts"))
    tests = tuple(SlideTest(**test) for test in facts.pop("slide_tests"))
    unlearned = tuple(UnlearnedRun(**run) for run in facts.get("unlearned", ()))
    intervals: tuple[Interval, ...] = ()
    if (folder / INTERVALS).is_file():
        from paper.intervals import read_intervals

        intervals = tuple(read_intervals(folder / INTERVALS))
    return Measured(
        rows, cohorts, tests, intervals, unlearned, tuple(facts["grids"]), facts["seconds"]
    )


def write_measured(measured: Measured, folder: Path) -> Path:
    """Write the figures without the runs, with 6 digits and without single classes."""
    rows = measured.rows
    if "by_class" in rows:
        rows = rows[rows.by_class.isin(["all"]) | rows.by_class.isna()]
    folder.mkdir(parents=True, exist_ok=True)
    # No time stamp in the file: equal figures give equal bytes.
    packing = {"method": "gzip", "mtime": 0}
    rows.to_csv(folder / FIGURES, index=False, float_format="%.6g", compression=packing)
    facts = {
        "grids": list(measured.grids),
        "seconds": round(measured.seconds, 1),
        "cohorts": [asdict(cohort) for cohort in measured.cohorts],
        "slide_tests": [test._asdict() for test in measured.slide_tests],
        "unlearned": [run._asdict() for run in measured.unlearned],
    }
    (folder / FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    from paper.intervals import write_intervals

    write_intervals(measured.intervals, folder / INTERVALS)
    return folder / FIGURES


def collect(folder: Path) -> Measured:
    """The figures of a results folder of `gcemil benchmark`, its cohorts and the tests over slides."""
    from paper.intervals import measure_effects
    from paper.slide_tests import run_slide_tests

    results, runs = Results(folder), list_runs(folder)
    planned = {name: cohort for grid in results.grids() for name, cohort in grid.cohorts.items()}
    cohorts = []
    for name in dict.fromkeys(run.cohort for run in runs):
        record = read_cohort_record(results, name)
        provenance = record["provenance"] if record else {}
        settings = planned.get(name)
        stated = (settings.dataset or settings.profile) if settings else None
        dataset = stated or provenance.get("profile") or provenance.get("recipe") or name
        if record is not None:
            record = {**record, "settings": {}, "warnings": []}
        cohorts.append(
            CohortFacts(name, str(dataset), settings.encoder if settings else None, record)
        )
    rows = read_figures(folder)
    rows = rows.reindex(columns=[*rows, *(name for name in USED_LABELS if name not in rows)])
    holders = list_host_holders(runs)
    measured = Measured(
        add_plain_hosts(rows, holders),
        tuple(cohorts),
        grids=tuple(grid.name for grid in results.grids()),
        seconds=sum(line["seconds"] for line in read_log(results) if line["event"] == "end"),
    )
    measured = replace(
        measured,
        slide_tests=tuple(run_slide_tests(measured, runs, holders)),
        unlearned=tuple(list_unlearned(runs)),
    )
    return replace(measured, intervals=tuple(measure_effects(measured, runs)))


def list_unlearned(runs: Sequence[MeasuredRun]) -> Iterator[UnlearnedRun]:
    """The runs that are at chance or have not fitted their training slides."""
    for run in runs:
        found = [fold.read_metrics().details.learning for fold in Run(run.folder).finished_folds()]
        reason = describe_learning([one for one in found if one is not None])
        if reason is not None:
            yield UnlearnedRun(run.cohort, run.host, run.label, run.seed, reason)


def list_host_holders(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The wrapped runs that hold the plain host bit for bit, where the grid trained no plain host."""
    trained = {(run.cohort, run.host, run.seed) for run in runs if run.label == "host"}
    return [
        run
        for run in runs
        if run.host_is_unchanged and (run.cohort, run.host, run.seed) not in trained
    ]


def add_plain_hosts(rows: pd.DataFrame, holders: Sequence[MeasuredRun]) -> pd.DataFrame:
    """The rows, and those of plain hosts that wrapped runs hold."""
    held = rows[
        pd.MultiIndex.from_frame(rows[RUN]).isin(
            [tuple(getattr(run, name) for name in RUN) for run in holders]
        )
    ]
    full = held[(held.label == "gce") & (held.source == "task") & (held.by_mode == "full")]
    has_plain = (
        (held.by_network == "plain")
        .groupby([held[name] for name in (*RUN, "source")])
        .transform("any")
    )
    is_ours = held.by_rule.fillna("").map(lambda name: find_rule(name).is_ours).astype(bool)
    same = held[(held.by_network == "wrapped") & ~has_plain & ~is_ours]
    return pd.concat(
        [rows, full.assign(label="host"), same.assign(by_network="plain")], ignore_index=True
    )


@dataclass(frozen=True)
class Query:
    """One figure; None accepts any value. `labels` gives the accepted values of row labels."""

    metric: str = "task_metric"
    source: str = "task"
    labels: Labels = field(default_factory=dict)
    label: Choice | None = "gce"
    """The arm or ablation."""
    dataset: str | None = None
    task: str | None = None
    host: str | None = None
    encoder: str | None = None
    """None selects the main encoder of each dataset."""

    def where(self, **changes: Any) -> Query:
        """A narrower query; labels are added to those of this one."""
        return replace(self, labels={**self.labels, **changes.pop("labels", {})}, **changes)


def select_rows(measured: Measured, query: Query) -> pd.DataFrame:
    """The rows of a query by unit, undefined values included."""
    key = (query.source, query.metric)
    rows = measured.by_metric.get(key)
    if rows is None:
        return NO_ROWS
    cohorts = tuple(
        one.name
        for one in measured.cohorts
        if query.dataset in (None, one.dataset)
        and query.task in (None, one.task)
        and (query.encoder or measured.main_encoders[one.dataset]) in (ANY_ENCODER, one.encoder)
    )
    labels = {f"by_{name}": choice for name, choice in query.labels.items()}
    mask = np.ones(len(rows), dtype=bool)
    for name, choice in {
        "cohort": cohorts,
        "label": query.label,
        "host": query.host,
        **labels,
    }.items():
        if choice is None:
            continue
        if (*key, name, choice) not in measured.masks:
            measured.masks[*key, name, choice] = _matches(rows.get(name), choice)
        mask &= measured.masks[*key, name, choice]
    return rows[mask] if mask.any() else NO_ROWS


def _matches(column: pd.Series | None, choice: Choice) -> np.ndarray:
    """Which values equal one of the choices, however they are written."""
    if column is None:
        return np.array(False)
    accepted = {normalise(one) for one in ((choice,) if isinstance(choice, str) else choice)}
    return column.isin(
        [one for one in column.dropna().unique() if normalise(one) in accepted]
    ).to_numpy()


@cache
def normalise(text: str) -> str | float:
    """0.05 and 0.050 are the same budget; Top-k and top_k the same rule."""
    try:
        return float(text)
    except ValueError:
        return text.lower().replace("-", "_").replace(" ", "_")


def select_values(measured: Measured, query: Query) -> pd.Series:
    """The values of a query by unit; of several rows, the one with the fewest labels."""
    rows = select_rows(measured, query)
    if rows.empty:
        return EMPTY
    values = rows.value.dropna()
    return values[~values.index.duplicated()]


def subtract_paired(ours: pd.Series, baseline: pd.Series) -> pd.Series:
    """The differences on the same cohort, host, seed and fold."""
    if ours.empty or baseline.empty:
        return EMPTY
    shared = ours.index[ours.index.isin(baseline.index)]
    return ours[shared] - baseline[shared]


class Estimate(NamedTuple):
    """A mean, its standard deviation (None for a single value) and the number of values."""

    mean: float
    deviation: float | None
    n: int


def estimate(values: pd.Series) -> Estimate | None:
    """The mean over folds and seeds; each cohort and host counts once."""
    if values.empty:
        return None
    groups: dict[tuple[str, str], list[float]] = {}
    for (cohort, host, _, _), value in values.items():
        groups.setdefault((cohort, host), []).append(value)
    pool = list(values) if len(groups) == 1 else [fmean(group) for group in groups.values()]
    return Estimate(fmean(pool), stdev(pool) if len(pool) > 1 else None, len(values))
