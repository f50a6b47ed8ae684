"""All diagnostics of a run: fold by fold, side by side on the cores, what is already there left alone.

RUN/fold_<k>/diagnostics/<name>.json   one fold, slides in detail
RUN/diagnostics/<name>.json            joined over folds: mean and deviation between folds
RUN/diagnostics/significance.json      the run against another, paired by fold

DIAGNOSTICS (table.py) names every diagnostic; `run_diagnostic` is the one way to make it: open the fold, measure, write the
finding with its origin.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.table import DIAGNOSTICS as DIAGNOSTICS
from gcemil.diagnostics.table import SIGNIFICANCE
from gcemil.diagnostics.trained_fold import TrainedFold, read_risk_scale
from gcemil.errors import UsageError
from gcemil.files import working_in
from gcemil.findings import SAME_NETWORK, Finding, join_folds, read_finding, write_finding
from gcemil.processes import run_jobs
from gcemil.runs.environment import describe_environment, one_thread
from gcemil.runs.folder import RunFolder, open_cohort, read_run, write_summary
from gcemil.wording import did_you_mean

OnDone = Callable[[int, int], None]


def run_diagnostic(
    name: str,
    run: Path,
    fold: int,
    *,
    against: Path | None = None,
    others: Sequence[Path] = (),
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Measure one diagnostic of one fold and write it; `others` are runs of other seeds, for stability."""
    if name not in DIAGNOSTICS:
        raise UsageError(f"Unknown diagnostic '{name}'. Choose from: {', '.join(DIAGNOSTICS)}.")
    with one_thread():
        bench = TrainedFold.open(run, fold, against=against, seed=seed)
        extra = (
            {"others": [_open_other_seed(other, fold, bench, seed=seed) for other in others]}
            if name == "stability"
            else {}
        )
        finding = load_measure(name)(bench, **extra, **(options or {}))
    inputs = _hash_networks(run, fold, against, others)
    origin = {
        **describe_environment(seed=seed, device=torch.device("cpu"), inputs=inputs),
        "fold": fold,
        "settings_hash": read_run(run).settings.hash,
        "options": dict(options or {}),
    }
    if against is not None:
        origin[SAME_NETWORK] = bench.is_same_network
    finding = replace(finding, provenance=origin)
    return write_finding(RunFolder(run).fold(fold).diagnostics, finding)


def load_measure(name: str) -> Callable[..., Finding]:
    """The function that measures a fold; its module is imported now, not when the table is read."""
    module, function = DIAGNOSTICS[name][0].split(":")
    found: Callable[..., Finding] = getattr(import_module(f"gcemil.diagnostics.{module}"), function)
    return found


def list_options(name: str) -> list[str]:
    """What a caller may set, beside the fold."""
    return [one for one in list(inspect.signature(load_measure(name)).parameters)[1:] if one != "others"]


def _open_other_seed(run: Path, fold: int, first: TrainedFold, *, seed: int) -> TrainedFold:
    """The same fold of another seed; its plain host beside it where the first has one and the wrapper left it alone."""
    opened = TrainedFold.open(run, fold, seed=seed)
    if first.plain is None or not opened.settings.leaves_host_alone:
        return opened
    return replace(opened, plain=opened.host, plain_scale=read_risk_scale(run, fold, of_host=True))


def _hash_networks(run: Path, fold: int, against: Path | None, others: Sequence[Path]) -> dict[str, str]:
    """The fingerprints of every network a finding depends on."""
    networks = {"run": run, **({"against": against} if against else {})}
    networks |= {f"other_{number}": path for number, path in enumerate(others)}
    return {name: content_hash(RunFolder(path).fold(fold).checkpoint) for name, path in networks.items()}


@dataclass(frozen=True)
class Comparison:
    """A run, the plain host it is compared with, and runs of other seeds."""

    run: Path
    against: Path | None = None
    others: tuple[Path, ...] = ()
    seed: int = 0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What single diagnostics are asked otherwise than by default."""


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
    run, chosen = comparison.run, _choose_names(names, comparison)
    open_cohort(run)
    per_fold = [name for name in chosen if name in DIAGNOSTICS]
    with working_in(run):
        numbers = [one.number for one in RunFolder(run).trained_folds()] if folds is None else folds
        todo = [
            (name, fold)
            for name in per_fold
            for fold in numbers
            if again or not is_current(comparison, name, fold)
        ]
        for done, _ in enumerate(_make_findings(comparison, todo, jobs or os.cpu_count() or 1), start=1):
            if on_done:
                on_done(done, len(todo))
        found = [_join_finding(run, name) for name in per_fold]
        if SIGNIFICANCE in chosen and comparison.against is not None:
            from gcemil.diagnostics.significance import compare_runs

            found.append(compare_runs(run, comparison.against))
            write_finding(RunFolder(run).diagnostics, found[-1])
        write_summary(run)
    return found


def _choose_names(names: Sequence[str] | None, comparison: Comparison) -> list[str]:
    """The diagnostics asked for; all, where none is named."""
    possible = [*DIAGNOSTICS, SIGNIFICANCE]
    if names is None:
        return possible if comparison.against is not None else list(DIAGNOSTICS)
    if unknown := [name for name in names if name not in possible]:
        raise UsageError(
            f"Unknown diagnostic '{unknown[0]}'.{did_you_mean(unknown[0], possible)} Choose from: {', '.join(possible)}."
        )
    if SIGNIFICANCE in names and comparison.against is None:
        raise UsageError("Significance compares two runs. Name the plain host's run with --against.")
    return list(names)


def is_current(comparison: Comparison, name: str, fold: int) -> bool:
    """Whether a finding is there and was made from these very networks with this seed."""
    path = RunFolder(comparison.run).fold(fold).finding(name)
    if not path.is_file():
        return False
    provenance = read_finding(path).provenance
    # By name: a file keeps its names in alphabetical order.
    expected = _hash_networks(comparison.run, fold, comparison.against, comparison.others)
    is_asked_alike = provenance.get("options", {}) == comparison.options.get(name, {})
    return is_asked_alike and provenance.get("seed") == comparison.seed and provenance["inputs"] == expected


def _make_findings(comparison: Comparison, todo: Sequence[tuple[str, int]], jobs: int) -> Iterator[Path]:
    """The findings as they get ready: in this process, or spread over several."""
    if min(jobs, len(todo)) <= 1:
        yield from (_make_finding(comparison, job) for job in todo)
        return
    ended = run_jobs(
        partial(_make_finding, comparison),
        todo,
        jobs,
        name=lambda job: f"Diagnostic '{job[0]}' of fold {job[1]}",
    )
    yield from (path for _, path in ended if path is not None)


def _make_finding(comparison: Comparison, job: tuple[str, int]) -> Path:
    name, fold = job
    return run_diagnostic(
        name,
        comparison.run,
        fold,
        against=comparison.against,
        others=comparison.others,
        seed=comparison.seed,
        options=comparison.options.get(name),
    )


def _join_finding(run: Path, name: str) -> Finding:
    """A diagnostic over all folds that have it, written beside them."""
    folds = RunFolder(run).folds_with(f"diagnostics/{name}.json")
    finding = join_folds([read_finding(fold.finding(name)) for fold in folds])
    write_finding(RunFolder(run).diagnostics, finding)
    return finding
