"""Make a run of weights that were trained elsewhere: a plain host, judged on given folds.

gcemil cannot know which slides a model was trained on. So each file is used for the folds its user
names; a single file without a fold is judged in every fold. Every fold records this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.targets import refuse_targets
from gcemil.config import HostSettings, HostWeights, TrainSettings
from gcemil.device import one_thread, pick_device
from gcemil.errors import UsageError
from gcemil.files import lock_folder
from gcemil.runs.checkpoint import join_hashes, save_network
from gcemil.runs.folder import FoldParts, Run, RunFold, fold_parts
from gcemil.runs.weights import PretrainedHost, check_same_sizes, read_pretrained_host
from gcemil.tasks.task import create_task
from gcemil.training.fold import create_network, evaluate_fold
from gcemil.training.run import begin_run, check_inputs, choose_folds

UNKNOWN_TRAINING = (
    "The weights were trained elsewhere: gcemil cannot know whether the slides they are judged on "
    "were among their training slides."
)


@dataclass(frozen=True)
class AdoptedRun:
    """A run of given weights."""

    settings: TrainSettings
    folds: tuple[tuple[int, Path, FoldParts], ...]
    """Number, weights and bags of every fold."""
    notes: tuple[str, ...]
    summary: dict[str, Any]


def adopt_run(
    files: Sequence[Path],
    cohort_folder: Path,
    out: Path,
    host: HostSettings,
    *,
    folds: Sequence[int] | None = None,
    on_fold: Callable[[int, int], None] | None = None,
) -> AdoptedRun:
    """A run of the given weights; everything is checked before the folder is begun."""
    cohort = Cohort.load(cohort_folder)
    refuse_targets(cohort)
    paired = pair_folds(cohort, files, folds)
    given = {
        path: read_pretrained_host(path, host, cohort) for path in dict.fromkeys(paired.values())
    }
    check_same_sizes(list(given.values()))
    weights = HostWeights(
        source=", ".join(str(path.resolve()) for path in given),
        frozen=True,
        sha256=join_hashes([one.sha256 for one in given.values()]),
    )
    sized = next(iter(given.values())).settings.model_copy(update={"weights": weights})
    settings = TrainSettings(host=sized, evidence=None)
    warnings = check_inputs(out, cohort, settings, list(paired))
    adopted = []
    with lock_folder(out), one_thread():
        begin_run(out, cohort, settings, warnings)
        for number, path in paired.items():
            parts = fold_parts(cohort, read_fold(cohort, number))
            if not (fold := Run(out).fold(number)).is_finished:
                _adopt_fold(cohort, parts, given[path], settings, fold)
            adopted.append((number, path, parts))
            if on_fold:
                on_fold(len(adopted), len(paired))
        notes = tuple(dict.fromkeys(note for one in given.values() for note in one.notes))
        return AdoptedRun(settings, tuple(adopted), notes, Run(out).write_summary())


def pair_folds(
    cohort: Cohort, files: Sequence[Path], folds: Sequence[int] | None
) -> dict[int, Path]:
    """One file for all folds, or one for each in the order given."""
    chosen = list(dict.fromkeys(choose_folds(cohort, folds)))
    if len(files) == 1:
        return dict.fromkeys(chosen, files[0])
    if len(files) != len(chosen):
        raise UsageError(
            f"{len(files)} files for {len(chosen)} folds ({', '.join(map(str, chosen))}). Give one "
            "file for all, or one for each fold and --folds in the same order."
        )
    return dict(zip(chosen, files, strict=True))


def _adopt_fold(
    cohort: Cohort, parts: FoldParts, given: PretrainedHost, settings: TrainSettings, fold: RunFold
) -> None:
    """Write the checkpoint of a fold and what it predicts."""
    device = pick_device(settings.device)
    loaded = create_network(cohort, parts.train, settings, device, given)
    with lock_folder(fold.path):
        save_network(fold.checkpoint, loaded, cohort, settings)
        details = {"warnings": [UNKNOWN_TRAINING], "anchors": None, "weights": given.record}
        task = create_task(cohort, settings, loaded.label_scale)
        evaluate_fold(loaded, cohort, parts, task, fold, details)
