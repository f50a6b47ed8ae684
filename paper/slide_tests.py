"""Does +GCE predict otherwise than its host? A permutation test over test slides, for every host and dataset.

The gated prediction of a slide and that of the plain host's full bag change sides (swap_test.py). One fold is enough.
Folds, seeds and cohorts of a dataset are averaged within every swap; a slide that several seeds predicted is swapped in all of
them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gcemil.bags.tables import read_table
from gcemil.benchmark.figures import MeasuredRun
from gcemil.errors import CohortError, InputError, RunError
from gcemil.runs.folder import Run, RunFold
from paper.measured import Measured, SlideTest
from paper.swap_test import SwappedBags, SwappedClasses, SwappedRisks, swap_test

SEED = 0
CLASS_PREFIX = "prob_"
SURVIVAL_COLUMNS = ("target", "event", "risk")


def run_slide_tests(
    measured: Measured, runs: Sequence[MeasuredRun], holders: Sequence[MeasuredRun]
) -> list[SlideTest]:
    """One test for every dataset and host with predictions on both sides; `holders` hold their plain host."""
    groups: dict[tuple[str, str], list[SwappedBags]] = {}
    for dataset, run, plain in _pair_runs(measured, runs, holders):
        folds = groups.setdefault((dataset, run.host), [])
        folds += _read_folds(Run(run.folder), Run(plain.folder), run.cohort)
    return [
        _test_slides(dataset, host, folds) for (dataset, host), folds in groups.items() if folds
    ]


def _test_slides(dataset: str, host: str, folds: list[SwappedBags]) -> SlideTest:
    test = swap_test(folds, generator=np.random.default_rng(SEED))
    slides = len({case for fold in folds for case in fold.cases})
    return SlideTest(
        dataset=dataset,
        host=host,
        difference=test.difference,
        p=test.p,
        slides=slides,
        moved=test.moved,
    )


def _pair_runs(
    measured: Measured, runs: Sequence[MeasuredRun], holders: Sequence[MeasuredRun]
) -> Iterator[tuple[str, MeasuredRun, MeasuredRun]]:
    """The dataset, every wrapped run of its main encoder, and the run with the plain host's predictions."""
    plain = {(run.cohort, run.host, run.seed): run for run in runs if run.label == "host"}
    cohorts = {cohort.name: cohort for cohort in measured.cohorts}
    for run in runs:
        cohort = cohorts[run.cohort]
        other = run if run in holders else plain.get((run.cohort, run.host, run.seed))
        is_main = cohort.encoder == measured.main_encoders[cohort.dataset]
        if run.label == "gce" and is_main and other is not None:
            yield cohort.dataset, run, other


def _read_folds(wrapped: Run, plain: Run, cohort: str) -> Iterator[SwappedBags]:
    """The folds that both sides have, with their tables of predictions."""
    for fold in wrapped.finished_folds():
        ours = _prediction_file(fold, "gce") or _prediction_file(fold, "soft")
        theirs = _prediction_file(plain.fold(fold.number), "full")
        if ours is not None and theirs is not None:
            bags = _read_bags(ours, theirs, f"{cohort}, fold {fold.number}: ")
            if bags is not None:
                yield bags


def _prediction_file(fold: RunFold, mode: str) -> Path | None:
    """The table of predictions of this mode; None where there is none."""
    if not fold.is_finished:
        return None
    modes = fold.read_metrics().modes
    path = fold.predictions(mode, modes)
    return path if mode in modes and path.is_file() else None


def _read_bags(ours: Path, theirs: Path, where: str) -> SwappedBags | None:
    """The test bags of a fold on both sides; None where their metric does not exist."""
    rows, others = _read_rows(ours), _read_rows(theirs)
    if rows.keys() != others.keys():
        alone = sorted(rows.keys() ^ others.keys())
        raise RunError(
            f"{ours} and {theirs} test different bags ('{alone[0]}' is in one of them only): the folds were made anew "
            "between the runs. Train one of them again."
        )
    try:
        if not rows:
            raise ValueError("it has no test bag")
        cases = [where + row["case_id"] for row in rows.values()]
        names = list(next(iter(rows.values())))
        if "risk" in names:
            times, events, risks = _read_numbers(rows, SURVIVAL_COLUMNS)
            (other_risks,) = _read_numbers(others, ("risk",))
            try:
                return SwappedRisks.from_risks(cases, times, events > 0, risks, other_risks)
            except InputError:
                return None
        classes = [name for name in names if name.startswith(CLASS_PREFIX)]
        labels = np.array([classes.index(CLASS_PREFIX + row["target"]) for row in rows.values()])
        predicted = [_read_numbers(side, classes).argmax(axis=0) for side in (rows, others)]
    except (KeyError, ValueError) as error:
        raise RunError(
            f"{ours} or {theirs} is no table of predictions ({error}). Make it again with 'gcemil evaluate'."
        ) from error
    return SwappedClasses(cases, labels, *predicted)


def _read_rows(path: Path) -> dict[str, dict[str, str]]:
    """The test rows by slide, in the order of their names."""
    try:
        table = read_table(path, ("slide_id", "case_id", "split", "target"))
    except CohortError as error:
        raise RunError(f"{error} Make it again with 'gcemil evaluate'.") from error
    return {
        row["slide_id"]: row
        for row in sorted(table, key=lambda row: row["slide_id"])
        if row["split"] == "test"
    }


def _read_numbers(rows: dict[str, dict[str, str]], names: Sequence[str]) -> np.ndarray:
    """A line per column."""
    values = np.array([[float(row[name]) for row in rows.values()] for name in names])
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return values
