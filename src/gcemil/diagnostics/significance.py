"""Is one run better than another? Paired tests over the folds they share, and over the bags they both tested.

Each mode of `run` (full bag, gates, discrete evidence) is compared with the full bag of `against`, fold by fold, for
every task metric. Folds share most of their training bags, so p-values over folds are too small rather than too large;
the interval over bags asks another question and is explained in bag_bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gcemil.bags.cohort import Cohort
from gcemil.diagnostics.bag_bootstrap import BagIntervals, Compared, bag_intervals, read_fold_pair
from gcemil.diagnostics.paired_tests import PairedTests, holm, paired_tests, smallest_wilcoxon
from gcemil.errors import RunError
from gcemil.findings import Finding, Row
from gcemil.metrics import METRICS
from gcemil.runs.folder import check_same_cohort, create_task, read_run
from gcemil.runs.records import MODES, finished_folds, fold_number, read_metrics

FoldMetrics = dict[int, dict[str, dict[str, float]]]


def compare_runs(run: Path, against: Path, *, seed: int = 0, resamples: int = 1000) -> Finding:
    """Every mode and metric of `run` against the full bag of `against`."""
    check_same_cohort(run, against)
    ours, theirs = read_fold_metrics(run), read_fold_metrics(against)
    check_paired(run, ours, against, theirs)
    compared = [(mode, metric) for mode in shared_modes(ours) for metric in task_metrics(ours, mode)]
    generator = np.random.default_rng(seed)
    tests = [
        paired_tests(fold_differences(ours, theirs, mode, metric), generator=generator)
        for mode, metric in compared
    ]
    over_bags, missing = bootstrap_bags(run, against, ours, theirs, generator=generator, resamples=resamples)
    return Finding(
        name="significance",
        rows=tuple(significance_rows(compared, tests, over_bags)),
        slides=tuple(fold_details(ours, theirs, compared)),
        notes=(*fold_notes(compared, tests), *bag_notes(over_bags, missing, resamples)),
        settings={"folds": sorted(ours), "seed": seed, "resamples": resamples, "against": against.name},
    )


def read_fold_metrics(run: Path) -> FoldMetrics:
    """metrics.json of every finished fold, by fold and mode."""
    found = {
        number: read_metrics(folder)
        for folder in finished_folds(run)
        if (number := fold_number(folder)) is not None
    }
    if not found:
        raise RunError(f"{run} has no finished fold. Train it with 'gcemil train'.")
    return {
        number: {
            mode: {name: value for name, value in figures.items() if value is not None}
            for mode, figures in metrics.modes.items()
        }
        for number, metrics in found.items()
    }


def check_paired(run: Path, ours: FoldMetrics, against: Path, theirs: FoldMetrics) -> None:
    if set(ours) != set(theirs):
        alone = sorted(set(ours) ^ set(theirs))
        raise RunError(
            f"{run} has the folds {sorted(ours)}, {against} has {sorted(theirs)}: fold {alone[0]} has no partner. "
            "Train the missing folds with 'gcemil train --folds'."
        )


def shared_modes(metrics: FoldMetrics) -> list[str]:
    return [mode for mode in MODES if all(mode in fold for fold in metrics.values())]


def task_metrics(metrics: FoldMetrics, mode: str) -> list[str]:
    """Metrics that every fold has."""
    folds = list(metrics.values())
    return [name for name in folds[0][mode] if name in METRICS and all(name in fold[mode] for fold in folds)]


def fold_differences(
    ours: FoldMetrics, theirs: FoldMetrics, mode: str, metric: str
) -> Float[np.ndarray, "folds"]:
    return np.array([ours[fold][mode][metric] - theirs[fold]["full"][metric] for fold in ours])


def significance_rows(
    compared: Sequence[Compared], tests: Sequence[PairedTests], over_bags: BagIntervals
) -> list[Row]:
    """Holm's family is all rows of the finding, separately for each test."""
    t_holm = holm([test.p_paired_t for test in tests])
    wilcoxon_holm = holm([test.p_wilcoxon for test in tests])
    rows = []
    for position, ((mode, metric), test) in enumerate(zip(compared, tests, strict=True)):
        low, high = over_bags.intervals.get((mode, metric), (None, None))
        values: dict[str, float | None] = {
            "difference": test.difference,
            "difference_low": test.low,
            "difference_high": test.high,
            "p_paired_t": test.p_paired_t,
            "p_paired_t_holm": t_holm[position],
            "p_wilcoxon": test.p_wilcoxon,
            "p_wilcoxon_holm": wilcoxon_holm[position],
            "cohens_dz": test.cohens_dz,
            "rank_biserial": test.rank_biserial,
            "bag_difference_low": low,
            "bag_difference_high": high,
        }
        deviations = {} if test.deviation is None else {"difference": test.deviation}
        rows.append(Row({"mode": mode, "metric": metric}, values, deviations))
    return rows


def fold_details(
    ours: FoldMetrics, theirs: FoldMetrics, compared: Sequence[Compared]
) -> list[dict[str, Any]]:
    return [
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


def bootstrap_bags(
    run: Path,
    against: Path,
    ours: FoldMetrics,
    theirs: FoldMetrics,
    *,
    generator: np.random.Generator,
    resamples: int,
) -> tuple[BagIntervals, list[Path]]:
    """The intervals, or the tables of predictions that are missing for them."""
    files = {
        fold: {mode: prediction_file(run, fold, mode, ours[fold]) for mode in shared_modes(ours)}
        for fold in ours
    }
    rivals = {fold: prediction_file(against, fold, "full", theirs[fold]) for fold in ours}
    needed = [*rivals.values(), *(path for own in files.values() for path in own.values())]
    if missing := [path for path in needed if not path.is_file()]:
        return BagIntervals({}, 0), missing
    card = read_run(run)
    task = create_task(Cohort.load(card.cohort), card.settings)
    pairs = (read_fold_pair(files[fold], rivals[fold], task) for fold in ours)
    return bag_intervals(pairs, task, generator=generator, resamples=resamples), []


def prediction_file(run: Path, fold: int, mode: str, metrics: dict[str, dict[str, float]]) -> Path:
    """predictions.csv holds the gated prediction of a wrapped run and the full bag's of a plain one."""
    main = "soft" if "soft" in metrics else "full"
    return run / f"fold_{fold}" / ("predictions.csv" if mode == main else f"predictions_{mode}.csv")


def fold_notes(compared: Sequence[Compared], tests: Sequence[PairedTests]) -> list[str]:
    """What so few folds can and cannot show."""
    n_folds = tests[0].n_pairs
    if n_folds < 2:
        return ["One fold gives one difference: no test over folds is possible."]
    lines = [
        f"With {n_folds} folds the smallest possible two-sided p of the Wilcoxon test is {smallest_wilcoxon(n_folds):g}.",
        "Folds share training bags, so their differences are not independent and p-values over folds are too small.",
    ]
    for (mode, metric), test in zip(compared, tests, strict=True):
        if test.rank_biserial is None:
            lines.append(f"{mode} {metric}: every difference is 0, so there is nothing to test.")
        elif test.cohens_dz is None:
            lines.append(
                f"{mode} {metric}: every fold differs by the same, so the t-test has no spread to compare with."
            )
    return lines


def bag_notes(over_bags: BagIntervals, missing: Sequence[Path], resamples: int) -> list[str]:
    if missing:
        return [f"No interval over bags: {missing[0].parent.name}/{missing[0].name} does not exist."]
    if over_bags.undefined:
        return [
            f"Interval over bags: {over_bags.undefined} of {resamples} draws leave a metric undefined and do not count."
        ]
    return []
