"""An audit as it is asked for: a model by name, a cohort, and folders of patch scores.

A model is a run folder, of which the host of one fold is audited, or `package.module:callable`. The scores are the
model's own, those of every folder given, or the slope of its output by each patch where there are neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.fingerprint import record_cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.targets import refuse_targets
from gcemil.config import TrainSettings
from gcemil.diagnostics.audit import OWN_SCORES, ScoreSource, audit_model
from gcemil.diagnostics.audit_inputs import (
    BlackBox,
    check_answers,
    name_bag_in_errors,
    read_bag_scores,
)
from gcemil.errors import UsageError
from gcemil.explanation import bag_tensors
from gcemil.findings import Finding
from gcemil.hosts.host import HostOutput
from gcemil.hosts.own import import_file, import_object
from gcemil.hosts.table import AnyHost
from gcemil.runs.checkpoint import open_network
from gcemil.runs.environment import describe_environment
from gcemil.runs.folder import Run, fold_parts
from gcemil.tasks.task import create_task, stacked_targets

Part = Literal["train", "val", "test", "all"]


def audit_cohort(
    folder: Path,
    model: str,
    *,
    scores: Sequence[Path] = (),
    column: str | None = None,
    gates: bool = False,
    part: Part = "test",
    fold: int = 0,
    budget: float = 0.05,
    arrays: Literal["torch", "numpy"] = "torch",
    repeats: int = 3,
    seed: int = 0,
    device: str = "cpu",
    on_bag: Callable[[int, int], None] | None = None,
) -> Finding:
    """Audit a model on one part of a cohort; a model named by module is imported, which runs its code."""
    cohort = Cohort.load(folder)
    refuse_targets(cohort)
    parts = None if part == "all" else fold_parts(cohort, read_fold(cohort, fold))
    own = (
        open_network(Run(Path(model)).fold(fold).checkpoint, device)[0]
        if Path(model).is_dir()
        else None
    )
    task = create_task(cohort, TrainSettings(), (0.0, 1.0) if own is None else own.label_scale)
    specs = cohort.bags if parts is None else getattr(parts, part)
    targets = stacked_targets(specs)
    task.check(targets, where=f"{folder}, fold {fold}, part {part}")
    box = BlackBox(
        _import_model(model) if own is None else _ask_host(own.host),
        model,
        in_dim=cohort.card.feature_dim,
        n_outputs=cohort.n_outputs,
        arrays=arrays,
    )
    with name_bag_in_errors(specs[0].bag_id), torch.no_grad():
        given = bag_tensors(cohort.read_bag(specs[0]))
        box.match_batch_axis(*given)
        warnings = check_answers(specs[0].bag_id, lambda: box.answer(*given)[0])
    finding = audit_model(
        box.host(),
        cohort,
        specs,
        targets,
        task,
        score_sources=_collect_sources(box, cohort, specs[0], scores, column, gates),
        budget=budget,
        seed=seed,
        on_bag=on_bag,
        repeats=repeats,
    )
    notes = (*warnings, *finding.notes)
    if part != "test":
        notes = (*notes, f"Bags of part '{part}': the model may have been trained on them.")
    inputs = {"cohort": record_cohort(cohort).fingerprint}
    provenance = {
        **describe_environment(seed=seed, device=torch.device("cpu"), inputs=inputs),
        "cohort": cohort.card.name,
        "model": model,
        "scores": [path.resolve().name for path in scores],
        "part": part,
        "fold": None if part == "all" else fold,
    }
    return replace(finding, notes=notes, provenance=provenance)


def _ask_host(host: AnyHost) -> Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]:
    """The host of a trained fold as a callable that gives logits and its own patch scores."""

    def answer(features: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor]:
        output = host(features, coords)
        return output.logits, output.scores

    return answer


def _import_model(name: str) -> Any:
    """The object that --model names; a torch module is set to evaluation."""
    if ":" not in name:
        raise UsageError(
            f"--model '{name}' is neither a run folder nor a callable of yours, which is written package.module:callable "
            "or folder/file.py:callable."
        )
    file, _, callable_name = name.rpartition(":")
    if file.endswith(".py"):
        name = f"{import_file(Path(file), '--model')}:{callable_name}"
    found = import_object(name, "--model")
    return found.eval() if isinstance(found, nn.Module) else found


def _collect_sources(
    box: BlackBox,
    cohort: Cohort,
    first: BagSpec,
    folders: Sequence[Path],
    column: str | None,
    gates: bool,
) -> dict[str, ScoreSource]:
    """The model's own scores, those of every folder, or the slope where there are neither."""
    found: dict[str, ScoreSource] = {}
    with name_bag_in_errors(first.bag_id), torch.no_grad():
        if box.answer(*bag_tensors(cohort.read_bag(first)))[1] is not None:
            found["model"] = OWN_SCORES
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"--scores {folder} is not a folder. Give the folder of <slide_id>.h5, .csv or .npy files."
            )
        name = folder.resolve().name
        if name in found:
            raise UsageError(
                f"Two sources of scores are called '{name}'. Rename the folder {folder}."
            )

        def read(bag: Bag, _full: HostOutput, folder: Path = folder) -> Tensor:
            return torch.from_numpy(read_bag_scores(folder, bag, column=column))

        found[name] = ScoreSource(read, follows_bag=False, are_gates=gates)
    if gates and not folders:
        raise UsageError("--gates says what the score files hold. Give them with --scores DIR.")
    return found or {"slope": ScoreSource(lambda bag, _full: box.slopes(*bag_tensors(bag)))}
