"""Where networks compute, in which numbers, and what else a result depended on."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gcemil import __version__
from gcemil.config import Precision
from gcemil.errors import UsageError

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "h5py", "entmax", "safetensors")


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


def describe_environment(
    *, seed: int, device: torch.device, inputs: dict[str, str]
) -> dict[str, Any]:
    """Everything a reader needs to see why two runs differ."""
    return {
        "gcemil": __version__,
        "commit": _source_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "device": str(device),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "inputs": inputs,
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that the same command gives the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def package_version(name: str) -> str | None:
    """The version of an installed package; None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _source_commit() -> str | None:
    """The commit of a source checkout; None for an installed package."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    result = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or None
