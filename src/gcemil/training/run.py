"""A run folder: settings and inputs fixed at the start, one folder per fold, a summary at the end.

Training into an existing run continues it. Other settings or another cohort are refused, with the
difference shown.
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
from gcemil.device import describe_environment, one_thread, pick_device
from gcemil.errors import CohortError, RunError, UsageError
from gcemil.files import LOCK_NAME, is_file, lock_folder, read_json, write_json, write_text
from gcemil.processes import run_jobs
from gcemil.runs.checkpoint import build_host, load_network
from gcemil.runs.folder import Run, fold_parts
from gcemil.runs.weights import check_host_serves_targets, resolve_pretrained_host
from gcemil.tasks.task import create_task
from gcemil.training.fold import evaluate_fold, read_parts, train_fold, trains_same_host
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
    """Train folds of a cohort into a run folder, or continue a run that was stopped.

    Args:
        cohort_folder: A cohort with folds.
        out: The run folder.
        settings: Host, evidence and training.
        folds: The folds to train; None trains all.
        jobs: Folds that are trained in parallel; None takes as many as there are cores.
        host_from: A run of the same cohort and settings whose hosts are taken, so that only the
            evidence is fitted.
        tracker: Where the figures of every epoch are written beside history.jsonl; None keeps the
            tracker of the run, or takes TensorBoard if it is installed.
        on_epoch: Called with the fold and the record of every epoch.
        on_bag: Called with the fold, the bags of the epoch that are done, and all bags.

    Returns:
        The content of summary.json.

    Raises:
        CohortError: The cohort has faults or no folds.
        RunError: The run was begun with other settings or another cohort.
        UsageError: The settings cannot be trained.

    Example:
        >>> import gcemil, pathlib, tempfile
        >>> from gcemil.bags.folds import make_folds, write_folds
        >>> from gcemil.simulation.simulate import simulate
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> cohort = simulate("nsclc", folder / "cohort", size="tiny", slides=24)
        >>> write_folds(cohort, make_folds(cohort))
        >>> settings = gcemil.TrainSettings(epochs=1, evidence=None)
        >>> run = folder / "run"
        >>> summary = gcemil.train_run(cohort.folder, run, settings, folds=[0], jobs=1)
        >>> len(summary["folds"])
        1
    """
    check_tracker(tracker)
    cohort, out = Cohort.load(Path(cohort_folder)), Path(out)
    host_from = None if host_from is None else Path(host_from)
    options: dict[str, Any] = {"folds": folds, "jobs": jobs, "tracker": tracker}
    watch: dict[str, Any] = {"on_epoch": on_epoch, "on_bag": on_bag}
    if cohort.card.task != "multilabel":
        return _train_cohort(cohort, out, settings, host_from, **options, **watch)
    # One model of all targets, then the evidence of each around it.
    trains_jointly = settings.evidence is not None and settings.evidence.train_host
    if settings.host.weights is not None or host_from is not None or trains_jointly:
        raise UsageError(
            "Several targets share one model that is trained here, without its evidence. Leave "
            "--host-weights, --host-from and --recipe out, or import one target at a time."
        )
    names = cohort.card.classes
    check_host_serves_targets(settings.host, in_dim=cohort.card.feature_dim, n_targets=len(names))
    targets = write_target_cohorts(cohort)
    shared = settings.model_copy(update={"evidence": None})
    _train_cohort(cohort, out, shared, None, **options, **watch)
    # The weights of the targets are in the shared model; a target has two classes.
    settings = settings.model_copy(update={"class_weights": None})
    for name, target in zip(names, targets, strict=True):
        _train_cohort(target, out / "targets" / name, settings, out, **options)
    return Run(out).write_summary()


def _train_cohort(
    cohort: Cohort,
    out: Path,
    settings: TrainSettings,
    host_from: Path | None,
    *,
    folds: Sequence[int] | None,
    jobs: int | None,
    tracker: TrackerName | None,
    on_epoch: OnFoldEpoch | None = None,
    on_bag: OnFoldBag | None = None,
) -> dict[str, Any]:
    chosen = choose_folds(cohort, folds)
    if settings.host.is_frozen and settings.evidence is None:
        raise UsageError(
            "A frozen host without evidence has nothing to learn. Leave --no-gce out, or use "
            "'gcemil adopt'."
        )
    settings = resolve_pretrained_host(settings, cohort, chosen)
    run, warnings = Run(out), check_inputs(out, cohort, settings, chosen)
    if host_from is not None and not Run(host_from).card.targets:
        check_hosts_fit(Run(host_from), cohort, settings, chosen)
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
            poll = _watch_folds(run, unfinished, on_epoch, on_bag)
            work = partial(_train_in_worker, cohort.folder, out, settings, sources)
            for _ in run_jobs(work, unfinished, workers, on_poll=poll):
                pass
            return run.write_summary()
        for index in unfinished:
            report = None if on_epoch is None else partial(on_epoch, index)
            tick = None if on_bag is None else partial(on_bag, index)
            # Bags of 512 patches are too small for several threads.
            with one_thread():
                train_fold(
                    cohort, index, settings, run.fold(index).path,
                    hosts_from=sources, on_epoch=report, on_bag=tick,
                )  # fmt: skip
        return run.write_summary()


def choose_folds(cohort: Cohort, folds: Sequence[int] | None) -> list[int]:
    """The given folds, or all of the cohort."""
    chosen = list(folds) if folds is not None else fold_indices(cohort.folder)
    if not chosen:
        raise CohortError(
            f"{cohort.folder} has no folds. Make them with 'gcemil split {cohort.folder}'."
        )
    return chosen


def evaluate_run(
    folder: Path, on_fold: Callable[[int, int], None] | None = None, *, device: str | None = None
) -> dict[str, Any]:
    """Write predictions, metrics and evidence of every trained fold again, and the summary."""
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
            evaluate_run(target.path, on_fold, device=device)
        return run.write_summary()


def check_inputs(
    out: Path, cohort: Cohort, settings: TrainSettings, folds: Sequence[int]
) -> list[str]:
    """Every check before the first step; the warnings about the cohort.

    It comes before the lock, which makes the folder: a refused command leaves nothing behind.
    """
    if Run(out).is_begun:
        _check_same_settings(out, cohort, settings)
    pick_device(settings.device)
    problems = validate(cohort.folder)
    refuse_errors(cohort.folder, problems)
    # A host that cannot be made is refused here, not in a worker after the run has begun.
    build_host(settings.host, in_dim=cohort.card.feature_dim, n_outputs=cohort.n_outputs)
    for index in folds:
        read_parts(cohort, settings, index)
    return [f"{problem.where}: {problem.what}" for problem in problems]


def begin_run(out: Path, cohort: Cohort, settings: TrainSettings, warnings: Sequence[str]) -> None:
    """Begin a run, or check that the one that is there was begun like this.

    config.yaml comes last and makes the folder a run.
    """
    run = Run(out)
    if run.is_begun:
        _check_same_settings(out, cohort, settings)
    else:
        written = {run.environment.name, run.cohort_record.name, run.warnings.name}
        present = {path.name for path in out.iterdir()} if out.exists() else set()
        if other := sorted(present - written - {LOCK_NAME, HASH_CACHE}):
            raise RunError(
                f"{out} is not a run, and not empty: it holds '{other[0]}'. Give another --out."
            )
        record, device = record_cohort(cohort), pick_device(settings.device)
        inputs = {"cohort": record.fingerprint}
        environment = describe_environment(seed=settings.seed, device=device, inputs=inputs)
        write_json(run.environment, environment)
        write_json(run.cohort_record, record.to_json())
        config: dict[str, Any] = {
            "cohort": os.fspath(cohort.folder.resolve()),
            "cohort_fingerprint": record.fingerprint,
        }
        if cohort.card.task == "multilabel":
            config["targets"] = list(cohort.card.classes)
        config["settings_hash"] = settings.hash
        config["settings"] = settings.model_dump(mode="json")
        write_text(run.config, yaml.safe_dump(config, sort_keys=False))
    write_json(run.warnings, warnings)


def _check_same_settings(out: Path, cohort: Cohort, settings: TrainSettings) -> None:
    """Refuse other settings or another cohort than the run was begun with."""
    before = Run(out).card.settings.model_dump(mode="json", exclude_unset=True)
    now = settings.model_dump(mode="json")
    for host in (before.get("host", {}), now["host"]):
        # Weights may lie elsewhere by now; their hash is compared.
        (host.get("weights") or {}).pop("source", None)
    if changed := differences(before, now):
        raise RunError(
            f"{out} was trained with other settings ({'; '.join(changed)}). Give another --out."
        )
    Run(out).check_cohort(cohort)


def check_hosts_fit(
    source: Run, cohort: Cohort, settings: TrainSettings, folds: Sequence[int]
) -> None:
    """Refuse hosts that training with these settings would not give."""
    if not settings.host_is_unchanged:
        raise UsageError(
            "--host-from takes the hosts of another run, and these settings train the host with "
            "its evidence, or start from given weights. Leave one of the two out."
        )
    for index in folds:
        if not source.fold(index).is_finished:
            raise RunError(
                f"{source.path} has no trained fold {index}. Train it there, or leave --host-from "
                "out."
            )
        if not trains_same_host(source, cohort, settings, index):
            raise RunError(
                f"{source.path} did not train its host with these settings on the labels, features "
                f"and fold {index} of {cohort.folder}. Leave --host-from out, or give its settings "
                f"with --config {source.path}."
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
    survival = cohort.card.task == "survival"
    return sum(settings.count_epochs(size, survival=survival) for size in sizes)


def _watch_folds(
    run: Run, folds: Sequence[int], on_epoch: OnFoldEpoch | None, on_bag: OnFoldBag | None
) -> Callable[[], None]:
    """Report what workers have written of their progress since the last call."""
    counted = {index: len(run.fold(index).read_history()) for index in folds}

    def report() -> None:
        for fold in map(run.fold, folds):
            if on_epoch:
                for record in fold.read_history()[counted[fold.number] :]:
                    counted[fold.number] += 1
                    on_epoch(fold.number, record)
            if on_bag and is_file(fold.progress):
                on_bag(fold.number, *read_json(fold.progress))

    return report


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
        cohort = Cohort.load(cohort_folder)
        train_fold(cohort, index, settings, fold.path, hosts_from=sources, on_bag=tick)
    fold.progress.unlink(missing_ok=True)
