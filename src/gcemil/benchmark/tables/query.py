"""One figure out of the results: which runs, which row, which metric; then its mean, or the difference of two.

Where several folds or seeds of one cohort and host answer, the figure is their mean, plus or minus their standard
deviation. Where several cohorts or hosts answer, each counts once: the mean of their means, plus or minus the
deviation between these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any, NamedTuple

from gcemil.benchmark.measured import Measured, Run
from gcemil.benchmark.tables.layout import MISSING, Cell
from gcemil.findings import Labels, Row

Wanted = Mapping[str, str | tuple[str, ...]]


class Unit(NamedTuple):
    """What a value was measured on; values of two arms are paired by it."""

    cohort: str
    host: str
    seed: int
    fold: int | None


@dataclass(frozen=True)
class Query:
    """None asks for any; `labels` gives for each label the value wanted, or several that mean the same."""

    metric: str = "task_metric"
    source: str = "task"
    labels: Wanted = field(default_factory=dict)
    label: str | tuple[str, ...] | None = "gce"
    """The arm or ablation; several names mean the same."""
    dataset: str | None = None
    task: str | None = None
    host: str | None = None
    encoder: str | None = None

    def narrowed(self, **changes: Any) -> Query:
        """The same question about less; labels are added to those there."""
        labels = {**self.labels, **changes.pop("labels", {})}
        return replace(self, labels=labels, **changes)


def values(measured: Measured, query: Query) -> dict[Unit, float]:
    """Every value that answers, by what it was measured on."""
    found = {unit: first_value(rows, query.metric) for unit, rows in fitting_rows(measured, query)}
    return {unit: value for unit, value in found.items() if value is not None}


def is_undefined(measured: Measured, query: Query) -> bool:
    """Whether the figure was asked for and does not exist, which is not the same as never measured."""
    return any(query.metric in row.values for _, rows in fitting_rows(measured, query) for row in rows)


def fitting_rows(measured: Measured, query: Query) -> Iterator[tuple[Unit, list[Row]]]:
    """The rows that fit, run by run and fold by fold."""
    for run in measured.runs:
        if not concerns(run, query, measured):
            continue
        folds: dict[int | None, list[Row]] = {}
        for fold, row in run.rows(query.source):
            if fits(row.labels, query.labels):
                folds.setdefault(fold, []).append(row)
        for fold, rows in folds.items():
            yield Unit(run.cohort.name, run.host, run.seed, fold), rows


def concerns(run: Run, query: Query, measured: Measured) -> bool:
    """Whether the question is about this run."""
    cohort = run.cohort
    asked = (
        (query.label, run.label),
        (query.dataset, cohort.dataset),
        (query.host, run.host),
        (query.task, cohort.task),
        (query.encoder or measured.main_encoders[cohort.dataset], cohort.encoder),
    )
    return all(wanted is None or (own is not None and same(own, wanted)) for wanted, own in asked)


def fits(labels: Labels, wanted: Wanted) -> bool:
    """Whether a row is the one asked for: each label wanted is there with one of its values, written in any case."""
    return all(key in labels and same(labels[key], accepted) for key, accepted in wanted.items())


def same(own: str, accepted: str | tuple[str, ...]) -> bool:
    options = (accepted,) if isinstance(accepted, str) else accepted
    return any(plain(own) == plain(option) for option in options)


@cache
def plain(text: str) -> str | float:
    """0.05 and 0.050 are the same budget; Top-k and top_k the same rule."""
    try:
        return float(text)
    except ValueError:
        return text.lower().replace("-", "_").replace(" ", "_")


def first_value(rows: Sequence[Row], metric: str) -> float | None:
    """Of several rows that fit, the one with the fewest labels speaks for all."""
    there = [row for row in rows if row.values.get(metric) is not None]
    return min(there, key=lambda row: len(row.labels)).values[metric] if there else None


def differences(ours: Mapping[Unit, float], baseline: Mapping[Unit, float]) -> dict[Unit, float]:
    """Paired: same cohort, host, seed and fold."""
    return {unit: value - baseline[unit] for unit, value in ours.items() if unit in baseline}


@dataclass(frozen=True)
class Estimate:
    mean: float
    deviation: float | None
    """None for a single value."""
    n: int


def estimate(found: Mapping[Unit, float]) -> Estimate | None:
    """Mean and deviation by the rule of this module."""
    if not found:
        return None
    groups: dict[tuple[str, str], list[float]] = {}
    for unit, value in found.items():
        groups.setdefault((unit.cohort, unit.host), []).append(value)
    pool = list(found.values()) if len(groups) == 1 else [fmean(group) for group in groups.values()]
    return Estimate(fmean(pool), stdev(pool) if len(pool) > 1 else None, len(found))


def cell(
    found: Mapping[Unit, float],
    *,
    decimals: int = 3,
    signed: bool = False,
    scale: float = 1.0,
    unit: str = "",
) -> Cell:
    """The figure as it is printed."""
    summary = estimate(found)
    if summary is None:
        return MISSING
    mean = summary.mean * scale
    deviation = None if summary.deviation is None else summary.deviation * abs(scale)
    # Minus zero would be printed as a loss.
    rounded = round(mean, decimals) + 0.0
    text = f"{rounded:{'+' if signed else ''}.{decimals}f}{unit}"
    if deviation is not None:
        text += f"±{deviation:.{decimals}f}"
    return Cell(text, mean, deviation, summary.n)
