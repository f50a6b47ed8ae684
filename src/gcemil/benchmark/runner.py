"""Execute one key: lock it, do the work, log the outcome. A failure is a record.

A fold is trained when metrics.json is there, and diagnosed when every diagnostic of the grid is.
Training continues in a fold where a killed process stopped, with identical results. A cohort is
simulated once, by the first process that needs it, or it is an existing folder; it is checked once.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import record_cohort
from gcemil.bags.folds import fold_indices, make_folds, make_parts, write_folds
from gcemil.bags.store import read_patch_layout
from gcemil.bags.targets import refuse_targets
from gcemil.bags.validate import refuse_errors, validate
from gcemil.benchmark.grid import (
    CohortKey,
    CohortSettings,
    DiagnosisKey,
    Grid,
    Key,
    RunKey,
    fold_diagnostics,
    other_seeds,
    plain_rival,
    run_settings,
)
from gcemil.benchmark.results import (
    Record,
    Results,
    append_log,
    claim,
    read_cohort_record,
    read_failure,
)
from gcemil.device import one_thread
from gcemil.errors import CohortError, ConfigError, RunError, UsageError, describe_fault, error_text
from gcemil.files import atomic_folder, write_json
from gcemil.hosts.own import is_import_path, trust_host
from gcemil.hosts.table import host_spec
from gcemil.runs.folder import Run, RunFold
from gcemil.simulation.simulate import simulate
from gcemil.training.fold import train_fold
from gcemil.training.run import begin_run


class Ending(StrEnum):
    """How an execution ended; busy and found: another process works on it, or has finished it."""

    finished = "finished"
    failed = "failed"
    busy = "busy"
    found = "found"


@dataclass(frozen=True)
class Outcome:
    """How a piece of work ended."""

    ending: Ending
    seconds: float = 0.0
    reason: str = ""


def execute(grid: Grid, results: Results, key: Key) -> Outcome:
    """Do the work of this key unless it is done or another process does it."""
    with claim(results.lock(key.path)) as mine:
        if not mine:
            return Outcome(Ending.busy)
        if is_finished(grid, results, key):
            return Outcome(Ending.found)
        whole = not results.path(key).exists()
        append_log(results, key, "start", whole=whole)
        started = time.monotonic()
        try:
            do_work(grid, results, key)
        except Exception as error:  # a failed run must not stop the others
            reason = describe_fault(error) or f"{type(error).__name__}: {error_text(error)}"
            return record_failure(results, key, reason, detail=traceback.format_exc())
        results.failure(key).unlink(missing_ok=True)
        seconds = time.monotonic() - started
        append_log(results, key, "end", seconds=seconds, whole=whole)
        return Outcome(Ending.finished, seconds)


def is_finished(grid: Grid, results: Results, key: Key) -> bool:
    """Whether a piece of work is done."""
    match key:
        case CohortKey():
            return read_cohort_record(results, key.cohort) is not None
        case RunKey():
            return RunFold(results.path(key)).is_finished
        case DiagnosisKey(run):
            return not _missing_diagnostics(grid, results, run)


def _missing_diagnostics(grid: Grid, results: Results, run: RunKey) -> list[str]:
    return [
        name for name in fold_diagnostics(grid, run) if not results.finding(run, name).is_file()
    ]


def record_failure(results: Results, key: Key, reason: str, *, detail: str = "") -> Outcome:
    """The failure on record: in its own file for the user, and in the log."""
    path = results.failure(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"key": str(key.path), "reason": reason, "detail": detail})
    append_log(results, key, "fail", reason=reason)
    return Outcome(Ending.failed, reason=reason)


def do_work(grid: Grid, results: Results, key: Key) -> None:
    """One piece of work: a cohort, a fold or its diagnostics."""
    for host in grid.hosts:
        # The user named them in the grid, which is consent to run their code.
        if is_import_path(host):
            trust_host(host)
    # One thread everywhere: results are equal on every engine.
    with one_thread():
        match key:
            case CohortKey():
                _prepare_cohort(grid, results, key)
            case RunKey():
                _train(grid, results, key)
            case DiagnosisKey():
                _diagnose(grid, results, key)
    if not isinstance(key, CohortKey):
        run = key.run if isinstance(key, DiagnosisKey) else key
        with claim(results.lock(run.run_path), wait=True):
            Run(results.run(run)).write_summary()


def _train(grid: Grid, results: Results, run: RunKey) -> None:
    """Train and evaluate one fold."""
    cohort, warnings = _open_cohort(grid, results, run.cohort)
    settings, folder = run_settings(grid, run), results.run(run)
    with claim(results.lock(run.run_path), wait=True):
        if folder.exists():
            begin_run(folder, cohort, settings, warnings)
        else:
            with atomic_folder(folder) as aside:
                begin_run(aside, cohort, settings, warnings)
    # Runs that differ in evidence alone have the same host, which is trained once.
    siblings = sorted(results.path(run).parents[2].glob(f"*/{run.run_path.name}"))
    train_fold(cohort, run.fold, settings, results.path(run), hosts_from=siblings)


def _diagnose(grid: Grid, results: Results, key: DiagnosisKey) -> None:
    """Every diagnostic of a fold that is not there yet."""
    from gcemil.diagnostics.diagnose import Comparison, measure_fold

    check_needs(grid, results, key)
    run, plain = key.run, plain_rival(grid, key.run)
    comparison = Comparison(
        results.run(run),
        against=None if plain is None else results.run(plain),
        others=tuple(results.run(other) for other in other_seeds(grid, run)),
        seed=run.seed,
        options=grid.diagnostic_options,
    )
    if missing := _missing_diagnostics(grid, results, run):
        measure_fold(comparison, run.fold, missing)


def check_needs(grid: Grid, results: Results, key: DiagnosisKey) -> None:
    """Refuse a diagnosis of folds that are not trained."""
    run = key.run
    for need in (run, plain_rival(grid, run), *other_seeds(grid, run)):
        if need is not None and not is_finished(grid, results, need):
            reason = read_failure(results, need) or "it was not trained"
            raise RunError(f"{key.path} needs {need.path}, which is not finished: {reason}")


def check_own_hosts(grid: Grid) -> None:
    """A class that cannot be imported is found before anything runs."""
    for host in grid.hosts:
        try:
            if (spec := host_spec(host)).is_own:
                spec.load()
        except UsageError as error:
            raise ConfigError(f"Grid '{grid.name}': {error}") from error


def check_diagnostics(grid: Grid) -> None:
    """A diagnostic or an option of one that does not exist is found before anything runs."""
    from gcemil.diagnostics.diagnose import DIAGNOSTICS, list_options

    by_cohort = (name for names in grid.diagnostics_by_cohort.values() for name in names)
    named = (*grid.diagnostics, *by_cohort, *grid.diagnostic_options)
    if unknown := [name for name in named if name not in DIAGNOSTICS]:
        raise ConfigError(
            f"Grid '{grid.name}': unknown diagnostic '{unknown[0]}'. Choose from: "
            f"{', '.join(DIAGNOSTICS)}."
        )
    for name, options in grid.diagnostic_options.items():
        known = list_options(name)
        if unknown := [option for option in options if option not in known]:
            raise ConfigError(
                f"Grid '{grid.name}': '{name}' has no option '{unknown[0]}'. It has: "
                f"{', '.join(known) or 'none'}."
            )


def _prepare_cohort(grid: Grid, results: Results, key: CohortKey) -> None:
    """Make the cohort if it is a simulated one, check all of it, and write down what it is."""
    settings = grid.cohorts[key.cohort]
    folder = settings.folder or results.path(key)
    if settings.folder is None and not folder.is_dir():
        _simulate_cohort(settings, folder)
    problems = validate(folder)
    refuse_errors(folder, problems)
    folds = {*grid.folds, *(fold for folds in grid.folds_by_host.values() for fold in folds)}
    if missing := sorted(folds - set(fold_indices(folder))):
        raise CohortError(
            f"{folder} has no fold {missing[0]}. Make the folds with 'gcemil split {folder}'."
        )
    cohort = Cohort.load(folder)
    refuse_targets(cohort)
    record = _describe_cohort(cohort) | {
        "fingerprint": record_cohort(cohort).fingerprint,
        "settings": settings.model_dump(mode="json"),
        "warnings": [f"{problem.where}: {problem.what}" for problem in problems],
    }
    results.cohort_record(key.cohort).parent.mkdir(parents=True, exist_ok=True)
    write_json(results.cohort_record(key.cohort), record)


def _simulate_cohort(settings: CohortSettings, folder: Path) -> None:
    """Simulate a cohort with its folds."""
    with atomic_folder(folder) as aside:
        cohort = simulate(
            str(settings.profile),
            aside,
            size=settings.size,
            seed=settings.seed,
            slides=settings.n_slides,
            dim=settings.dim,
            dials=settings.dials,
        )
        if settings.parts is None:
            write_folds(cohort, make_folds(cohort, seed=settings.seed))
        else:
            generator = np.random.default_rng(settings.seed)
            fold = make_parts(cohort, settings.parts, generator=generator)
            write_folds(cohort, [fold], kind="official")


def _describe_cohort(cohort: Cohort) -> Record:
    """The dataset card, counted from the files."""
    card = cohort.card
    patches = [read_patch_layout(cohort.feature_file(row.slide_id))[0] for row in cohort.slides]
    facts: dict[str, Any] = {
        "task": card.task,
        "encoder": card.encoder,
        "feature_dim": card.feature_dim,
        "slides": len(cohort.slides),
        "cases": len({row.case_id for row in cohort.slides}),
        "bags": len(cohort.bags),
        "bag_unit": cohort.bag_unit,
        "patches": {"total": sum(patches), "fewest": min(patches), "most": max(patches)},
        "provenance": card.provenance,
    }
    if card.task == "classification":
        labels = Counter(row.label for row in cohort.slides)
        return facts | {"classes": {name: labels[name] for name in card.classes}}
    if card.task == "regression":
        values = [row.value for row in cohort.slides if row.value is not None]
        return facts | {
            "values": {"least": min(values), "most": max(values), "mean": float(np.mean(values))}
        }
    return facts | {"events": sum({row.case_id: row.event or 0 for row in cohort.slides}.values())}


def _open_cohort(grid: Grid, results: Results, name: str) -> tuple[Cohort, list[str]]:
    """A prepared cohort and its warnings; one that could not be prepared gives the reason."""
    record = read_cohort_record(results, name)
    if record is None:
        reason = read_failure(results, CohortKey(name)) or "it was not prepared"
        raise RunError(f"Cohort '{name}' is not there: {reason}")
    cohort = Cohort.load(grid.cohorts[name].folder or results.path(CohortKey(name)))
    if record_cohort(cohort).fingerprint != record.get("fingerprint"):
        raise RunError(
            f"{cohort.folder} changed since '{name}' was prepared in {results.folder}, and a grid "
            "is not trained on two states of a cohort. Put back what was there, or give another "
            "--out."
        )
    return cohort, record["warnings"]
