"""A wrapped host and a bag of any size, and the clock of one call, for the measurements of
bench.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gcemil.config import EvidenceSettings
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.bridge import CentredBridge
from gcemil.hosts.table import HOSTS, create_host
from gcemil.model import GceMil

STEP, N_ANCHORS = 256, 8
Run = Callable[[], object]


def make_model(name: str, bridge: Any, width: int) -> GceMil:
    """An untrained host in its last stage, in its default gate mode, and a calibrated wrapper."""
    torch.manual_seed(0)
    host = create_host(name, in_dim=width, n_outputs=2).eval()
    for stage in host.stages():
        host.begin_stage(stage, lambda: bag_features(host, width), 1)
    settings = EvidenceSettings(bridge=bridge, bridge_rank=128, hidden=32)
    prompts = tuple(f"anchor {m}" for m in range(N_ANCHORS))
    bank = AnchorBank(torch.randn(N_ANCHORS, width), prompts, "benchmark")
    model = GceMil(host, bank, in_dim=width, settings=settings).eval()
    reference = torch.randn(2 * width, width)
    if isinstance(model.bridge, CentredBridge):
        model.bridge.set_centre(reference.mean(dim=0))
    elif model.bridge.needs_fit:
        model.bridge.fit(reference, reference @ torch.randn(width, width))
    model.calibrate(reference)
    model.set_temperature(HOSTS[name].temperature_end)
    return model


@torch.no_grad()
def bag_features(host: Any, width: int) -> Tensor:
    return torch.stack([host(*make_bag(20, width)).bag_feature for _ in range(16)])


def make_bag(n_patches: int, width: int) -> tuple[Tensor, Tensor]:
    row = torch.arange(n_patches)
    side = int(n_patches**0.5) + 1
    return torch.randn(n_patches, width), STEP * torch.stack([row % side, row // side], dim=1)


def clock(run: Run) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu
