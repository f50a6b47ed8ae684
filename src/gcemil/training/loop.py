"""The training loop: stages, epochs, windows. It can be resumed at every epoch.

The common recipe: AdamW, cosine rate, clipped gradients; sampled patches of a training bag, all patches at validation. The
epoch is chosen on validation among the last 40 %, for wrapped and plain hosts alike. A preparing stage that keeps its best
epoch chooses it by the same rule, on the plain host.

A host with given weights skips its preparing stages, and a frozen one is not trained at all. By default nothing of the
evidence is trained with the host: it is fitted afterwards (training/directions.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort, SampleRule, load_bags
from gcemil.config import TrainSettings
from gcemil.device import computing_in
from gcemil.errors import RunError
from gcemil.explanation import bag_tensors
from gcemil.files import validate_as, write_text
from gcemil.hosts.host import Stage
from gcemil.hosts.table import AnyHost, host_spec, patch_limit
from gcemil.model import Evidence, GceMil
from gcemil.outputs import create_output
from gcemil.records import write_representations
from gcemil.runs.checkpoint import (
    TRAIN_AGAIN,
    LoadedNetwork,
    load_modules,
    load_optimizer,
    load_tensors,
    module_state,
    optimizer_state,
    refuse_misfit,
    save_tensors,
)
from gcemil.runs.folder import FoldParts, RunFold
from gcemil.runs.predict import Mode, evaluate_bags, represent_bags
from gcemil.tasks.task import Task, stacked_targets, target_tensor
from gcemil.training.directions import calibrate_confirmation, find_class_directions, fit_head
from gcemil.training.epochs import GateStatistics, GradientNorms, LossMeans, find_failures
from gcemil.training.objective import TrainingBag, create_null, evidence_terms, host_terms
from gcemil.training.optimizer import (
    annealed_temperature,
    clip_gradients,
    create_optimizer,
    evidence_weight,
    final_temperature,
    reading_temperature,
    scheduled_rate,
    stream_seed,
)

EpochRecord = dict[str, Any]
OnEpoch = Callable[[EpochRecord], None]
OnBag = Callable[[int, int], None]


@dataclass
class Progress:
    """Where training stands; saved with the weights at every epoch."""

    stage: int = 0
    epoch: int = 0
    best: float = -math.inf
    best_loss: float = math.inf
    best_epoch: int = -1
    stale: int = 0
    finished: bool = False
    history: list[EpochRecord] = field(default_factory=list)


def train(
    loaded: LoadedNetwork,
    cohort: Cohort,
    parts: FoldParts,
    task: Task,
    settings: TrainSettings,
    folder: RunFold,
    *,
    fold: int = 0,
    on_epoch: OnEpoch | None = None,
    on_bag: OnBag | None = None,
) -> Progress:
    """Train to the end, from the last saved epoch if there is one; the network then has the weights of the chosen epoch.

    Evidence that is not trained with the host is fitted afterwards, by `fit_evidence`.
    """
    device = next(loaded.network.parameters()).device
    null: nn.Module = nn.Identity()
    if settings.evidence:
        null = create_null(settings.evidence, create_output(cohort.card.task, cohort.n_outputs)).to(
            device
        )
    modules = {"network": loaded.network, "null": null}
    base_rate = settings.learning_rate or host_spec(settings.host.name).learning_rate
    progress, best, saved = _resume(folder.resume, modules)

    stages = training_stages(loaded.host, settings)
    n_windows = len(epoch_windows(cohort, parts, task, settings, 0, 0))
    n_epochs = settings.count_epochs(len(parts.train), survival=cohort.card.task == "survival")
    for number, stage in enumerate(stages[progress.stage :], start=progress.stage):
        if progress.finished:
            break
        if progress.epoch == 0:
            # Weights, dropout and every other draw of torch's global generator.
            torch.manual_seed(stream_seed(settings.seed, fold, number))
            begin_stage(loaded.host, stage, settings, cohort, parts, n_epochs * n_windows)
        # What a stage freezes must not keep the gradient of the stage before: clipping would count it.
        loaded.network.zero_grad(set_to_none=True)
        optimizer = create_optimizer(loaded.network, base_rate, settings)
        if saved is not None:
            with refuse_misfit(folder.resume):
                load_optimizer(optimizer, saved)
                torch.set_rng_state(saved["rng"])
            saved = None
        for epoch in range(progress.epoch, n_epochs):
            record = train_epoch(
                loaded, null, cohort, parts, task, settings, optimizer,
                stage=stage, stage_number=number, epoch=epoch, n_epochs=n_epochs, on_bag=on_bag,
            )  # fmt: skip
            is_last_stage = number == len(stages) - 1
            if is_last_stage or stage.keeps_best:
                # The wrapper has no part in a preparing stage, nor in the choice of an epoch if it does not train the host.
                judged = loaded.network if trains_jointly(loaded, stage) else loaded.host
                record |= validate(judged, cohort, parts.val, task)
                if settings.keep_epochs and is_last_stage:
                    # Nothing of this reaches the training, nor its random numbers.
                    with torch.random.fork_rng(devices=[]):
                        found = represent_bags(loaded.network, cohort, parts, recovers=False)
                    write_representations(folder.epoch_representations(epoch), found)
                if epoch + 1 >= math.ceil(settings.chosen_from * n_epochs):
                    best = _keep_best(progress, record, loaded.network, best, settings.chosen_by)
            stops = (
                settings.early_stopping is not None and progress.stale >= settings.early_stopping
            )
            done = epoch + 1 == n_epochs or stops
            progress.history.append(record)
            progress.epoch, progress.stage = (0, number + 1) if done else (epoch + 1, number)
            progress.finished = done and is_last_stage
            if done and not is_last_stage and best is not None:
                loaded.network.load_state_dict(best)
                best, progress = None, Progress(stage=number + 1, history=progress.history)
            # The history first: an epoch whose state was not saved is done again, and its line written again.
            write_history(folder.history, progress.history)
            _save_state(folder.resume, modules, optimizer, best, progress)
            if on_epoch:
                on_epoch(record)
            if done:
                break
    if best is None and stages:
        raise RunError(f"{folder.path}: training ended without a chosen epoch.")
    if best is not None:
        loaded.network.load_state_dict(best)
    return progress


def fit_evidence(
    loaded: LoadedNetwork,
    cohort: Cohort,
    parts: FoldParts,
    settings: TrainSettings,
    *,
    fold: int = 0,
) -> None:
    """Fit what the evidence needs around a trained host: class directions, head, its vote, and the confirmation threshold."""
    model = loaded.model
    if model is None:
        return
    # Training needs warm gates, reading them does not: every chosen epoch is read at one temperature.
    model.set_temperature(reading_temperature(settings))
    if model.output_kind.measures_unit:
        risks = evaluate_bags(loaded.host, cohort, parts.train, modes=("full",))
        model.risk_spread.copy_(risks["full"].std().clamp_min(1e-12))
    if (
        not model.output_kind.is_number
        and model.settings.likeness_term
        and loaded.reference is not None
    ):
        directions = find_class_directions(
            model, cohort, parts.train, loaded.reference, seed=stream_seed(settings.seed, fold, 4)
        )
        model.class_directions.copy_(directions)
    if model.settings.head and loaded.reference is not None:
        fit_head(model, cohort, parts, loaded.reference, loaded.label_scale)
    calibrate_confirmation(model, cohort, parts.val)


def training_stages(host: AnyHost, settings: TrainSettings) -> tuple[Stage, ...]:
    """Stages to run: all for a new host, only the last for a pretrained one, none for a frozen one."""
    if settings.host.is_frozen:
        return ()
    stages: tuple[Stage, ...] = host.stages()
    return stages if settings.host.weights is None else stages[-1:]


def trains_jointly(loaded: LoadedNetwork, stage: Stage) -> bool:
    """True if host and evidence are trained together; otherwise the evidence is fitted after the host."""
    return loaded.model is not None and loaded.model.settings.train_host and not stage.prepares


def begin_stage(
    host: AnyHost,
    stage: Stage,
    settings: TrainSettings,
    cohort: Cohort,
    parts: FoldParts,
    n_steps: int,
) -> None:
    """Let a host prepare for a stage; one that comes trained sets its counters, and keeps its weights."""
    given = {
        name: one.clone() for name, one in host.state_dict().items() if one.is_floating_point()
    }
    host.begin_stage(stage, lambda: bag_features(host, cohort, parts.train), n_steps)
    if settings.host.weights is not None:
        host.load_state_dict({**host.state_dict(), **given})


def train_epoch(
    loaded: LoadedNetwork,
    null: nn.Module,
    cohort: Cohort,
    parts: FoldParts,
    task: Task,
    settings: TrainSettings,
    optimizer: torch.optim.Optimizer,
    *,
    stage: Stage,
    stage_number: int,
    epoch: int,
    n_epochs: int,
    on_bag: OnBag | None = None,
) -> EpochRecord:
    """Every training bag once, one optimiser step per window."""
    network = loaded.network
    model = loaded.model if trains_jointly(loaded, stage) else None
    device = next(network.parameters()).device
    windows = epoch_windows(cohort, parts, task, settings, stage_number, epoch)
    rule = SampleRule(
        patch_limit(settings), settings.sampling, stream_seed(settings.seed, stage_number)
    )
    bags = load_bags(
        cohort,
        [parts.train[i] for window in windows for i in window],
        rule=rule,
        epoch=epoch,
        ahead=2 * max(map(len, windows)),
    )
    if model is not None and loaded.reference is not None:
        model.calibrate(loaded.reference)
    network.train()
    sums, gates, norms = LossMeans(), GateStatistics(), GradientNorms()
    done = 0
    for position, window in enumerate(windows):
        progress = (epoch + position / len(windows)) / n_epochs
        for group in optimizer.param_groups:
            group["lr"] = scheduled_rate(settings, group["base_rate"], progress)
        if model is not None:
            evidence = model.settings
            model.set_temperature(
                annealed_temperature(
                    evidence.temperature_start, final_temperature(settings), progress
                )
            )
        drawn = [_move_bag(*next(bags), device) for _ in window]
        outputs: Sequence[Evidence] = []
        with computing_in(settings.precision, device):
            if model is None:
                terms = host_terms(loaded.host, task, drawn)
            else:
                weight = evidence_weight(model.settings.warmup, model.settings.ramp, progress)
                terms, outputs = evidence_terms(model, null, task, drawn, weight=weight)  # type: ignore[arg-type]
        done += len(window)
        if on_bag:
            on_bag(done, len(parts.train))
        if "task" not in terms:
            sums.eventless += 1
            continue
        loss = torch.stack([term.float() for term in terms.values()]).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norms.add(clip_gradients(loaded, settings.clip), settings.clip)
        optimizer.step()
        loaded.host.after_step()
        sums.add(terms)
        gates.add(outputs)
    if any(True for _ in bags):
        raise RunError("The loader gave more bags than the windows asked for.")
    record: EpochRecord = {
        "stage": stage.name,
        "epoch": epoch,
        "terms": sums.means(),
        **gates.summary(),
    }
    record |= norms.summary()
    record["eventless_windows"] = sums.eventless
    record["learning_rate"] = optimizer.param_groups[0]["lr"]
    record["warnings"] = find_failures(
        {k: v for k, v in record.items() if isinstance(v, int | float)},
        record["terms"],
        competes=model is not None,
    )
    return record


def epoch_windows(
    cohort: Cohort,
    parts: FoldParts,
    task: Task,
    settings: TrainSettings,
    stage_number: int,
    epoch: int,
) -> list[Int[np.ndarray, "_"]]:
    """The training bags of one epoch, one window for each optimiser step."""
    targets = stacked_targets(parts.train)
    is_survival = cohort.card.task == "survival"
    size = min(settings.window, len(targets)) if is_survival else settings.bags_per_step
    generator = np.random.default_rng([settings.seed, stage_number, epoch])
    return task.windows(targets, window_size=size, generator=generator)


def validate(
    network: nn.Module, cohort: Cohort, bags: Sequence[BagSpec], task: Task
) -> EpochRecord:
    """Task metric and loss on all patches of the validation bags; for a wrapper, the mean of gated and ungated.

    With joint training both predictions matter, and a dozen validation bags judged twice choose more steadily than once.
    """
    modes: tuple[Mode, ...] = ("soft", "full") if isinstance(network, GceMil) else ("full",)
    logits = evaluate_bags(network, cohort, bags, modes=modes)
    targets = stacked_targets(bags)
    losses = [task.loss(logits[mode], targets) for mode in modes]
    metrics = {mode: task.metrics(targets, task.prediction(logits[mode])) for mode in modes}
    return {
        "val_loss": fmean(math.nan if loss is None else float(loss) for loss in losses),
        **{f"val_{name}": value for name, value in metrics[modes[0]].items()},
        "val": fmean(found[task.task_metric] for found in metrics.values()),
    }


def _move_bag(spec: BagSpec, bag: Bag, device: torch.device) -> TrainingBag:
    features, coords = bag_tensors(bag, device)
    return TrainingBag(features, coords, bag.patch_size, target_tensor(spec).to(device))


@torch.no_grad()
def bag_features(host: nn.Module, cohort: Cohort, bags: Sequence[BagSpec]) -> Tensor:
    """One row per bag under the host's current weights, all patches."""
    host.eval()
    device = next(host.parameters()).device
    drawn = load_bags(cohort, bags, rule=SampleRule())
    return torch.stack([host(*bag_tensors(bag, device)).bag_feature for _, bag in drawn])


def _list_shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def write_history(path: Path, history: Sequence[EpochRecord]) -> None:
    """One line per epoch; rewritten whole, so that a resumed run has no line twice."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in history))


def _keep_best(
    progress: Progress,
    record: EpochRecord,
    network: nn.Module,
    best: dict[str, Tensor] | None,
    chosen_by: Literal["metric", "loss"],
) -> dict[str, Tensor]:
    """The weights of the better epoch: by the task metric, equal ones by the loss, or the other way round."""
    now, before = (record["val"], -record["val_loss"]), (progress.best, -progress.best_loss)
    # Of equals the later one.
    better = now >= before if chosen_by == "metric" else now[::-1] >= before[::-1]
    if best is not None and not better:
        progress.stale += 1
        return best
    progress.best, progress.best_loss = record["val"], record["val_loss"]
    progress.best_epoch, progress.stale = record["epoch"], 0
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def _save_state(
    path: Path,
    modules: dict[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor] | None,
    progress: Progress,
) -> None:
    tensors = module_state(modules) | optimizer_state(optimizer)
    tensors |= {f"best.{name}": tensor for name, tensor in (best or {}).items()}
    tensors["rng"] = torch.get_rng_state()
    save_tensors(path, tensors, {"progress": vars(progress)})


def _resume(
    path: Path, modules: dict[str, nn.Module]
) -> tuple[Progress, dict[str, Tensor] | None, dict[str, Tensor] | None]:
    """Where the last run stopped, its best weights, and the rest of its state; a fresh start otherwise."""
    if not path.is_file():
        return Progress(), None, None
    tensors, meta = load_tensors(path)
    best = {
        name.removeprefix("best."): tensor
        for name, tensor in tensors.items()
        if name.startswith("best.")
    }
    with refuse_misfit(path):
        load_modules(modules, tensors)
        if best and _list_shapes(best) != _list_shapes(modules["network"].state_dict()):
            raise ValueError("the best weights have other shapes")
    # Before the first validation the best figure is minus infinity.
    progress = validate_as(
        meta.get("progress"), Progress, path, error=RunError, remedy=TRAIN_AGAIN, finite=False
    )
    # The optimiser belongs to one stage; a new stage starts with a new one.
    return progress, best or None, tensors if progress.epoch > 0 else None
