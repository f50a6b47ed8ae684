"""The result of a diagnostic, written as JSON: rows of figures, slides in detail, notes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gcemil.errors import RunError
from gcemil.files import read_record, write_json
from gcemil.metrics import METRICS

Labels = dict[str, str]
Figures = dict[str, float | None]
"""By metric name; None where a figure does not exist, which is not the same as 0."""
SAME_NETWORK = "same_network"
"""In the provenance: whether the plain host has the very weights of the wrapped one."""


@dataclass(frozen=True)
class Count:
    """A count and its total."""

    held: int
    of: int

    @property
    def share(self) -> float:
        """NaN without observations."""
        return self.held / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share; everything is possible without observations."""
        if self.of == 0:
            return 0.0, 1.0
        # Imported here: it takes longer than all else that a finding needs.
        from scipy.stats import binomtest

        low, high = binomtest(self.held, self.of).proportion_ci(0.95, method="wilson")
        return float(low), float(high)

    @property
    def words(self) -> str:
        """The count as a reader sees it."""
        return f"{self.held} of {self.of}"

    @property
    def percent(self) -> str:
        """The share with its interval."""
        low, high = self.interval
        return f"{100 * self.share:.0f} %, 95 % interval {100 * low:.0f} to {100 * high:.0f} %"


def compare_counts(rule: str, own: Count, random: Count) -> str:
    """The verdict of an audit on a rule in one sentence."""
    return (
        f"{rule}: its patches are sufficient and necessary on {own.words} bags ({own.percent}), "
        f"random ones on {random.held}."
    )


@dataclass(frozen=True)
class Row:
    """One line of a diagnostic: what it is about, and its figures by metric name."""

    labels: Labels
    values: Figures
    deviations: dict[str, float] = field(default_factory=dict)
    """Standard deviation over slides, or over folds once folds are joined."""


@dataclass(frozen=True)
class Finding:
    """One diagnostic of one fold, or joined over folds."""

    name: str
    rows: tuple[Row, ...]
    slides: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def is_same_network(self) -> bool:
        """Whether rows of the plain host repeat those of the wrapped one."""
        return bool(self.provenance.get(SAME_NETWORK))

    def to_json(self) -> dict[str, Any]:
        """The finding as its file holds it, with the direction of every metric."""
        used = sorted({name for row in self.rows for name in row.values})
        metrics = {
            name: {"direction": METRICS[name].direction, "criterion": METRICS[name].criterion}
            for name in used
        }
        return {**asdict(self), "metrics": metrics}


def write_finding(folder: Path, finding: Finding) -> Path:
    """<folder>/<name>.json, whole or not at all."""
    return write_json(folder / f"{finding.name}.json", finding.to_json())


def read_finding(path: Path) -> Finding:
    """A finding as it was written."""
    remedy = "It is not a finding of gcemil; make it again with 'gcemil diagnose'."
    finding = read_record(path, Finding, error=RunError, remedy=remedy)
    if unknown := sorted({name for row in finding.rows for name in row.values} - set(METRICS)):
        raise RunError(
            f"{path} has a value '{unknown[0]}', which is not a metric of gcemil. {remedy}"
        )
    return finding


def join_folds(findings: Sequence[Finding]) -> Finding:
    """Rows with the same labels joined: mean over folds, and the deviation between folds."""
    order: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for finding in findings:
        for row in finding.rows:
            order.setdefault(tuple(sorted(row.labels.items())), []).append(row)
    provenance = dict(findings[0].provenance)
    if SAME_NETWORK in provenance:
        provenance[SAME_NETWORK] = all(finding.is_same_network for finding in findings)
    return Finding(
        name=findings[0].name,
        rows=tuple(join_rows(rows) for rows in order.values()),
        notes=tuple(dict.fromkeys(note for finding in findings for note in finding.notes)),
        settings=findings[0].settings,
        provenance=provenance,
    )


def join_rows(rows: Sequence[Row]) -> Row:
    """Mean and deviation of every figure; labels are those of the first row."""
    values: Figures = {}
    deviations: dict[str, float] = {}
    for name in dict.fromkeys(name for row in rows for name in row.values):
        values[name], deviation = mean_and_deviation([row.values.get(name) for row in rows])
        if deviation is not None:
            deviations[name] = deviation
    return Row(rows[0].labels, values, deviations)


def mean_and_deviation(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and deviation of the finite values; None without any."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return None, None
    return fmean(finite), stdev(finite) if len(finite) > 1 else 0.0


def mean_row(
    labels: Labels,
    per_slide: Sequence[Figures],
    over_all: Mapping[str, float | None] | None = None,
) -> Row:
    """Figures over all slides, then mean and deviation of figures per slide that have them."""
    row = join_rows([Row(labels, values) for values in per_slide])
    return Row(labels, {**(over_all or {}), **row.values}, row.deviations)


def mean_rows(records: Iterable[Mapping[str, Any]], labels: Sequence[str]) -> tuple[Row, ...]:
    """A row for every combination of these labels: the means of the metrics of its records."""
    groups: dict[tuple[tuple[str, str], ...], list[Figures]] = {}
    for record in records:
        figures = {name: value for name, value in record.items() if name in METRICS}
        key = tuple((name, str(record[name])) for name in labels if name in record)
        groups.setdefault(key, []).append(figures)
    return tuple(mean_row(dict(key), own) for key, own in groups.items())
