"""Does +GCE predict otherwise than its host? A permutation test over test slides, for every host and dataset.

The gated prediction of a slide and that of the plain host's full bag change sides (swap_test.py). One fold is enough.
Folds, seeds and cohorts of a dataset are averaged within every swap; a slide that several seeds predicted is swapped in all of
them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gcemil.benchmark.figures import MeasuredRun
from gcemil.errors import InputError, RunError
from gcemil.runs.folder import Run, RunFold
from paper.measured import Measured, SlideTest
from paper.swap_test import SwappedBags, SwappedClasses, SwappedRisks, swap_test

SEED = 0
CLASS_PREFIX = "prob_"


def run_slide_tests(
    measured: Measured, runs: Sequence[MeasuredRun], holders: Sequence[MeasuredRun]
) -> list[SlideTest]:
    """One test for every dataset and host with predictions on both sides; `holders` hold their plain host."""
    groups: dict[tuple[str, str], list[SwappedBags]] = {}
    for dataset, run, plain in _pair_runs(measured, runs, holders):
        folds = groups.setdefault((dataset, run.host), [])
        folds += _read_folds(Run(run.folder), Run(plain.folder), run.cohort)
    tests = []
    for (dataset, host), folds in groups.items():
        if folds:
            found = swap_test(folds, generator=np.random.default_rng(SEED))
            slides = len({case for fold in folds for case in fold.cases})
            tests.append(SlideTest(dataset, host, found.difference, found.p, slides, found.moved))
    return tests


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
    try:
        rows, others = _read_rows(ours), _read_rows(theirs)
    except (KeyError, ValueError, AttributeError) as error:
        raise RunError(
            f"{ours} or {theirs} is no table of predictions ({error}). "
            "Make it again with 'gcemil evaluate'."
        ) from error
    if alone := sorted(rows.index.symmetric_difference(others.index)):
        raise RunError(
            f"{ours} and {theirs} test different bags ('{alone[0]}' is in one of them only): the folds "
            "were made anew between the runs. Train one of them again."
        )
    cases = [where + case for case in rows.case_id]
    if "risk" in rows:
        times, events = rows.target.to_numpy(float), rows.event.to_numpy() > 0
        risks = (one.risk.to_numpy() for one in (rows, others))
        try:
            return SwappedRisks.from_risks(cases, times, events, *risks)
        except InputError:
            return None
    classes = rows.columns[rows.columns.str.startswith(CLASS_PREFIX)]
    predicted = (one[classes].to_numpy().argmax(axis=1) for one in (rows, others))
    return SwappedClasses(cases, classes.get_indexer(CLASS_PREFIX + rows.target), *predicted)


def _read_rows(path: Path) -> pd.DataFrame:
    """The test rows by slide, in the order of their names."""
    table = pd.read_csv(path, dtype={"slide_id": str, "case_id": str, "target": str})
    rows = table[table.split == "test"].set_index("slide_id").sort_index()
    if rows.empty:
        raise ValueError("it has no test bag")
    if not np.isfinite(rows.filter(regex=f"^({CLASS_PREFIX}|risk$|event$)").to_numpy(float)).all():
        raise ValueError("a number is not finite")
    return rows
