"""gcemil doctor: what is installed, what is missing, and the command that adds it."""

from __future__ import annotations

import importlib.util
import os
import platform

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_table

EXTRAS = {
    "wsi": ("openslide", "tifffile"),
    "encoders": ("timm", "efficientnet_lite_pytorch"),
    "anchors": ("transformers",),
    "cluster": ("ray",),
    "viewer": ("starlette", "uvicorn"),
    "report": ("markupsafe", "matplotlib", "openTSNE"),
    "tables": ("openpyxl",),
    "tracking": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "docs": ("mkdocs", "mkdocstrings"),
    "wsidata": ("spatialdata",),
    "dev": ("pytest", "ruff", "mypy", "hypothesis"),
}


CORE = ("torch", "numpy", "h5py", "scikit-learn", "scipy", "entmax", "safetensors", "pydantic")


def doctor(as_json: options.Json = False) -> None:
    """Check this machine: versions, device, optional extras, write access.

    Example: gcemil doctor
    """
    rows = [*_check_core(), *_check_extras(), _check_device(), _check_write_access()]
    if as_json:
        print_json(
            [{"check": check, "status": status, "detail": detail} for check, status, detail in rows]
        )
    else:
        print_table("gcemil doctor", ("check", "status", "detail"), rows)
    raise typer.Exit(1 if any(status == "FAIL" for _, status, _ in rows) else 0)


def _check_core() -> list[tuple[str, str, str]]:
    # Imported here: it reads e-mail headers, which no other command needs.
    from importlib.metadata import PackageNotFoundError, version

    rows = [("python", "PASS", platform.python_version())]
    for name in ("gcemil", *CORE):
        try:
            rows.append((name, "PASS", version(name)))
        except PackageNotFoundError:
            rows.append((name, "FAIL", "not installed: pip install gcemil"))
    return rows


def _check_extras() -> list[tuple[str, str, str]]:
    rows = []
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        remedy = f"missing {', '.join(missing)}: pip install 'gcemil[{extra}]'"
        rows.append(
            (f"extra {extra}", "WARN" if missing else "PASS", remedy if missing else "installed")
        )
    return rows


def _check_device() -> tuple[str, str, str]:
    import torch

    from gcemil.device import pick_device

    device = pick_device("auto").type
    detail = {
        "cuda": torch.cuda.get_device_name,
        "cpu": lambda: f"{torch.get_num_threads()} threads",
    }
    return "device", "PASS", f"{device}, {detail[device]()}" if device in detail else device


def _check_write_access() -> tuple[str, str, str]:
    if os.access(".", os.W_OK):
        return "write access", "PASS", "this folder can be written"
    return "write access", "WARN", "this folder cannot be written; give --out elsewhere"
