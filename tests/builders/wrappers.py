"""Wrapped hosts for tests, built from a seed and nothing hidden."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gcemil.bags.cohort import Task
from gcemil.config import EvidenceSettings
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.coverage import WEIGHT_GAIN, RiskPathways
from gcemil.hosts.host import Host
from gcemil.hosts.table import create_host
from gcemil.model import GceMil
from gcemil.training.objective import TrainingBag

PATCH = 256
SMALL = {
    "abmil": {"width": 16, "hidden": 8},
    "transmil": {"landmarks": 16},
    "camil": {"landmarks": 16},
}


def tensor_bag(n: int, *, dim: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features and the coordinates of a grid six columns wide."""
    row = torch.arange(n)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator), PATCH * torch.stack([row % 6, row // 6], dim=1)


def prepared_host(name: str, *, mode: Any = None, n_outputs: int = 3, dim: int = 16) -> Any:
    """A host in its last stage and in evaluation mode, off its initial biases."""
    torch.manual_seed(7)
    host = create_host(
        name, in_dim=dim, n_outputs=n_outputs, gate_mode=mode, options=SMALL.get(name)
    ).eval()

    @torch.no_grad()
    def bag_features() -> Tensor:
        return torch.stack([host(*tensor_bag(10, dim=dim, seed=s)).bag_feature for s in range(12)])

    for stage in host.stages():
        host.begin_stage(stage, bag_features, 1)
    with torch.no_grad():
        for parameter in host.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.rand_like(parameter))
    return host


def make_bank(*, n_anchors: int = 4, dim: int = 12) -> AnchorBank:
    embeddings = torch.randn(n_anchors, dim, generator=torch.Generator().manual_seed(3))
    return AnchorBank(embeddings, tuple(f"concept {m}" for m in range(n_anchors)), "test")


def wrapped(
    host: Host, *, bank: AnchorBank | None = None, task: Task | None = None, **settings: Any
) -> GceMil:
    """The wrapper, fitted on pairs where its bridge needs them and calibrated; in evaluation mode."""
    torch.manual_seed(11)
    bank = bank or make_bank()
    # The bags of these tests are small: the budget decides, not the floor under it.
    chosen = EvidenceSettings(**{"min_patches": 1, **settings})
    model = GceMil(host, bank, in_dim=host.in_dim, settings=chosen, task=task).eval()
    reference, _ = tensor_bag(200, dim=host.in_dim, seed=5)
    if model.bridge.needs_fit:
        model.bridge.fit(reference, reference @ torch.randn(host.in_dim, bank.anchor_dim))
    if isinstance(model.utility, RiskPathways):
        # At the initial 0 no pathway matters, so nothing would be covered and no gradient would reach the bridge.
        torch.nn.init.normal_(model.utility.raw_effects, std=1 / WEIGHT_GAIN)
    model.calibrate(reference)
    return model


def training_bags(n_outputs: int, *, count: int = 4, n: int = 40) -> list[TrainingBag]:
    """A window: classes in turn, or distinct times of which every other one is an event."""
    targets = [
        torch.tensor([float(i + 1), float(i % 2 == 0)])
        if n_outputs == 1
        else torch.tensor(i % n_outputs)
        for i in range(count)
    ]
    return [
        TrainingBag(*tensor_bag(n, seed=20 + i), patch_size=PATCH, target=target)
        for i, target in enumerate(targets)
    ]
