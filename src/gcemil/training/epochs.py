"""One epoch: every training bag once, its figures, and warnings of known failures."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcemil.bags.cohort import Cohort, SampleRule, load_bags
from gcemil.config import TrainSettings
from gcemil.device import computing_in
from gcemil.evidence.losses import NullTarget
from gcemil.explanation import bag_tensors
from gcemil.hosts.host import Stage
from gcemil.hosts.table import patch_limit
from gcemil.model import Evidence
from gcemil.runs.checkpoint import LoadedNetwork
from gcemil.runs.folder import FoldParts
from gcemil.tasks.task import Task, Windows, stacked_targets, target_tensor
from gcemil.training.objective import TrainingBag, evidence_terms, host_terms
from gcemil.training.optimizer import (
    annealed_temperature,
    clip_gradients,
    evidence_weight,
    final_temperature,
    scheduled_rate,
    stream_seed,
)

EpochRecord = dict[str, Any]
OnBag = Callable[[int, int], None]
GATE_BINS = 10
SOLVED_LOSS = 0.1
"""Cross-entropy of a task whose bags are given nine tenths of their class."""
DOMINANT_SHARE = 0.9
MOSTLY = 0.5
SEVERE = 5.0
"""The steps of Adam do not depend on the scale of its gradients, so a milder cut does no harm."""


def train_epoch(
    loaded: LoadedNetwork,
    null: NullTarget | None,
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
    seed = stream_seed(settings.seed, stage_number)
    bags = load_bags(
        cohort,
        [parts.train[i] for window in windows for i in window],
        rule=SampleRule(patch_limit(settings), settings.sampling, seed),
        epoch=epoch,
        ahead=2 * max(map(len, windows)),
    )
    if model is not None and loaded.reference is not None:
        model.calibrate(loaded.reference)
    network.train()
    figures, done = EpochFigures(settings.clip), 0
    for position, window in enumerate(windows):
        progress = (epoch + position / len(windows)) / n_epochs
        for group in optimizer.param_groups:
            group["lr"] = scheduled_rate(settings, group["base_rate"], progress)
        if model is not None:
            model.set_temperature(annealed_temperature(final_temperature(settings), progress))
        drawn = []
        for _ in window:
            spec, bag = next(bags)
            target = target_tensor(spec).to(device)
            drawn.append(TrainingBag(*bag_tensors(bag, device), bag.patch_size, target))
        outputs: Sequence[Evidence] = []
        with computing_in(settings.precision, device):
            if model is None:
                terms = host_terms(loaded.host, task, drawn)
            else:
                weight = evidence_weight(model.settings.warmup, model.settings.ramp, progress)
                terms, outputs = evidence_terms(model, null, task, drawn, weight=weight)
        done += len(window)
        if on_bag:
            on_bag(done, len(parts.train))
        if "task" not in terms:
            figures.eventless += 1
            continue
        loss = torch.stack([term.float() for term in terms.values()]).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norms = clip_gradients(loaded, settings.clip)
        optimizer.step()
        loaded.host.after_step()
        figures.add(terms, norms, outputs)
    rate = optimizer.param_groups[0]["lr"]
    record = {"stage": stage.name, "epoch": epoch, **figures.summarise(), "learning_rate": rate}
    warnings = find_failures(record, record["terms"], competes=model is not None)
    return {**record, "warnings": warnings}


def trains_jointly(loaded: LoadedNetwork, stage: Stage) -> bool:
    """Whether host and evidence are trained together, or the evidence is fitted after the host."""
    return loaded.model is not None and loaded.model.settings.train_host and not stage.prepares


def epoch_windows(
    cohort: Cohort,
    parts: FoldParts,
    task: Task,
    settings: TrainSettings,
    stage_number: int,
    epoch: int,
) -> Windows:
    """The training bags of one epoch, one window for each optimiser step."""
    targets = stacked_targets(parts.train)
    is_survival = cohort.card.task == "survival"
    size = min(settings.window, len(targets)) if is_survival else settings.bags_per_step
    generator = np.random.default_rng([settings.seed, stage_number, epoch])
    return task.windows(targets, window_size=size, generator=generator)


class EpochFigures:
    """Loss terms, gradient norms and gates of an epoch."""

    def __init__(self, clip: float | None) -> None:
        self.clip = math.inf if clip is None else clip
        # Tensors until the end: reading a number would stop the device at every step.
        self.terms: dict[str, list[Tensor]] = defaultdict(list)
        self.norms: dict[str, list[Tensor]] = defaultdict(list)
        self.gates: list[Tensor] = []
        """Per bag: mean gate, share open, 1 if none is, largest, least coverage, histogram."""
        self.steps = self.eventless = 0

    def add(
        self,
        terms: Mapping[str, Tensor],
        norms: Mapping[str, Tensor],
        outputs: Sequence[Evidence] = (),
    ) -> None:
        """Count one step."""
        self.steps += 1
        for values, kept in ((terms, self.terms), (norms, self.norms)):
            for name, value in values.items():
                kept[name].append(value.detach())
        for output in outputs:
            gates, opened = output.gates.detach().float(), output.opened.float()
            least = output.coverage.detach().float().amin()
            row = [gates.mean(), opened.mean(), 1 - opened.amax(), gates.amax(), least]
            shares = torch.histc(gates, GATE_BINS, 0, 1) / len(gates)
            self.gates.append(torch.cat([torch.stack(row), shares]))

    def summarise(self) -> EpochRecord:
        """Means of terms and gates, median norms, and the share of steps that were clipped."""
        steps = max(1, self.steps)
        means = {
            name: float(torch.stack(values).double().sum()) / steps
            for name, values in self.terms.items()
        }
        record: EpochRecord = {"terms": means}
        if self.gates:
            table = torch.stack(self.gates).double().cpu().numpy()
            mean, opened, empty = table[:, :3].mean(axis=0).tolist()
            record |= {
                "mean_gate": mean,
                "evidence_fraction": opened,
                "empty_subsets": empty,
                "max_gate": float(table[:, 3].max()),
                "min_coverage": float(table[:, 4].min()),
                "gate_histogram": table[:, 5:].mean(axis=0).round(5).tolist(),
            }
        for name, norms in self.norms.items():
            norm = torch.stack(norms).float()
            record[f"{name}_gradient"] = float(norm.median())
            record[f"{name}_clipped"] = float((norm > self.clip).float().mean())
            severe = (norm > SEVERE * self.clip).float().mean()
            record[f"{name}_severely_clipped"] = float(severe)
        return {**record, "eventless_windows": self.eventless}


def merge_warnings(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """The warnings of all epochs, each kind once: the last wording, and in how many epochs."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for record in history:
        for text in record["warnings"]:
            kinds[warning_kind(text)].append(text)
    return sorted(
        texts[-1] if len(texts) == 1 else f"{texts[-1]} (in {len(texts)} epochs)"
        for texts in kinds.values()
    )


def warning_kind(text: str) -> str:
    """The same sentence with other numbers is the same warning."""
    return re.sub(r"\d[\d.e+-]*", "#", text)


def find_failures(
    epoch: Mapping[str, Any], terms: Mapping[str, float], *, competes: bool = True
) -> list[str]:
    """What is wrong with this epoch, in sentences.

    Terms compete where they train the same weights: evidence and a host that it leaves alone do
    not.
    """
    failures = []
    if epoch.get("eventless_windows", 0) > 0:
        failures.append(
            f"{epoch['eventless_windows']:.0f} windows had no event and taught nothing: raise the "
            "window size."
        )
    for part in ("host", "wrapper"):
        if (share := epoch.get(f"{part}_severely_clipped", 0)) > MOSTLY:
            failures.append(
                f"the gradient of the {part} was cut to less than a fifth in {share:.0%} of the "
                f"steps (median norm {epoch[f'{part}_gradient']:.3g}): lower the learning rate, or "
                "raise 'clip'."
            )
    if "mean_gate" in epoch:
        failures += _find_gate_failures(epoch)
    total = sum(abs(value) for value in terms.values())
    task = sum(abs(value) for name, value in terms.items() if name.startswith("task"))
    # A task that is solved has no loss left, and whatever remains is then most of nothing.
    if competes and task >= SOLVED_LOSS and len(terms) > 2:
        failures += [
            f"the term '{name}' is {abs(value) / total:.0%} of the loss: lower its weight."
            for name, value in terms.items()
            if not name.startswith("task") and abs(value) > DOMINANT_SHARE * total
        ]
    return failures


def _find_gate_failures(epoch: Mapping[str, Any]) -> list[str]:
    failures = []
    mean, largest = epoch["mean_gate"], epoch["max_gate"]
    if mean > 0.9:
        failures.append(f"gates are all open (mean {mean:.2f}): the evidence is the whole bag.")
    if largest < 0.5:
        failures.append(
            f"gates are all closed (largest {largest:.2f}): recovery falls back to one patch."
        )
    elif epoch["empty_subsets"] > 0:
        failures.append(f"{epoch['empty_subsets']:.0%} of the bags open no patch at all.")
    if epoch["min_coverage"] > 0.999:
        failures.append(
            "every anchor is covered on every bag: coverage is saturated and carries no gradient."
        )
    return failures
