"""Metrics, intervals and curves of test bags, for many weightings of the bags at once.

One row of weights is one bootstrap draw: how often every bag is drawn; a row of ones is the sample
itself. Cases are drawn with replacement inside each class (event, for survival; quartile of the
label, for regression). All modes share the draws, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped
from scipy.stats import rankdata

from gcemil.errors import RunError
from gcemil.metrics import TASKS
from gcemil.report.run_data import FoldData

DRAWS = 1000
PLAIN = "plain"
"""The plain host of another run, beside the modes of this one."""
BINS = 10
GRID = np.linspace(0, 1, 101)
Weights = Float[np.ndarray, "d n"]
Draws = Float[np.ndarray, "d"]
Lines = Float[np.ndarray, "d g"]


@dataclass(frozen=True, eq=False)
class FoldPredictions:
    """The test bags of one fold in one order, as every mode predicted them."""

    cases: Shaped[np.ndarray, "n"]
    classes: tuple[str, ...]
    """Empty for survival and regression."""
    labels: Int[np.ndarray, "n"]
    """Class; for survival, whether the event was seen; for regression, quartile of the value."""
    targets: Float[np.ndarray, "n"]
    """Time of survival, or value of regression; 0 for classes."""
    by_mode: dict[str, Float[np.ndarray, "..."]]
    """Probabilities (bags, classes), or risks or values (bags,)."""
    folds: Int[np.ndarray, "n"] | None = None
    """The fold of every bag, if there are several."""

    def measure(self, mode: str, metric: str, weights: Weights) -> Draws:
        """The metric under every row of weights; NaN where it is undefined."""
        values = self.by_mode[mode]
        if metric in TASKS["regression"].metrics:
            return measure_values(metric, weights, self.targets, values)
        if metric == "c_index":
            return self._measure_concordance(values, weights)
        if metric == "accuracy":
            return weights @ (values.argmax(axis=1) == self.labels) / weights.sum(axis=1)
        by_class = measure_classes(self, mode, weights)
        if metric == "macro_f1":
            # The mean over the classes that occur as label or prediction.
            return np.nanmean(by_class["f1"], axis=1)
        occurs = [index for index in np.unique(self.labels) if (self.labels != index).any()]
        if not occurs:
            return np.full(len(weights), np.nan)
        return np.mean([by_class["auc"][:, index] for index in occurs], axis=0)

    def _measure_concordance(self, risks: Float[np.ndarray, "n"], weights: Weights) -> Draws:
        """Harrell's concordance: pairs of an event and a case that outlived it."""
        times, events = self.targets, self.labels == 1
        own = times[events][:, None]
        outlived = (own < times) | ((own == times) & ~events)
        if self.folds is not None:
            # Risks of different networks share no unit.
            outlived &= self.folds[events][:, None] == self.folds
        return share_of_pairs(weights, events, np.ones(len(times), bool), risks, outlived)

    def draw_weights(self, generator: np.random.Generator, draws: int = DRAWS) -> Weights:
        """How often every bag is drawn."""
        names, first, case = np.unique(self.cases, return_index=True, return_inverse=True)
        counts = np.zeros((draws, len(names)))
        for label in np.unique(self.labels[first]):
            members = np.flatnonzero(self.labels[first] == label)
            shares = np.full(len(members), 1 / len(members))
            counts[:, members] = generator.multinomial(len(members), shares, size=draws)
        return counts[:, case]


def read_fold_predictions(fold: FoldData, plain: FoldData | None = None) -> FoldPredictions | None:
    """The bags that all modes of the fold predicted; None without tables of predictions.

    `plain` is the same fold of the plain host; its prediction from all patches is mode "plain".
    """
    lines = {mode: fold.predictions(mode) for mode in fold.modes}
    if plain is not None:
        lines[PLAIN] = plain.predictions("full")
    tables = {
        mode: pd.DataFrame(rows).set_index("slide_id") for mode, rows in lines.items() if rows
    }
    if not tables:
        return None
    first, *others = tables.values()
    ids = sorted(set(first.index).intersection(*(table.index for table in others)))
    if not ids:
        return None
    truth = first.loc[ids]
    columns = [name for name in truth if name.startswith("prob_")]
    classes = tuple(name.removeprefix("prob_") for name in columns)
    number = [task.number for task in TASKS.values() if task.number in truth]
    try:
        targets = np.zeros(len(ids)) if classes else truth.target.astype(float).to_numpy()
        if classes:
            labels = np.array([classes.index(name) for name in truth.target], dtype=int)
        elif "event" in truth:
            labels = truth.event.astype(float).to_numpy().astype(int)
        else:
            labels = np.searchsorted(np.quantile(targets, [0.25, 0.5, 0.75]), targets)
        by_mode = {
            mode: table.loc[ids, columns or number[0]].astype(float).to_numpy()
            for mode, table in tables.items()
        }
    except (KeyError, OverflowError, ValueError) as error:
        raise RunError(
            f"{fold.files.path}: a table of predictions has a value that is not a class or number "
            f"({error}). Make it again with 'gcemil train RUN --again'."
        ) from error
    return FoldPredictions(truth.case_id.to_numpy(dtype=str), classes, labels, targets, by_mode)


def pool_folds(folds: Sequence[FoldPredictions]) -> FoldPredictions:
    """The test bags of all folds as one set; a case that several folds test is drawn as one."""
    modes = [mode for mode in folds[0].by_mode if all(mode in fold.by_mode for fold in folds)]
    return FoldPredictions(
        cases=np.concatenate([fold.cases for fold in folds]),
        classes=folds[0].classes,
        labels=np.concatenate([fold.labels for fold in folds]),
        targets=np.concatenate([fold.targets for fold in folds]),
        by_mode={mode: np.concatenate([fold.by_mode[mode] for fold in folds]) for mode in modes},
        folds=np.repeat(np.arange(len(folds)), [len(fold.labels) for fold in folds]),
    )


def measure_values(
    metric: str, weights: Weights, labels: Float[np.ndarray, "n"], values: Float[np.ndarray, "n"]
) -> Draws:
    """A metric of regression; NaN where the drawn labels are all alike."""
    total = weights.sum(axis=1)
    if metric == "mae":
        return np.asarray(weights @ np.abs(values - labels) / total)
    if metric == "spearman":
        # Ranks among all bags, as a draw repeats bags and does not reorder them.
        labels, values = rankdata(labels), rankdata(values)
    means = [weights @ one / total for one in (labels, values)]
    label_spread, spread = (
        weights @ np.square(one) / total - np.square(mean)
        for one, mean in zip((labels, values), means, strict=True)
    )
    varies = label_spread > 1e-12
    if metric == "r2":
        return 1 - _divide(weights @ np.square(values - labels) / total, label_spread, varies)
    together = weights @ (labels * values) / total - means[0] * means[1]
    scale = np.sqrt(np.maximum(label_spread, 0) * np.maximum(spread, 0))
    return np.where(varies, np.nan_to_num(_divide(together, scale, scale > 1e-12)), np.nan)


def share_of_pairs(
    weights: Weights,
    first: Bool[np.ndarray, "n"],
    second: Bool[np.ndarray, "n"],
    values: Float[np.ndarray, "n"],
    counts: Any = True,
) -> Draws:
    """Weighted share of pairs (a of first, b of second) with value a > value b; a tie is half."""
    difference = values[first][:, None] - values[second]
    won = (np.sign(difference) + 1) / 2 * counts
    wins, pairs = (
        ((weights[:, first] @ one) * weights[:, second]).sum(axis=1)
        for one in (won, counts * np.ones_like(won))
    )
    return _divide(wins, pairs, pairs > 0)


def _divide(above: Any, below: Any, where: Any) -> Any:
    """NaN elsewhere."""
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=where)


def draw_metrics(
    folds: list[FoldPredictions], modes: list[str], metrics: tuple[str, ...], *, seed: int
) -> dict[tuple[str, str], Draws]:
    """Means over folds of every mode and metric on the same draws."""
    generator = np.random.default_rng(seed)
    drawn = [(fold, fold.draw_weights(generator)) for fold in folds]
    return {
        (mode, metric): np.mean(
            [fold.measure(mode, metric, weights) for fold, weights in drawn], axis=0
        )
        for mode in modes
        for metric in metrics
    }


def find_interval(values: Draws) -> tuple[float, float] | None:
    """95 % percentile interval; None where less than half of the draws are defined."""
    defined = values[~np.isnan(values)]
    if 2 * len(defined) < len(values):
        return None
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Curves:
    """Two curves on GRID, one line per row of weights."""

    roc: Lines
    """Sensitivity over the false positive rate."""
    precision_recall: Lines
    """The best precision at this recall or a higher one."""
    average_precision: Float[np.ndarray, "d"]
    """Precision at every threshold, weighted by the recall it gains."""


def trace_curves(
    bags: FoldPredictions, mode: str, weights: Weights, classes: Sequence[int] | None = None
) -> Curves | None:
    """The mean over the classes: the second of two, or each of several against the others.

    None where one class occurs.
    """
    if classes is None:
        classes = (1,) if len(bags.classes) == 2 else np.unique(bags.labels).tolist()
    traced = [
        _trace_class(bags.labels == index, bags.by_mode[mode][:, index], weights)
        for index in classes
        if (bags.labels == index).any() and (bags.labels != index).any()
    ]
    if not traced:
        return None
    return Curves(*(np.mean(parts, axis=0) for parts in zip(*traced, strict=True)))


def _trace_class(
    positive: Bool[np.ndarray, "n"], scores: Float[np.ndarray, "n"], weights: Weights
) -> tuple[Lines, Lines, Float[np.ndarray, "d"]]:
    order = np.argsort(-scores, kind="stable")
    # Bags with one score pass the threshold together.
    is_last = np.append(np.diff(scores[order]) != 0, True)
    hits, alarms = (
        np.cumsum(weights[:, order] * side[order], axis=1)[:, is_last]
        for side in (positive, ~positive)
    )
    start = np.zeros((len(weights), 1))
    recall, false_rate = (
        np.hstack([start, counts / np.maximum(counts[:, -1:], 1e-12)]) for counts in (hits, alarms)
    )
    # Where nothing has passed the threshold, no prediction was wrong.
    precision = np.divide(hits, hits + alarms, out=np.ones_like(hits), where=hits + alarms > 0)
    precision = np.hstack([start + 1, precision])
    average = (np.diff(recall, axis=1) * precision[:, 1:]).sum(axis=1)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    roc = [np.interp(GRID, across, up) for across, up in zip(false_rate, recall, strict=True)]
    precision_recall = [
        up[np.minimum(np.searchsorted(across, GRID), len(up) - 1)]
        for across, up in zip(recall, best, strict=True)
    ]
    return np.array(roc), np.array(precision_recall), average


def bin_confidence(
    bags: FoldPredictions, mode: str, weights: Weights
) -> tuple[Lines, Lines, Float[np.ndarray, "d"]]:
    """Mean confidence and share of right predictions per bin (NaN if empty), and their ECE."""
    confidence = bags.by_mode[mode].max(axis=1)
    right = bags.by_mode[mode].argmax(axis=1) == bags.labels
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    members = place[:, None] == np.arange(BINS)
    sizes = weights @ members
    means, shares = (
        _divide(weights @ (members * values[:, None]), sizes, sizes > 0)
        for values in (confidence, right)
    )
    error = np.nansum(sizes * np.abs(means - shares), axis=1) / sizes.sum(axis=1)
    return means, shares, error


def measure_classes(
    bags: FoldPredictions, mode: str, weights: Weights
) -> dict[str, Float[np.ndarray, "d c"]]:
    """Metrics of each class against the others; NaN where undefined."""
    scores, classes = bags.by_mode[mode], np.arange(len(bags.classes))
    is_true = bags.labels[:, None] == classes
    is_predicted = scores.argmax(axis=1)[:, None] == classes
    hits, true, predicted = (
        weights @ is_member for is_member in (is_true & is_predicted, is_true, is_predicted)
    )
    others = weights.sum(axis=1, keepdims=True) - true
    areas = [share_of_pairs(weights, is_true[:, i], ~is_true[:, i], scores[:, i]) for i in classes]
    shares = {
        "sensitivity": (hits, true),
        "specificity": (others - predicted + hits, others),
        "precision": (hits, predicted),
        "f1": (2 * hits, true + predicted),
    }
    measured = {name: _divide(*pair, pair[1] > 0) for name, pair in shares.items()}
    return {**measured, "auc": np.stack(areas, axis=1)}
