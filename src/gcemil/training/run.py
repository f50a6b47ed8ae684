"""A run folder: settings and inputs fixed at the start, one folder per fold, a summary at the end.

Training into an existing run continues it. Other settings or another cohort are refused, with the difference shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import CACHE as HASH_CACHE
from gcemil.bags.fingerprint import record_cohort
from gcemil.bags.folds import fold_indices, read_fold
from gcemil.bags.targets import write_target_cohorts
from gcemil.bags.validate import refuse_errors, validate
from gcemil.config import TrackerName, TrainSettings
from gcemil.device import pick_device
from gcemil.errors import CohortError, RunError, UsageError
from gcemil.files import LOCK_NAME, is_file, lock_folder, read_json, write_json, write_text
from gcemil.processes import run_jobs
from gcemil.runs.checkpoint import build_host, load_network
from gcemil.runs.environment import describe_environment, one_thread
from gcemil.runs.folder import Run, fold_parts
from gcemil.runs.targets import check_host_serves_targets
from gcemil.runs.weights import resolve_pretrained_host
from gcemil.tasks.task import create_task
from gcemil.training.fold import check_parts, evaluate_fold, train_fold, trains_same_host
from gcemil.training.trackers import check_tracker, remember_tracker

OnFoldEpoch = Callable[[int, dict[str, Any]], None]
OnFoldBag = Callable[[int, int, int], None]
"""Fold, bags of the epoch that are done, bags of an epoch."""
BETWEEN_TICKS_S = 2.0
"""Seconds between two reports of a worker."""


def train_run(
    cohort_folder: Path | str,
    out: Path | str,
    settings: TrainSettings,
    *,
    folds: Sequence[int] | None = None,
    jobs: int | None = None,
    host_from: Path | str | None = None,
    tracker: TrackerName | None = None,
    on_epoch: OnFoldEpoch | None = None,
    on_bag: OnFoldBag | None = None,
) -> dict[str, Any]:
    """Train the given folds (by default all), as many in parallel as there are cores.

    With `host_from`, a run of the same cohort and settings, its hosts are taken and only the evidence is fitted. `tracker`
    takes the numbers of every epoch; None: what the run had before, or TensorBoard where it is installed.
    """
    check_tracker(tracker)
    cohort_folder, out = Path(cohort_folder), Path(out)
    host_from = None if host_from is None else Path(host_from)
    cohort = Cohort.load(cohort_folder)
    train_cohort = _train_targets if cohort.card.task == "multilabel" else _train_cohort
    return train_cohort(
        cohort, out, settings,
        folds=folds, jobs=jobs, host_from=host_from, tracker=tracker, on_epoch=on_epoch, on_bag=on_bag,
    )  # fmt: skip


def _train_cohort(
    cohort: Cohort,
    out: Path,
    settings: TrainSettings,
    *,
    folds: Sequence[int] | None,
    jobs: int | None,
    host_from: Path | None,
    tracker: TrackerName | None,
    on_epoch: OnFoldEpoch | None,
    on_bag: OnFoldBag | None,
) -> dict[str, Any]:
    cohort_folder = cohort.folder
    chosen = list(folds) if folds is not None else fold_indices(cohort_folder)
    if not chosen:
        raise CohortError(
            f"{cohort_folder} has no folds. Make them with 'gcemil split {cohort_folder}'."
        )
    if settings.host.is_frozen and settings.evidence is None:
        raise UsageError(
            "A frozen host without evidence has nothing to learn. Leave --no-gce out, or use 'gcemil adopt'."
        )
    settings = resolve_pretrained_host(settings, cohort, chosen)
    run, warnings = Run(out), check_inputs(out, cohort, settings, chosen)
    if host_from is not None and not Run(host_from).card.targets:
        check_hosts_fit(host_from, cohort, settings, chosen)
    sources = () if host_from is None else (host_from,)
    with lock_folder(out):
        begin_run(out, cohort, settings, warnings)
        remember_tracker(out, tracker)
        for index in chosen:
            # A worker that was killed leaves its progress behind.
            run.fold(index).progress.unlink(missing_ok=True)
        unfinished = [index for index in chosen if not run.fold(index).is_finished]
        # One fold per core; one at a time if folds would share an accelerator.
        default = (os.cpu_count() or 1) if pick_device(settings.device).type == "cpu" else 1
        workers = min(jobs or default, len(unfinished))
        if workers > 1:
            _train_in_processes(
                cohort_folder, out, settings, unfinished, workers, sources, on_epoch, on_bag
            )
        else:
            for index in unfinished:
                report = None if on_epoch is None else partial(on_epoch, index)
                tick = None if on_bag is None else partial(on_bag, index)
                # Bags of 512 patches are too small for several threads; cores are used by folds side by side.
                with one_thread():
                    train_fold(
                        cohort, index, settings, run.fold(index).path,
                        hosts_from=sources, on_epoch=report, on_bag=tick,
                    )  # fmt: skip
        return run.write_summary()


def _train_targets(
    cohort: Cohort, out: Path, settings: TrainSettings, *, host_from: Path | None, **options: Any
) -> dict[str, Any]:
    """One model of all targets, then the evidence of each around it."""
    trains_jointly = settings.evidence is not None and settings.evidence.train_host
    if settings.host.weights is not None or host_from is not None or trains_jointly:
        raise UsageError(
            "Several targets share one model that is trained here, without its evidence. Leave --host-weights, --host-from "
            "and --recipe out, or import one target at a time."
        )
    check_host_serves_targets(
        settings.host, in_dim=cohort.card.feature_dim, n_targets=len(cohort.card.classes)
    )
    targets = write_target_cohorts(cohort)
    shared = settings.model_copy(update={"evidence": None})
    _train_cohort(cohort, out, shared, host_from=None, **options)
    # The weights of the targets are in the shared model; a target has two classes.
    settings = settings.model_copy(update={"class_weights": None})
    # The epochs were those of the shared model.
    options |= {"on_epoch": None, "on_bag": None}
    for name, target in zip(cohort.card.classes, targets, strict=True):
        _train_cohort(target, out / "targets" / name, settings, host_from=out, **options)
    return Run(out).write_summary()


def evaluate_run(
    folder: Path, on_fold: Callable[[int, int], None] | None = None, *, device: str | None = None
) -> dict[str, Any]:
    """Predictions, metrics and evidence of every trained fold, and the summary; by default on the device of its settings."""
    run = Run(folder)
    # Before the lock, which would make the folder of a run that is not there.
    settings = run.card.settings
    with lock_folder(folder):
        _, cohort = run.open_cohort()
        folds = run.trained_folds()
        for done, fold in enumerate(folds, start=1):
            loaded, _ = load_network(fold.checkpoint, pick_device(device or settings.device))
            parts = fold_parts(cohort, read_fold(cohort, fold.number))
            details: dict[str, Any] = {"warnings": [], "anchors": None}
            if is_file(fold.metrics):
                details = fold.read_metrics().details.model_dump(exclude_unset=True)
            task = create_task(cohort, settings, loaded.label_scale)
            evaluate_fold(loaded, cohort, parts, task, fold, details)
            if on_fold:
                on_fold(done, len(folds))
        for target in run.targets.values():
            if target.is_begun:
                evaluate_run(target.path, on_fold, device=device)
        return run.write_summary()


def check_inputs(
    out: Path, cohort: Cohort, settings: TrainSettings, folds: Sequence[int]
) -> list[str]:
    """Every check before the first step; the warnings about the cohort.

    A run that is there must have been begun with the same settings and cohort. This comes before the lock, which makes
    the folder, so that what is refused leaves nothing behind.
    """
    if Run(out).is_begun:
        _check_same_settings(out, cohort, settings)
    pick_device(settings.device)
    problems = validate(cohort.folder)
    refuse_errors(cohort.folder, problems)
    task = create_task(cohort, settings)
    # A host that cannot be imported or made is refused here, not in a worker after the run has begun.
    build_host(settings.host, in_dim=cohort.card.feature_dim, n_outputs=cohort.n_outputs)
    for index in folds:
        check_parts(fold_parts(cohort, read_fold(cohort, index)), task, index)
    return [f"{problem.where}: {problem.what}" for problem in problems]


def begin_run(out: Path, cohort: Cohort, settings: TrainSettings, warnings: Sequence[str]) -> None:
    """Begin a run, or check that the one that is there was begun like this.

    config.yaml comes last and makes the folder a run, so that a kill in between leaves nothing but what is written again.
    """
    run = Run(out)
    if run.is_begun:
        _check_same_settings(out, cohort, settings)
    else:
        # What a run may hold before it is one.
        allowed = {
            LOCK_NAME,
            HASH_CACHE,
            run.environment.name,
            run.cohort_record.name,
            run.warnings.name,
        }
        if out.exists() and (
            other := sorted(path.name for path in out.iterdir() if path.name not in allowed)
        ):
            raise RunError(
                f"{out} is not a run, and not empty: it holds '{other[0]}'. Give another --out."
            )
        record, device = record_cohort(cohort), pick_device(settings.device)
        inputs = {"cohort": record.fingerprint}
        write_json(
            run.environment, describe_environment(seed=settings.seed, device=device, inputs=inputs)
        )
        write_json(run.cohort_record, record.to_json())
        config = {
            "cohort": os.fspath(cohort.folder.resolve()),
            "cohort_fingerprint": record.fingerprint,
            **({"targets": list(cohort.card.classes)} if cohort.card.task == "multilabel" else {}),
            "settings_hash": settings.hash,
            "settings": settings.model_dump(mode="json"),
        }
        write_text(run.config, yaml.safe_dump(config, sort_keys=False))
    write_json(run.warnings, warnings)


def _check_same_settings(out: Path, cohort: Cohort, settings: TrainSettings) -> None:
    """Refuse other settings or another cohort than the run was begun with."""
    before = Run(out).card.settings.model_dump(mode="json", exclude_unset=True)
    now = settings.model_dump(mode="json")
    for host in (before.get("host", {}), now["host"]):
        # Weights may lie elsewhere by now: their hash says whether they are the same.
        (host.get("weights") or {}).pop("source", None)
    if changed := differences(before, now):
        raise RunError(
            f"{out} was trained with other settings ({'; '.join(changed)}). Give another --out."
        )
    Run(out).check_cohort(cohort)


def check_hosts_fit(
    source: Path, cohort: Cohort, settings: TrainSettings, folds: Sequence[int]
) -> None:
    """Refuse hosts that training with these settings would not give."""
    if not settings.host_is_unchanged:
        raise UsageError(
            "--host-from takes the hosts of another run, and these settings train the host with its evidence, or "
            "start from given weights. Leave one of the two out."
        )
    for index in folds:
        if not Run(source).fold(index).is_finished:
            raise RunError(
                f"{source} has no trained fold {index}. Train it there, or leave --host-from out."
            )
        if not trains_same_host(source, cohort, settings, index):
            raise RunError(
                f"{source} did not train its host with these settings on the labels, features and fold {index} of "
                f"{cohort.folder}. Leave --host-from out, or give its settings with --config {source}."
            )


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Dotted names of what changed, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line
            for key in sorted({*before, *after})
            for line in differences(before.get(key), after.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if before == after else [f"{path}: {before} then, {after} now"]


def planned_epochs(cohort: Cohort, settings: TrainSettings, folds: Sequence[int]) -> int:
    """Epochs of all these folds together; hosts with a preparing stage have more."""
    sizes = [len(fold_parts(cohort, read_fold(cohort, index)).train) for index in folds]
    return sum(
        settings.count_epochs(size, survival=cohort.card.task == "survival") for size in sizes
    )


def _train_in_processes(
    cohort_folder: Path,
    out: Path,
    settings: TrainSettings,
    folds: Sequence[int],
    workers: int,
    sources: Sequence[Path],
    on_epoch: OnFoldEpoch | None,
    on_bag: OnFoldBag | None,
) -> None:
    """Train folds in parallel processes and report progress from their history and progress files."""
    run = Run(out)
    counted = {index: len(run.fold(index).read_history()) for index in folds}

    def report() -> None:
        for index in folds:
            fold = run.fold(index)
            for record in fold.read_history()[counted[index] :] if on_epoch else ():
                counted[index] += 1
                on_epoch(index, record)  # type: ignore[misc]
            if on_bag and is_file(fold.progress):
                on_bag(index, *read_json(fold.progress))

    work = partial(_train_in_worker, cohort_folder, out, settings, sources)
    for _ in run_jobs(work, folds, workers, on_poll=report):
        pass


def _train_in_worker(
    cohort_folder: Path, out: Path, settings: TrainSettings, sources: Sequence[Path], index: int
) -> None:
    """Train one fold; its progress is a file that the parent process reads."""
    fold, last = Run(out).fold(index), time.monotonic()

    def tick(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= BETWEEN_TICKS_S:
            last = time.monotonic()
            write_json(fold.progress, [done, total])

    with one_thread():
        train_fold(
            Cohort.load(cohort_folder), index, settings, fold.path, hosts_from=sources, on_bag=tick
        )
    fold.progress.unlink(missing_ok=True)
