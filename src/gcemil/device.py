"""Where networks compute, and in which numbers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from gcemil.config import Precision
from gcemil.errors import UsageError


def pick_device(name: str) -> torch.device:
    """A device such as cpu, cuda or cuda:1; auto takes CUDA, then MPS, then the CPU."""
    counts = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == "auto":
        return torch.device(next(kind for kind, count in counts.items() if count))
    kind, _, number = name.partition(":")
    if not (number or "0").isdecimal() or int(number or 0) >= counts.get(kind, 0):
        available = ", ".join(kind for kind, count in counts.items() if count)
        raise UsageError(f"Device '{name}' is not available here, only: {available}.")
    return torch.device(name)


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 while this is open; weights stay in float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
