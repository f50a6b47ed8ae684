"""The test bags of all folds with the draws of their patients, as figures and tables show them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gcemil.findings import mean_and_deviation
from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.context import Context
from gcemil.report.run_data import RunData
from gcemil.report.scores import (
    PLAIN,
    Draws,
    FoldPredictions,
    Weights,
    find_interval,
    pool_folds,
    read_fold_predictions,
)
from gcemil.runs.folder import main_mode
from gcemil.tables import NOT_MEASURED, Cell, Column, Line, Table, metric_cell


@dataclass(frozen=True, eq=False)
class Sample:
    """The test bags of all folds as every mode predicted them, and the draws of their patients."""

    run: RunData
    folds: list[FoldPredictions]
    bags: FoldPredictions
    weights: Weights
    """The first row is the sample itself, the others are draws."""
    shown: tuple[str, ...]
    """What figures show beside the main prediction, if the run has it."""

    @property
    def main(self) -> str:
        return main_mode(self.run.folds[0].modes)

    @cached_property
    def modes(self) -> list[str]:
        """The main prediction and the others that are shown; of equal ones the main one."""
        kept: dict[str, np.ndarray] = {}
        for mode in (self.main, *self.shown):
            own = self.bags.by_mode.get(mode)
            if own is not None and not any(np.array_equal(own, other) for other in kept.values()):
                kept[mode] = own
        return [mode for mode in style.ARMS if mode in kept]

    @property
    def count(self) -> str:
        """How many bags of how many patients."""
        n_bags, n_cases = len(self.bags.labels), len(np.unique(self.bags.cases))
        words = f"{n_bags} test {self.run.bag_unit}s"
        return words if n_bags == n_cases else f"{words} of {n_cases} patients"

    @property
    def note(self) -> str:
        """How intervals are made."""
        same = [
            style.ARMS[mode]
            for mode in (PLAIN, "full")
            if mode in self.bags.by_mode and mode not in self.modes
        ]
        twins = f" The same predictions as {style.ARMS[self.main]}: {', '.join(same)}."
        draws = f"95 % intervals: {len(self.weights) - 1} bootstrap draws of patients"
        return f"{draws}; {self.count}.{twins if same else ''}"


def draw_sample(context: Context, *beside: str) -> Sample | None:
    """The bags of all folds and draws of their patients; figures show `beside` too.

    None if a fold has no tables of predictions.
    """
    plain = {} if context.against is None else {fold.number: fold for fold in context.against.folds}
    folds = []
    for fold in context.run.folds:
        predictions = read_fold_predictions(fold, plain.get(fold.number))
        if predictions is None:
            context.missing[f"{fold.files.path} has no table of predictions."] = (
                f"gcemil train {context.path} --again"
            )
            return None
        folds.append(predictions)
    bags = pool_folds(folds)
    drawn = bags.draw_weights(np.random.default_rng(context.seed))
    weights = np.vstack([np.ones(len(bags.labels)), drawn])
    return Sample(context.run, folds, bags, weights, (PLAIN, "full", "discrete", *beside))


def find_band(lines: np.ndarray) -> np.ndarray:
    """The interval over the draws at every place; NaN if less than half of them are defined."""
    ends = [find_interval(draws) or (np.nan, np.nan) for draws in lines[1:].T]
    return np.array(ends).T


def format_value(name: str, values: Draws) -> str:
    """A figure and its interval, for a legend."""
    interval = find_interval(values[1:])
    ends = "" if interval is None else f" [{interval[0]:.3f}, {interval[1]:.3f}]"
    return f"{name} {values[0]:.3f}{ends}"


def tabulate_metrics(
    context: Context, sample: Sample, extra: dict[str, dict[str, Draws]] | None = None
) -> Table:
    """One line per mode: mean and deviation over folds, then all bags together with an interval."""
    run, columns, extra = context.run, [], extra or {}
    has_folds = len(sample.folds) > 1
    heading = "all folds [95 % interval]" if has_folds else "[95 % interval]"
    for metric in run.task_metrics:
        label = METRICS[metric].label
        columns += [Column(metric, "mean ± sd of folds", metric, group=label)] * has_folds
        columns.append(Column(f"{metric}_all", heading, metric, group=label))
    for name in extra:
        heading = f"{name} [95 % interval]"
        columns.append(Column(name, heading, better="lower" if name == "IBS" else "higher"))
    lines = []
    for mode in sample.modes:
        cells = []
        for metric in run.task_metrics:
            spread = mean_and_deviation(context.read_values(mode, metric).values())
            cells += [metric_cell(metric, *spread)] * has_folds
            cells.append(value_cell(metric, sample.bags.measure(mode, metric, sample.weights)))
        for name, by_mode in extra.items():
            values = by_mode.get(mode)
            cells.append(NOT_MEASURED if values is None else value_cell(name, values))
        lines.append(Line((style.ARMS[mode],), "ours", tuple(cells)))
    pairs = "one set of predictions"
    if run.task == "survival":
        pairs = "pairs of patients of one fold, since risks of two networks share no unit"
    note = f"{len(sample.folds)} folds. All folds: {pairs}. " * has_folds + sample.note
    title = "Performance on the test part"
    headings = ("Prediction",)
    return Table(
        "metrics", title, "tab:metrics", headings, tuple(columns), tuple(lines), notes=(note,)
    )


def value_cell(metric: str, values: Draws) -> Cell:
    """The value of the sample with the interval of the draws."""
    value = None if np.isnan(values[0]) else float(values[0])
    return metric_cell(metric, value, interval=find_interval(values[1:]))
