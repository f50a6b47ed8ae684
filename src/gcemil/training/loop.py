"""The training loop: stages and epochs, resumed at every epoch; then the evidence around the host.

AdamW, cosine rate, clipped gradients; sampled patches of a training bag, all patches at validation.
The epoch is chosen on validation among the last 40 %, for wrapped and plain hosts alike. A
preparing stage that keeps its best epoch chooses it by the same rule, on the plain host.

A host with given weights skips its preparing stages, and a frozen one is not trained at all. By
default the evidence is not trained with the host but fitted afterwards (training/directions.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from gcemil.bags.cohort import BagSpec, Cohort, SampleRule, load_bags
from gcemil.config import TrainSettings
from gcemil.errors import RunError
from gcemil.evidence.losses import NullTarget
from gcemil.explanation import bag_tensors
from gcemil.files import validate_as, write_text
from gcemil.hosts.table import host_spec
from gcemil.model import GceMil
from gcemil.records import write_representations
from gcemil.runs.checkpoint import (
    TRAIN_AGAIN,
    LoadedNetwork,
    load_optimizer,
    load_tensors,
    optimizer_state,
    refuse_misfit,
    save_tensors,
)
from gcemil.runs.folder import FoldParts, RunFold
from gcemil.runs.predict import Mode, evaluate_bags, represent_bags
from gcemil.tasks.task import Task, stacked_targets
from gcemil.training.directions import calibrate_confirmation, find_class_directions, fit_head
from gcemil.training.epochs import EpochRecord, OnBag, epoch_windows, train_epoch, trains_jointly
from gcemil.training.optimizer import create_optimizer, reading_temperature, stream_seed

OnEpoch = Callable[[EpochRecord], None]
Weights = dict[str, Tensor]


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
    """Train to the end, from the last saved epoch if there is one.

    The network then has the weights of the chosen epoch. Evidence that is not trained with the host
    is fitted afterwards, by `fit_evidence`.
    """
    host, network, survival = loaded.host, loaded.network, cohort.card.task == "survival"
    state, null = nn.ModuleDict({"network": network}), None
    if settings.evidence is not None and settings.evidence.train_host and cohort.n_outputs > 1:
        null = NullTarget(cohort.n_outputs).to(next(network.parameters()).device)
        state["null"] = null
    base_rate = settings.learning_rate or host_spec(settings.host.name).default_rate(host.in_dim)
    progress, best, saved = _resume(folder.resume, state)
    stages = () if settings.host.is_frozen else host.stages()
    if settings.host.weights is not None:
        stages = stages[-1:]
    n_epochs = settings.count_epochs(len(parts.train), survival=survival)
    for number, stage in enumerate(stages[progress.stage :], start=progress.stage):
        if progress.finished:
            break
        if progress.epoch == 0:
            # Weights, dropout and every other draw of torch's global generator.
            torch.manual_seed(stream_seed(settings.seed, fold, number))
            given = {
                k: one.clone() for k, one in host.state_dict().items() if one.is_floating_point()
            }
            n_steps = n_epochs * len(epoch_windows(cohort, parts, task, settings, 0, 0))
            host.begin_stage(stage, lambda: bag_features(host, cohort, parts.train), n_steps)
            if settings.host.weights is not None:
                # A host that comes trained sets its counters, and keeps its weights.
                host.load_state_dict({**host.state_dict(), **given})
        # Clipping would count the gradients of what this stage freezes.
        network.zero_grad(set_to_none=True)
        optimizer = create_optimizer(network, base_rate, settings)
        if saved is not None:
            with refuse_misfit(folder.resume):
                load_optimizer(optimizer, saved)
                torch.set_rng_state(saved["rng"])
            saved = None
        is_last_stage = number == len(stages) - 1
        for epoch in range(progress.epoch, n_epochs):
            record = train_epoch(
                loaded, null, cohort, parts, task, settings, optimizer,
                stage=stage, stage_number=number, epoch=epoch, n_epochs=n_epochs, on_bag=on_bag,
            )  # fmt: skip
            if is_last_stage or stage.keeps_best:
                # The wrapper takes part in the choice of an epoch only if it trains the host.
                judged = network if trains_jointly(loaded, stage) else host
                record |= validate(judged, cohort, parts.val, task)
                if settings.keep_epochs and is_last_stage:
                    # The random numbers of the training stay as they are.
                    with torch.random.fork_rng(devices=[]):
                        kept = represent_bags(network, cohort, parts, recovers=False)
                    write_representations(folder.epoch_representations(epoch), kept)
                if epoch + 1 >= math.ceil(settings.chosen_from * n_epochs):
                    best = _keep_best(progress, record, network, best, settings)
            is_stale = progress.stale >= (settings.early_stopping or math.inf)
            done = epoch + 1 == n_epochs or is_stale
            progress.history.append(record)
            progress.epoch, progress.stage = (0, number + 1) if done else (epoch + 1, number)
            progress.finished = done and is_last_stage
            if done and not is_last_stage and best is not None:
                network.load_state_dict(best)
                best, progress = None, Progress(stage=number + 1, history=progress.history)
            # The history first: an epoch whose state was not saved is done and written again.
            write_history(folder.history, progress.history)
            _save_state(folder.resume, state, optimizer, best, progress)
            if on_epoch:
                on_epoch(record)
            if done:
                break
    if best is not None:
        network.load_state_dict(best)
    elif stages:
        raise RunError(f"{folder.path}: training ended without a chosen epoch.")
    return progress


def fit_evidence(
    loaded: LoadedNetwork,
    cohort: Cohort,
    parts: FoldParts,
    settings: TrainSettings,
    *,
    fold: int = 0,
) -> None:
    """Fit the evidence around a trained host: directions, head, vote, confirmation threshold."""
    model, reference = loaded.model, loaded.reference
    if model is None:
        return
    # Every chosen epoch is read at one temperature.
    model.set_temperature(reading_temperature(settings))
    if model.output_kind.measures_unit:
        risks = evaluate_bags(loaded.host, cohort, parts.train, modes=("full",))
        model.risk_spread.copy_(risks["full"].std().clamp_min(1e-12))
    if reference is not None:
        if model.settings.likeness_term and not model.output_kind.is_number:
            seed = stream_seed(settings.seed, fold, 4)
            directions = find_class_directions(model, cohort, parts.train, reference, seed=seed)
            model.class_directions.copy_(directions)
        if model.settings.head:
            fit_head(model, cohort, parts, reference, loaded.label_scale)
    calibrate_confirmation(model, cohort, parts.val)


def validate(
    network: nn.Module, cohort: Cohort, bags: Sequence[BagSpec], task: Task
) -> EpochRecord:
    """Task metric and loss on all patches of the validation bags.

    Joint training is judged by the mean of gated and ungated, which chooses more steadily than one.
    """
    modes: tuple[Mode, ...] = ("soft", "full") if isinstance(network, GceMil) else ("full",)
    logits = evaluate_bags(network, cohort, bags, modes=modes)
    targets = stacked_targets(bags)
    losses = [task.loss(logits[mode], targets) for mode in modes]
    metrics = [task.metrics(targets, task.prediction(logits[mode])) for mode in modes]
    return {
        "val_loss": fmean(math.nan if loss is None else float(loss) for loss in losses),
        **{f"val_{name}": value for name, value in metrics[0].items()},
        "val": fmean(values[task.task_metric] for values in metrics),
    }


@torch.no_grad()
def bag_features(host: nn.Module, cohort: Cohort, bags: Sequence[BagSpec]) -> Tensor:
    """One row per bag under the host's current weights, all patches."""
    host.eval()
    device = next(host.parameters()).device
    drawn = load_bags(cohort, bags, rule=SampleRule())
    return torch.stack([host(*bag_tensors(bag, device)).bag_feature for _, bag in drawn])


def write_history(path: Path, history: Sequence[EpochRecord]) -> None:
    """One line per epoch; rewritten whole, so that a resumed run has no line twice."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in history))


def _keep_best(
    progress: Progress,
    record: EpochRecord,
    network: nn.Module,
    best: Weights | None,
    settings: TrainSettings,
) -> Weights:
    """The weights of the better epoch, of equals the later one."""
    now, before = (record["val"], -record["val_loss"]), (progress.best, -progress.best_loss)
    if settings.chosen_by == "loss":
        now, before = now[::-1], before[::-1]
    if best is not None and not now >= before:
        progress.stale += 1
        return best
    progress.best, progress.best_loss = record["val"], record["val_loss"]
    progress.best_epoch, progress.stale = record["epoch"], 0
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def _save_state(
    path: Path,
    state: nn.ModuleDict,
    optimizer: torch.optim.Optimizer,
    best: Weights | None,
    progress: Progress,
) -> None:
    tensors = {**state.state_dict(), **optimizer_state(optimizer), "rng": torch.get_rng_state()}
    tensors |= {f"best.{name}": tensor for name, tensor in (best or {}).items()}
    save_tensors(path, tensors, {"progress": vars(progress)})


def _resume(path: Path, state: nn.ModuleDict) -> tuple[Progress, Weights | None, Weights | None]:
    """Where the last run stopped, its best weights, and the rest of its state."""
    if not path.is_file():
        return Progress(), None, None
    tensors, meta = load_tensors(path)
    best = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("best.")}
    with refuse_misfit(path):
        if best:
            state["network"].load_state_dict(best)
        state.load_state_dict({k: v for k, v in tensors.items() if k.startswith(tuple(state))})
    # Before the first validation the best figure is minus infinity.
    progress = validate_as(
        meta.get("progress"), Progress, path, error=RunError, remedy=TRAIN_AGAIN, finite=False
    )
    # The optimiser belongs to one stage; a new stage starts with a new one.
    return progress, best or None, tensors if progress.epoch > 0 else None
