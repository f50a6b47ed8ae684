"""All diagnostics of a run: fold by fold, side by side on the cores, what is already there left alone.

RUN/fold_<k>/diagnostics/<name>.json   one fold, slides in detail
RUN/diagnostics/<name>.json            joined over folds: mean and deviation between folds
RUN/diagnostics/significance.json      the run against another, paired by fold
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.table import DIAGNOSTICS, run_diagnostic
from gcemil.errors import UsageError
from gcemil.files import working_in
from gcemil.findings import Finding, over_folds, read_finding, write_finding
from gcemil.processes import run_jobs
from gcemil.runs.folder import RunFolder, open_cohort, write_summary

OnDone = Callable[[int, int], None]
SIGNIFICANCE = "significance"


@dataclass(frozen=True)
class Comparison:
    """A run, the plain host it is compared with, and runs of other seeds."""

    run: Path
    against: Path | None = None
    others: tuple[Path, ...] = ()
    seed: int = 0


def diagnose_run(
    comparison: Comparison,
    *,
    names: Sequence[str] | None = None,
    folds: Sequence[int] | None = None,
    again: bool = False,
    jobs: int | None = None,
    on_done: OnDone | None = None,
) -> list[Finding]:
    """Make what is missing (everything with `again`) and return the findings joined over folds."""
    chosen = checked_names(names, comparison)
    open_cohort(comparison.run)
    with working_in(comparison.run):
        return _diagnose_run(comparison, chosen, folds, again=again, jobs=jobs, on_done=on_done)


def _diagnose_run(
    comparison: Comparison,
    chosen: Sequence[str],
    folds: Sequence[int] | None,
    *,
    again: bool,
    jobs: int | None,
    on_done: OnDone | None,
) -> list[Finding]:
    numbers = trained_numbers(comparison.run) if folds is None else list(folds)
    per_fold = [name for name in chosen if name in DIAGNOSTICS]
    todo = [
        (name, fold)
        for name in per_fold
        for fold in numbers
        if again or not is_current(finding_file(comparison.run, name, fold), comparison, fold)
    ]
    for done, _ in enumerate(finished(comparison, todo, jobs or os.cpu_count() or 1), start=1):
        if on_done:
            on_done(done, len(todo))
    found = [joined_finding(comparison.run, name) for name in per_fold]
    if SIGNIFICANCE in chosen:
        found.append(significance(comparison))
    write_summary(comparison.run)
    return found


def checked_names(names: Sequence[str] | None, comparison: Comparison) -> list[str]:
    """The diagnostics asked for; all, where none is named."""
    possible = [*DIAGNOSTICS, SIGNIFICANCE]
    if names is None:
        return possible if comparison.against is not None else list(DIAGNOSTICS)
    if unknown := [name for name in names if name not in possible]:
        raise UsageError(f"Unknown diagnostic '{unknown[0]}'. Choose from: {', '.join(possible)}.")
    if SIGNIFICANCE in names and comparison.against is None:
        raise UsageError("Significance compares two runs. Name the plain host's run with --against.")
    return list(names)


def trained_numbers(run: Path) -> list[int]:
    return [fold.number for fold in RunFolder(run).trained_folds()]


def finding_file(run: Path, name: str, fold: int) -> Path:
    return RunFolder(run).fold(fold).finding(name)


def is_current(path: Path, comparison: Comparison, fold: int) -> bool:
    """Whether a finding is there and was made from these very networks with this seed."""
    if not path.is_file():
        return False
    provenance = read_finding(path).provenance
    networks = [comparison.run, *([comparison.against] if comparison.against else []), *comparison.others]
    expected = [content_hash(RunFolder(folder).fold(fold).checkpoint) for folder in networks]
    return provenance.get("seed") == comparison.seed and list(provenance["inputs"].values()) == expected


def finished(comparison: Comparison, todo: Sequence[tuple[str, int]], jobs: int) -> Iterator[Path]:
    """The findings as they get ready: in this process, or spread over several."""
    if min(jobs, len(todo)) <= 1:
        yield from (_made(comparison, job) for job in todo)
        return
    ended = run_jobs(
        partial(_made, comparison), todo, jobs, name=lambda job: f"Diagnostic '{job[0]}' of fold {job[1]}"
    )
    yield from (path for _, path in ended if path is not None)


def _made(comparison: Comparison, job: tuple[str, int]) -> Path:
    name, fold = job
    return run_diagnostic(
        name,
        comparison.run,
        fold,
        against=comparison.against,
        others=comparison.others,
        seed=comparison.seed,
    )


def joined_finding(run: Path, name: str) -> Finding:
    """A diagnostic over all folds that have it, written beside them."""
    folds = RunFolder(run).folds_with(f"diagnostics/{name}.json")
    finding = over_folds([read_finding(fold.finding(name)) for fold in folds])
    write_finding(RunFolder(run).diagnostics, finding)
    return finding


def significance(comparison: Comparison) -> Finding:
    from gcemil.diagnostics.significance import compared_runs

    if comparison.against is None:
        raise UsageError("Significance compares two runs. Name the plain host's run with --against.")
    finding = compared_runs(comparison.run, comparison.against)
    write_finding(RunFolder(comparison.run).diagnostics, finding)
    return finding
