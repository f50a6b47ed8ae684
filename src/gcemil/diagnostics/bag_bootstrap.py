"""How much of a difference between two runs depends on which bags were tested: a paired bootstrap over test bags.

Both networks of every fold stay as they are. Cases are drawn with replacement inside each fold and class (event, for
survival), the same cases for both runs, and the difference of the metric is averaged over the folds. Predictions of
different folds never meet in one metric: they come from different networks, whose scales need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.bags.tables import read_table
from gcemil.diagnostics.paired_tests import percentile_interval
from gcemil.errors import InputError, RunError
from gcemil.tasks.task import ClassificationTask, Task

Compared = tuple[str, str]
"""A mode of the run and a task metric."""


@dataclass(frozen=True, eq=False)
class BagPredictions:
    """The test predictions of one fold and mode, in the order of slide ids."""

    slide_ids: tuple[str, ...]
    case_ids: tuple[str, ...]
    targets: Tensor
    predictions: Tensor

    def metrics(self, task: Task, rows: Int[np.ndarray, "k"]) -> dict[str, float] | None:
        """Metrics of these rows; None where they leave one undefined."""
        index = torch.from_numpy(rows)
        try:
            return task.metrics(self.targets[index], self.predictions[index])
        except InputError:
            return None


@dataclass(frozen=True, eq=False)
class FoldPair:
    """One fold as both runs predicted it."""

    ours: dict[str, BagPredictions]
    """By mode."""
    theirs: BagPredictions


@dataclass(frozen=True)
class BagIntervals:
    intervals: dict[Compared, tuple[float, float]]
    undefined: int
    """Draws that leave a metric undefined in some fold and do not count."""


def bag_intervals(
    folds: Iterable[FoldPair], task: Task, *, generator: np.random.Generator, resamples: int = 1000
) -> BagIntervals:
    """95 % percentile intervals; none where less than half of the draws count."""
    per_fold = [draw_differences(fold, task, generator, resamples) for fold in folds]
    nowhere = np.full(resamples, np.nan)
    keys = dict.fromkeys(key for fold in per_fold for key in fold)
    means = {key: np.mean([fold.get(key, nowhere) for fold in per_fold], axis=0) for key in keys}
    defined = {key: values[~np.isnan(values)] for key, values in means.items()}
    return BagIntervals(
        {key: percentile_interval(found) for key, found in defined.items() if 2 * len(found) >= resamples},
        max((resamples - len(found) for found in defined.values()), default=0),
    )


def draw_differences(
    fold: FoldPair, task: Task, generator: np.random.Generator, resamples: int
) -> dict[Compared, Float[np.ndarray, "resamples"]]:
    """Ours minus theirs on each draw, NaN where a metric is undefined."""
    draws = draw_rows(fold.theirs, resamples, generator)
    theirs = [fold.theirs.metrics(task, rows) for rows in draws]
    names = next((list(found) for found in theirs if found is not None), [])
    gained: dict[Compared, Float[np.ndarray, "resamples"]] = {}
    for mode, bags in fold.ours.items():
        pairs = list(zip([bags.metrics(task, rows) for rows in draws], theirs, strict=True))
        for name in names:
            values = [np.nan if a is None or b is None else a[name] - b[name] for a, b in pairs]
            gained[mode, name] = np.array(values)
    return gained


def draw_rows(
    bags: BagPredictions, resamples: int, generator: np.random.Generator
) -> list[Int[np.ndarray, "_"]]:
    """Rows of whole cases, drawn with replacement inside each class or inside each event."""
    stratum = (bags.targets if bags.targets.ndim == 1 else bags.targets[:, 1]).long().tolist()
    cases: dict[str, list[int]] = {}
    for row, case_id in enumerate(bags.case_ids):
        cases.setdefault(case_id, []).append(row)
    strata: dict[int, list[list[int]]] = {}
    for rows in cases.values():
        strata.setdefault(stratum[rows[0]], []).append(rows)
    return [
        np.array(
            [
                row
                for own in strata.values()
                for pick in generator.integers(len(own), size=len(own)).tolist()
                for row in own[pick]
            ],
            dtype=np.int64,
        )
        for _ in range(resamples)
    ]


def read_fold_pair(ours: Mapping[str, Path], theirs: Path, task: Task) -> FoldPair:
    """Both runs' tables of predictions, which must be about the same bags."""
    other = read_predictions(theirs, task)
    found = {mode: read_predictions(path, task) for mode, path in ours.items()}
    for mode, bags in found.items():
        if bags.slide_ids != other.slide_ids:
            alone = sorted(set(bags.slide_ids) ^ set(other.slide_ids))
            raise RunError(
                f"{ours[mode]} and {theirs} test different bags ('{alone[0]}' is in one of them only): the folds were "
                "made anew between the runs. Train one of them again."
            )
    return FoldPair(found, other)


def read_predictions(path: Path, task: Task) -> BagPredictions:
    """The test rows of a table of predictions."""
    names = task.prediction_names
    target_names = ["target"] if isinstance(task, ClassificationTask) else ["target", "event"]
    table = read_table(path, ("slide_id", "case_id", "split", *target_names, *names))
    rows = sorted((row for row in table if row["split"] == "test"), key=lambda row: row["slide_id"])
    try:
        values = torch.tensor([[float(row[name]) for name in names] for row in rows], dtype=torch.float64)
        targets = stack_targets(rows, task)
        if not (bool(values.isfinite().all()) and bool(targets.isfinite().all())):
            raise ValueError("a number is not finite")
        if len({row["slide_id"] for row in rows}) < len(rows):
            raise ValueError("a bag stands twice")
        if not rows:
            raise ValueError("it has no test bag")
    except ValueError as error:
        raise RunError(
            f"{path} is no table of predictions ({error}). Make it again with 'gcemil evaluate'."
        ) from error
    return BagPredictions(
        tuple(row["slide_id"] for row in rows),
        tuple(row["case_id"] for row in rows),
        targets,
        values if isinstance(task, ClassificationTask) else values.squeeze(1),
    )


def stack_targets(rows: Sequence[dict[str, str]], task: Task) -> Tensor:
    """Class indices, or times and events."""
    if isinstance(task, ClassificationTask):
        return torch.tensor([task.classes.index(row["target"]) for row in rows])
    return torch.tensor([[float(row["target"]), float(row["event"])] for row in rows])
