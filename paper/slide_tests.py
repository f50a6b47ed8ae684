"""Does +GCE predict otherwise than its host? A permutation test over test slides, per host and
dataset.

The gated prediction of a case and that of the plain host's full bag change sides at random, and the
difference of the metric is computed again; p is the share of swaps that differ as much as the
models do. All swaps are tried where few cases differ, else some are drawn. Folds, seeds and cohorts
of a dataset are averaged within every swap; a slide that several seeds predicted is swapped in all
of them together.

The difference of two C-indices under swaps t (1: as it is, -1: swapped) is a sum over bags. With
c(t_i, t_j) for a comparable pair, C(t) - C(-t) keeps only what is odd in t, which is linear: sum of
t_i g_i, where g_i sums over the pairs of bag i

  (c(1, 1) + c(1, -1) - c(-1, 1) - c(-1, -1)) / 2, t_i first, over the number of comparable pairs.

Risks enter as ranks within their own model, so that a shift or stretch of all risks is no
difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy import stats

from gcemil.benchmark.figures import MeasuredRun
from gcemil.diagnostics.paired_tests import DECIMALS
from gcemil.errors import InputError, RunError
from gcemil.runs.folder import Run, RunFold
from paper.measured import Measured, SlideTest

SEED = 0
CLASS_PREFIX = "prob_"
SWAPS = 10_000
_AT_ONCE = 1_000
"""Swaps that are in memory together."""

Signs = Float[np.ndarray, "swaps n"]
"""1 where a bag is as it was, -1 where its two predictions changed sides."""


def run_slide_tests(
    measured: Measured, runs: Sequence[MeasuredRun], holders: Sequence[MeasuredRun]
) -> list[SlideTest]:
    """One test per dataset and host; `holders` hold their plain host."""
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
    """The dataset, every wrapped run of its main encoder, and its plain host's run."""
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
            f"{ours} or {theirs} is not a table of predictions ({error}). "
            "Make it again with 'gcemil train --again'."
        ) from error
    if alone := sorted(rows.index.symmetric_difference(others.index)):
        raise RunError(
            f"{ours} and {theirs} test different bags ('{alone[0]}' is in one of them only): the "
            "folds were made anew between the runs. Train one of them again."
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


# Swaps


@dataclass(frozen=True, eq=False)
class SwappedClasses:
    """The bags of one fold by class: Macro-F1 over the classes that occur."""

    cases: Sequence[str]
    """Bags of one case are swapped together, in all folds that have it."""
    labels: Int[np.ndarray, "n"]
    ours: Int[np.ndarray, "n"]
    theirs: Int[np.ndarray, "n"]

    @property
    def moves(self) -> Bool[np.ndarray, "n"]:
        """Bags whose swap can change anything."""
        return self.ours != self.theirs

    def differences(self, signs: Signs) -> Float[np.ndarray, "swaps"]:
        """Ours minus theirs under each row of swaps."""
        n_classes = 1 + max(int(one.max()) for one in (self.labels, self.ours, self.theirs))
        classes = np.arange(n_classes)
        true = self.labels[:, None] == classes
        ours, theirs = self.ours[:, None] == classes, self.theirs[:, None] == classes
        swapped = np.where(signs < 0, 1.0, 0.0)[:, self.moves]

        def count(
            what: Bool[np.ndarray, "n c"], instead: Bool[np.ndarray, "n c"]
        ) -> Float[np.ndarray, "swaps c"]:
            change = instead[self.moves].astype(float) - what[self.moves]
            return what.sum(axis=0) + swapped @ change

        support = true.sum(axis=0)
        mine = _macro_f1(count(ours & true, theirs & true), count(ours, theirs) + support)
        return mine - _macro_f1(count(theirs & true, ours & true), count(theirs, ours) + support)


def _macro_f1(
    hits: Float[np.ndarray, "swaps c"], occurrences: Float[np.ndarray, "swaps c"]
) -> Float[np.ndarray, "swaps"]:
    occurs = occurrences > 0
    f1 = np.divide(2 * hits, occurrences, out=np.zeros_like(hits), where=occurs)
    return f1.sum(axis=1) / occurs.sum(axis=1)


@dataclass(frozen=True, eq=False)
class SwappedRisks:
    """The bags of one fold by risk: the C-index."""

    cases: Sequence[str]
    gains: Float[np.ndarray, "n"]
    """What each bag adds to the difference."""

    @classmethod
    def from_risks(
        cls,
        cases: Sequence[str],
        times: Float[np.ndarray, "n"],
        events: Bool[np.ndarray, "n"],
        ours: Float[np.ndarray, "n"],
        theirs: Float[np.ndarray, "n"],
    ) -> SwappedRisks:
        """InputError where no two bags can be compared."""
        comparable = events[:, None] & (
            (times[:, None] < times) | ((times[:, None] == times) & ~events)
        )  # first index: who died, second: who is known to have outlived that
        if not comparable.any():
            raise InputError("No two bags can be compared, so there is no C-index.")
        ranks = {1: stats.rankdata(ours), -1: stats.rankdata(theirs)}
        agrees = {
            (first, second): np.where(
                comparable, (np.sign(ranks[first][:, None] - ranks[second]) + 1) / 2, 0.0
            )
            for first, second in product((1, -1), repeat=2)
        }
        both, neither = agrees[1, 1], agrees[-1, -1]
        as_first = both + agrees[1, -1] - agrees[-1, 1] - neither
        as_second = both + agrees[-1, 1] - agrees[1, -1] - neither
        return cls(cases, (as_first.sum(axis=1) + as_second.sum(axis=0)) / 2 / comparable.sum())

    @property
    def moves(self) -> Bool[np.ndarray, "n"]:
        return np.abs(self.gains) > 10.0**-DECIMALS

    def differences(self, signs: Signs) -> Float[np.ndarray, "swaps"]:
        return signs @ self.gains


SwappedBags = SwappedClasses | SwappedRisks


@dataclass(frozen=True)
class SwapTest:
    """A permutation test over cases."""

    difference: float
    p: float
    """1 where nothing differs."""
    moved: int
    """Cases whose swap can change anything."""


def swap_test(
    folds: Sequence[SwappedBags], *, generator: np.random.Generator, swaps: int = SWAPS
) -> SwapTest:
    """Two-sided p of the difference, averaged over the folds; there must be at least one."""
    moving = sorted({case for fold in folds for case in np.array(fold.cases)[fold.moves].tolist()})
    position = {case: index for index, case in enumerate(moving)}
    # A case that moves nowhere has the sign behind the last.
    columns = [np.array([position.get(case, len(moving)) for case in fold.cases]) for fold in folds]

    def differences(signs: Signs) -> Float[np.ndarray, "swaps"]:
        signs = np.hstack([signs, np.ones((len(signs), 1))])
        return np.mean(
            [fold.differences(signs[:, own]) for fold, own in zip(folds, columns, strict=True)],
            axis=0,
        )

    difference = float(differences(np.ones((1, len(moving))))[0])
    is_exact = 2 ** len(moving) <= swaps
    drawn = _all_signs(len(moving)) if is_exact else _draw_signs(len(moving), swaps, generator)
    found = np.concatenate([differences(signs) for signs in drawn])
    as_large = int((np.abs(found) >= abs(difference) - 10.0**-DECIMALS).sum())
    # Drawn swaps do not hold the one that was observed, which counts as well.
    p = as_large / len(found) if is_exact else (1 + as_large) / (1 + len(found))
    return SwapTest(difference, p, len(moving))


def _all_signs(n_cases: int) -> Iterator[Signs]:
    yield 1.0 - 2.0 * (np.arange(2**n_cases)[:, None] >> np.arange(n_cases) & 1)


def _draw_signs(n_cases: int, swaps: int, generator: np.random.Generator) -> Iterator[Signs]:
    for start in range(0, swaps, _AT_ONCE):
        yield 1.0 - 2.0 * generator.integers(2, size=(min(_AT_ONCE, swaps - start), n_cases))
