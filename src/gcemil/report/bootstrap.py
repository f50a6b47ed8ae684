"""Intervals of task metrics by a bootstrap over test bags.

Folds have different networks, so a metric is computed within a fold and then averaged over folds.
Cases are drawn with replacement inside each fold and class (event, for survival; quartile of the
label, for regression). All modes share the draws, so differences are paired. A draw is a vector of
weights, which makes all draws one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
Weights = Float[np.ndarray, "d n"]
Draws = Float[np.ndarray, "d"]


@dataclass(frozen=True, eq=False)
class FoldPredictions:
    """The test bags of one fold in one order, as every mode predicted them."""

    cases: Shaped[np.ndarray, "n"]
    classes: tuple[str, ...]
    """Empty for survival and regression."""
    labels: Int[np.ndarray, "n"]
    """Class; for survival, whether the event was seen; for regression, the quartile of the value."""
    targets: Float[np.ndarray, "n"]
    """Time of survival, or value of regression; 0 for classes."""
    by_mode: dict[str, Float[np.ndarray, "..."]]
    """Probabilities (bags, classes), or risks or values (bags,)."""
    folds: Int[np.ndarray, "n"] | None = None
    """The fold of every bag, if there are several."""

    def measure(self, mode: str, metric: str, weights: Weights) -> Draws:
        """The metric under every row of weights; NaN where it is undefined."""
        values, labels = self.by_mode[mode], self.labels
        if metric in TASKS["regression"].metrics:
            return measure_values(metric, weights, self.targets, values)
        if metric == "c_index":
            # Harrell's concordance: pairs of an event and a case that outlived it.
            times, events = self.targets, labels == 1
            outlived = (times[events][:, None] < times) | (
                (times[events][:, None] == times) & ~events
            )
            if self.folds is not None:
                # Risks of different networks share no unit.
                outlived &= self.folds[events][:, None] == self.folds
            everyone = np.ones(len(times), dtype=bool)
            return share_of_pairs(weights, events, everyone, values, outlived)
        predicted = values.argmax(axis=1)
        if metric == "accuracy":
            return weights @ (predicted == labels) / weights.sum(axis=1)
        if metric == "macro_f1":
            # The mean over the classes that occur as label or prediction.
            classes = np.arange(values.shape[1])
            is_true, is_predicted = labels[:, None] == classes, predicted[:, None] == classes
            hits = weights @ (is_true & is_predicted)
            total = weights @ is_true + weights @ is_predicted
            scores = np.divide(2 * hits, total, out=np.zeros_like(hits), where=total > 0)
            return scores.sum(axis=1) / (total > 0).sum(axis=1)
        # One-vs-rest area, the mean over the classes that occur.
        areas = [
            share_of_pairs(weights, labels == index, labels != index, values[:, index])
            for index in np.unique(labels)
            if (labels != index).any()
        ]
        return np.mean(areas, axis=0) if areas else np.full(len(weights), np.nan)

    def draw_weights(self, generator: np.random.Generator, draws: int = DRAWS) -> Weights:
        """How often every bag is drawn."""
        names, first, case = np.unique(self.cases, return_index=True, return_inverse=True)
        counts = np.zeros((draws, len(names)))
        for label in np.unique(self.labels):
            members = np.flatnonzero(self.labels[first] == label)
            if len(members):
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
    ids = (
        sorted(set.intersection(*(set(table.index) for table in tables.values()))) if tables else []
    )
    if not ids:
        return None
    truth = next(iter(tables.values())).loc[ids]
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
            f"{fold.files.path}: a table of predictions has a value that is no class or number "
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
    """A metric of regression under every row of weights; NaN where the drawn labels are all alike."""
    total = weights.sum(axis=1)
    if metric == "mae":
        return np.asarray(weights @ np.abs(values - labels) / total)
    if metric == "spearman":
        # Ranks among all bags, as a draw repeats bags and does not reorder them.
        labels, values = rankdata(labels), rankdata(values)
    means = [weights @ one / total for one in (labels, values)]
    spreads = [
        weights @ np.square(one) / total - np.square(mean)
        for one, mean in zip((labels, values), means, strict=True)
    ]
    varies = spreads[0] > 1e-12
    if metric == "r2":
        error = weights @ np.square(values - labels) / total
        return 1 - np.divide(error, spreads[0], out=np.full(len(weights), np.nan), where=varies)
    together = weights @ (labels * values) / total - means[0] * means[1]
    scale = np.sqrt(np.maximum(spreads[0], 0) * np.maximum(spreads[1], 0))
    found = np.divide(together, scale, out=np.zeros(len(weights)), where=scale > 1e-12)
    return np.where(varies, found, np.nan)


def share_of_pairs(
    weights: Weights,
    first: Bool[np.ndarray, "n"],
    second: Bool[np.ndarray, "n"],
    values: Float[np.ndarray, "n"],
    counts: Shaped[np.ndarray, "a b"] | bool = True,
) -> Draws:
    """Weighted share of pairs (a of first, b of second) with value a > value b; a tie is half a pair."""
    difference = values[first][:, None] - values[second]
    won = (np.sign(difference) + 1) / 2 * counts
    wins = ((weights[:, first] @ won) * weights[:, second]).sum(axis=1)
    pairs = ((weights[:, first] @ (counts * np.ones_like(won))) * weights[:, second]).sum(axis=1)
    return np.divide(wins, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)


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
