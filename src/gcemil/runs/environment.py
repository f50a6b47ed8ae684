"""What a result depended on besides its settings: versions, machine, commit, inputs."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gcemil import __version__

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "h5py", "entmax", "safetensors")


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
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return None
    result = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or None
