"""significance: is one run better than another?

Paired tests over the folds that two runs share, and over the bags they both tested. Each mode of
`run` (full bag, gates, discrete evidence) is compared with the full bag of `against`, fold by fold,
for every task metric. Folds share most of their training bags, so p-values over folds are too small
rather than too large.

The interval over bags is the uncertainty of a difference from the tested bags: a paired bootstrap
in which both networks of every fold stay as they are. Cases are drawn with replacement inside each
fold and class (event, for survival; quartile of the label, for regression), the same cases for both
runs, and the difference of the metric is averaged over the folds. Predictions of different folds
are never pooled in one metric: they come from different networks, whose scales may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.bags.cohort import Cohort
from gcemil.bags.tables import read_table
from gcemil.diagnostics.paired_tests import holm, paired_tests, percentile_interval
from gcemil.errors import InputError, RunError
from gcemil.findings import Figures, Finding, Row
from gcemil.metrics import METRICS
from gcemil.records import MODES
from gcemil.runs.folder import Run
from gcemil.tasks.task import ClassificationTask, RegressionTask, SurvivalTask, Task, create_task

FoldMetrics = dict[int, dict[str, dict[str, float]]]


Compared = tuple[str, str]
"""A mode of the run and a task metric."""


def compare_runs(run: Path, against: Path, *, seed: int = 0, resamples: int = 1000) -> Finding:
    """Every mode and metric of `run` against the full bag of `against`."""
    Run(run).check_same_cohort(against)
    ours, theirs = read_fold_metrics(run), read_fold_metrics(against)
    if alone := sorted(set(ours) ^ set(theirs)):
        raise RunError(
            f"{run} has the folds {sorted(ours)}, {against} has {sorted(theirs)}: fold {alone[0]} "
            "has no partner. Train the missing folds with 'gcemil train --folds'."
        )
    folds = list(ours.values())
    modes = [mode for mode in MODES if all(mode in fold for fold in folds)]
    compared = [
        (mode, name)
        for mode in modes
        for name in folds[0][mode]
        if name in METRICS and all(name in fold[mode] for fold in folds)
    ]
    generator = np.random.default_rng(seed)
    differences = {
        (mode, metric): np.array(
            [ours[fold][mode][metric] - theirs[fold]["full"][metric] for fold in ours]
        )
        for mode, metric in compared
    }
    tests = {key: paired_tests(values, generator=generator) for key, values in differences.items()}
    files = {
        fold: {mode: Run(run).fold(fold).predictions(mode, ours[fold]) for mode in modes}
        for fold in ours
    }
    rivals = {fold: Run(against).fold(fold).predictions("full", theirs[fold]) for fold in ours}
    intervals, bag_notes = _bootstrap_bags(run, files, rivals, generator, resamples)
    # Holm's family is all rows of the finding, separately for each test.
    for name in ("p_paired_t", "p_wilcoxon"):
        corrected = holm([test[name] for test in tests.values()])
        for test, p in zip(tests.values(), corrected, strict=True):
            test[f"{name}_holm"] = p
    rows = []
    for (mode, metric), test in tests.items():
        low, high = intervals.get((mode, metric), (None, None))
        values = {**test, "bag_difference_low": low, "bag_difference_high": high}
        own = differences[mode, metric]
        spread = {"difference": float(own.std(ddof=1))} if len(ours) > 1 else {}
        rows.append(Row({"mode": mode, "metric": metric}, values, spread))
    slides = [
        {
            "fold": fold,
            "mode": mode,
            "metric": metric,
            "value": ours[fold][mode][metric],
            "against": theirs[fold]["full"][metric],
        }
        for mode, metric in compared
        for fold in ours
    ]
    return Finding(
        name="significance",
        rows=tuple(rows),
        slides=tuple(slides),
        notes=(*_fold_notes(tests, len(ours)), *bag_notes),
        settings={
            "folds": sorted(ours),
            "seed": seed,
            "resamples": resamples,
            "against": against.name,
        },
    )


def read_fold_metrics(run: Path) -> FoldMetrics:
    """metrics.json of every finished fold, by fold and mode."""
    metrics_of = {fold.number: fold.read_metrics() for fold in Run(run).finished_folds()}
    if not metrics_of:
        raise RunError(f"{run} has no finished fold. Train it with 'gcemil train'.")
    return {
        number: {
            mode: {name: value for name, value in figures.items() if value is not None}
            for mode, figures in metrics.modes.items()
        }
        for number, metrics in metrics_of.items()
    }


def _bootstrap_bags(
    run: Path,
    files: Mapping[int, Mapping[str, Path]],
    rivals: Mapping[int, Path],
    generator: np.random.Generator,
    resamples: int,
) -> tuple[dict[Compared, tuple[float, float]], list[str]]:
    """The intervals over bags, and why there are none or how many draws do not count."""
    needed = [*rivals.values(), *(path for own in files.values() for path in own.values())]
    if missing := next((path for path in needed if not path.is_file()), None):
        return {}, [f"No interval over bags: {missing.parent.name}/{missing.name} does not exist."]
    card = Run(run).card
    task = create_task(Cohort.load(card.cohort), card.settings)
    pairs = (_read_fold_pair(files[fold], rivals[fold], task) for fold in files)
    intervals, undefined = bag_intervals(pairs, task, generator=generator, resamples=resamples)
    if not undefined:
        return intervals, []
    return intervals, [
        f"Interval over bags: {undefined} of {resamples} draws leave a metric undefined and do not "
        "count."
    ]


def _fold_notes(tests: Mapping[Compared, Figures], n_folds: int) -> list[str]:
    """What so few folds can and cannot show."""
    if n_folds < 2:
        return ["One fold gives one difference: no test over folds is possible."]
    # All folds in one direction give the smallest p.
    lines = [
        f"With {n_folds} folds the smallest possible two-sided p of the Wilcoxon test is "
        f"{2.0 ** (1 - n_folds):g}.",
        "Folds share training bags, so their differences are not independent and p-values over "
        "folds are too small.",
    ]
    if equal := [" ".join(key) for key, test in tests.items() if test["rank_biserial"] is None]:
        lines.append(f"{', '.join(equal)}: every difference is 0, so there is nothing to test.")
    return lines + [
        f"{mode} {metric}: every fold differs by the same, so the t-test has no spread to compare "
        "with."
        for (mode, metric), test in tests.items()
        if test["rank_biserial"] is not None and test["cohens_dz"] is None
    ]


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


FoldPair = tuple[Mapping[str, BagPredictions], BagPredictions]
"""One fold as both runs predicted it: ours by mode, and theirs."""


def bag_intervals(
    folds: Iterable[FoldPair], task: Task, *, generator: np.random.Generator, resamples: int = 1000
) -> tuple[dict[Compared, tuple[float, float]], int]:
    """95 % percentile intervals, if half of the draws count; and how many draws do not."""
    per_fold = [_draw_differences(*fold, task, generator, resamples) for fold in folds]
    nowhere = np.full(resamples, np.nan)
    keys = dict.fromkeys(key for fold in per_fold for key in fold)
    means = {key: np.mean([fold.get(key, nowhere) for fold in per_fold], axis=0) for key in keys}
    defined = {key: values[~np.isnan(values)] for key, values in means.items()}
    undefined = max((resamples - len(draws) for draws in defined.values()), default=0)
    intervals = {
        key: percentile_interval(draws)
        for key, draws in defined.items()
        if 2 * len(draws) >= resamples
    }
    return intervals, undefined


def _draw_differences(
    ours: Mapping[str, BagPredictions],
    other: BagPredictions,
    task: Task,
    generator: np.random.Generator,
    resamples: int,
) -> dict[Compared, Float[np.ndarray, "resamples"]]:
    """Ours minus theirs on each draw, NaN where a metric is undefined."""
    draws = draw_rows(other, resamples, generator)
    theirs = [other.metrics(task, rows) for rows in draws]
    names = next((list(folds) for folds in theirs if folds is not None), [])
    gained: dict[Compared, Float[np.ndarray, "resamples"]] = {}
    for mode, bags in ours.items():
        pairs = list(zip([bags.metrics(task, rows) for rows in draws], theirs, strict=True))
        for name in names:
            values = [np.nan if a is None or b is None else a[name] - b[name] for a, b in pairs]
            gained[mode, name] = np.array(values)
    return gained


def draw_rows(
    bags: BagPredictions, resamples: int, generator: np.random.Generator
) -> list[Int[np.ndarray, "_"]]:
    """Rows of whole cases, drawn with replacement inside each class, quartile or event."""
    targets = bags.targets if bags.targets.ndim == 1 else bags.targets[:, 1]
    if bags.targets.ndim == 1 and targets.is_floating_point():
        targets = torch.searchsorted(
            torch.quantile(targets, targets.new_tensor([0.25, 0.5, 0.75])), targets
        )
    stratum = targets.long().tolist()
    cases: dict[str, list[int]] = {}
    for row, case_id in enumerate(bags.case_ids):
        cases.setdefault(case_id, []).append(row)
    strata: dict[int, list[list[int]]] = {}
    for rows in cases.values():
        strata.setdefault(stratum[rows[0]], []).append(rows)
    return [
        np.concatenate(
            [
                own[pick]
                for own in strata.values()
                for pick in generator.integers(len(own), size=len(own)).tolist()
            ]
        )
        for _ in range(resamples)
    ]


def _read_fold_pair(ours: Mapping[str, Path], theirs: Path, task: Task) -> FoldPair:
    """Both runs' tables of predictions, which must be about the same bags."""
    other = read_predictions(theirs, task)
    predictions = {mode: read_predictions(path, task) for mode, path in ours.items()}
    for mode, bags in predictions.items():
        if bags.slide_ids != other.slide_ids:
            alone = sorted(set(bags.slide_ids) ^ set(other.slide_ids))
            raise RunError(
                f"{ours[mode]} and {theirs} test different bags ('{alone[0]}' is in one of them "
                "only): the folds were made anew between the runs. Train one of them again."
            )
    return predictions, other


def read_predictions(path: Path, task: Task) -> BagPredictions:
    """The test rows of a table of predictions."""
    names = task.prediction_names
    target_names = ["target", "event"] if isinstance(task, SurvivalTask) else ["target"]
    table = read_table(path, ("slide_id", "case_id", "split", *target_names, *names))
    rows = sorted((row for row in table if row["split"] == "test"), key=lambda row: row["slide_id"])
    try:
        values = torch.tensor(
            [[float(row[name]) for name in names] for row in rows], dtype=torch.float64
        )
        targets = torch.tensor(
            [task.classes.index(row["target"]) for row in rows]
            if isinstance(task, ClassificationTask)
            else [[float(row[name]) for name in target_names] for row in rows]
        )
        if not (bool(values.isfinite().all()) and bool(targets.isfinite().all())):
            raise ValueError("a number is not finite")
        if len({row["slide_id"] for row in rows}) < len(rows):
            raise ValueError("a bag stands twice")
        if not rows:
            raise ValueError("it has no test bag")
    except ValueError as error:
        raise RunError(
            f"{path} is not a table of predictions ({error}). "
            "Make it again with 'gcemil train RUN --again'."
        ) from error
    return BagPredictions(
        tuple(row["slide_id"] for row in rows),
        tuple(row["case_id"] for row in rows),
        targets.squeeze(1) if isinstance(task, RegressionTask) else targets,
        values if isinstance(task, ClassificationTask) else values.squeeze(1),
    )
