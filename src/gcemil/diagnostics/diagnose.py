"""All diagnostics of a run, fold by fold; current findings are reused.

RUN/fold_<k>/diagnostics/<name>.json             one fold, slides in detail
RUN/fold_<k>/diagnostics/measurements.csv.gz     every bag, network, rule and size (measurements.py)
RUN/diagnostics/<name>.json                      joined over folds: mean and deviation
RUN/diagnostics/significance.json                the run against another, paired by fold

`measure_fold` measures all diagnostics (table.py) of a fold in one pass: every bag is read,
embedded and explained once.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gcemil.bags.fingerprint import content_hash
from gcemil.device import describe_environment, one_thread
from gcemil.diagnostics.measurements import write_measurements
from gcemil.diagnostics.table import DIAGNOSTICS as DIAGNOSTICS
from gcemil.diagnostics.table import ON_REQUEST, SIGNIFICANCE
from gcemil.diagnostics.trained_fold import Measure, TrainedFold, read_risk_scale, run_passes
from gcemil.errors import UsageError
from gcemil.files import lock_folder
from gcemil.findings import SAME_NETWORK, Finding, join_folds, read_finding, write_finding
from gcemil.processes import run_jobs
from gcemil.runs.folder import Run
from gcemil.wording import did_you_mean

OnDone = Callable[[int, int], None]


def measure_fold(comparison: Comparison, fold: int, names: Sequence[str]) -> list[Path]:
    """Measure diagnostics of one fold in one pass over its bags, and write their findings."""
    run, seed = comparison.run, comparison.seed
    with one_thread():
        opened = TrainedFold.open(
            run, fold, against=comparison.against, seed=seed, device=comparison.device
        )
        passes = {}
        for name in names:
            options = dict(comparison.options.get(name, {}))
            if name == "stability":
                options["others"] = [
                    _open_other_seed(other, fold, opened, seed=seed) for other in comparison.others
                ]
            passes[name] = load_measure(name).steps(opened, **options)
        findings = run_passes(opened, passes)
    origin = {
        **describe_environment(
            seed=seed, device=torch.device("cpu"), inputs=_hash_networks(comparison, fold)
        ),
        "fold": fold,
        "settings_hash": opened.settings.hash,
    }
    if comparison.against is not None:
        origin[SAME_NETWORK] = opened.is_same_network
    folder = Run(run).fold(fold).diagnostics
    if opened.measurements:
        write_measurements(folder, opened.measurements, opened.model_hash)
    written = []
    for name, finding in findings.items():
        provenance = origin | {"options": dict(comparison.options.get(name, {}))}
        written.append(write_finding(folder, replace(finding, provenance=provenance)))
    return written


def load_measure(name: str) -> Measure[..., Finding]:
    """The function that measures a fold."""
    module, function = DIAGNOSTICS[name][0].split(":")
    measure: Measure[..., Finding] = getattr(
        import_module(f"gcemil.diagnostics.{module}"), function
    )
    return measure


def list_options(name: str) -> list[str]:
    """The options of a diagnostic."""
    names = list(inspect.signature(load_measure(name)).parameters)[1:]
    return [one for one in names if one != "others"]


def _open_other_seed(run: Path, fold: int, first: TrainedFold, *, seed: int) -> TrainedFold:
    """The same fold of another seed, with its plain host if the first has one."""
    opened = TrainedFold.open(run, fold, seed=seed)
    if first.plain is None or not opened.settings.host_is_unchanged:
        return opened
    return replace(opened, plain=opened.host, plain_scale=read_risk_scale(run, fold, of_host=True))


def _hash_networks(comparison: Comparison, fold: int) -> dict[str, str]:
    """The fingerprints of every network a finding depends on."""
    networks = {"run": comparison.run, "against": comparison.against}
    networks |= {f"other_{number}": path for number, path in enumerate(comparison.others)}
    return {
        name: content_hash(Run(path).fold(fold).checkpoint)
        for name, path in networks.items()
        if path is not None
    }


@dataclass(frozen=True)
class Comparison:
    """A run, the plain host it is compared with, and runs of other seeds."""

    run: Path
    against: Path | None = None
    others: tuple[Path, ...] = ()
    seed: int = 0
    device: str = "cpu"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of single diagnostics that are not the default."""


def diagnose_run(
    comparison: Comparison,
    *,
    names: Sequence[str] | None = None,
    folds: Sequence[int] | None = None,
    again: bool = False,
    jobs: int | None = None,
    cluster: str | None = None,
    on_done: OnDone | None = None,
) -> list[Finding]:
    """Make what is missing (everything with `again`) and return the findings joined over folds."""
    run, chosen = comparison.run, _choose_names(names, comparison)
    per_fold = [name for name in chosen if name in DIAGNOSTICS]
    numbers = [one.number for one in Run(run).trained_folds()] if folds is None else folds
    with lock_folder(run):
        todo = {
            fold: [name for name in per_fold if again or not is_current(comparison, name, fold)]
            for fold in numbers
        }
        todo = {fold: missing for fold, missing in todo.items() if missing}
        jobs = min(jobs or os.cpu_count() or 1, len(todo))
        work = partial(_measure_job, comparison)
        # With one job in this process, else with folds side by side.
        is_alone = jobs <= 1 and cluster is None
        ended = (
            map(work, todo.items())
            if is_alone
            else run_jobs(work, list(todo.items()), jobs, cluster=cluster)
        )
        for done, _ in enumerate(ended, start=1):
            if on_done:
                on_done(done, len(todo))
        findings = []
        for name in per_fold:
            measured = Run(run).folds_with(f"diagnostics/{name}.json")
            findings.append(join_folds([read_finding(fold.finding(name)) for fold in measured]))
            write_finding(Run(run).diagnostics, findings[-1])
        if SIGNIFICANCE in chosen and comparison.against is not None:
            from gcemil.diagnostics.significance import compare_runs

            findings.append(compare_runs(run, comparison.against))
            write_finding(Run(run).diagnostics, findings[-1])
        Run(run).write_summary()
    return findings


def _choose_names(names: Sequence[str] | None, comparison: Comparison) -> list[str]:
    """The named diagnostics, or all that train nothing."""
    possible = [*DIAGNOSTICS, SIGNIFICANCE]
    if names is None:
        left_out = ON_REQUEST if comparison.against is not None else (*ON_REQUEST, SIGNIFICANCE)
        return [name for name in possible if name not in left_out]
    if unknown := [name for name in names if name not in possible]:
        raise UsageError(
            f"Unknown diagnostic '{unknown[0]}'.{did_you_mean(unknown[0], possible)} "
            f"Choose from: {', '.join(possible)}."
        )
    if SIGNIFICANCE in names and comparison.against is None:
        raise UsageError(
            "Significance compares two runs. Name the plain host's run with --against."
        )
    return list(names)


def is_current(comparison: Comparison, name: str, fold: int) -> bool:
    """Whether a finding is there and was made from these very networks with this seed."""
    path = Run(comparison.run).fold(fold).finding(name)
    if not path.is_file():
        return False
    provenance = read_finding(path).provenance
    return (
        provenance.get("options", {}) == comparison.options.get(name, {})
        and provenance.get("seed") == comparison.seed
        and provenance["inputs"] == _hash_networks(comparison, fold)
    )


def _measure_job(comparison: Comparison, job: tuple[int, Sequence[str]]) -> list[Path]:
    return measure_fold(comparison, *job)
