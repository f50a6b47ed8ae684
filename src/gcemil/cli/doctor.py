"""gcemil doctor: what is installed, what is missing, and the command that adds it."""

from __future__ import annotations

import importlib.util
import platform

import typer

from gcemil.cli.console import print_json, print_table
from gcemil.cli.options import JSON

EXTRAS = {
    "wsi": ("openslide", "tifffile"),
    "encoders": ("timm", "efficientnet_lite_pytorch"),
    "anchors": ("transformers",),
    "cluster": ("ray",),
    "viewer": ("starlette", "uvicorn"),
    "report": ("markupsafe", "matplotlib", "openTSNE"),
    "tables": ("openpyxl",),
    "tracking": ("tensorboard",),
    "docs": ("mkdocs", "mkdocstrings"),
    "wsidata": ("spatialdata",),
    "dev": ("pytest", "ruff", "mypy", "hypothesis"),
}


def doctor(as_json: bool = JSON) -> None:
    """Check this machine: versions, device, optional extras, write access.

    Example: gcemil doctor
    """
    rows = [*_check_core(), *_check_extras(), _check_device(), _check_write_access()]
    if as_json:
        print_json([{"check": check, "status": status, "detail": detail} for check, status, detail in rows])
    else:
        print_table("gcemil doctor", ("check", "status", "detail"), rows)
    raise typer.Exit(1 if any(status == "FAIL" for _, status, _ in rows) else 0)


def _check_core() -> list[tuple[str, str, str]]:
    packages = (
        "gcemil",
        "torch",
        "numpy",
        "h5py",
        "scikit-learn",
        "scipy",
        "entmax",
        "safetensors",
        "pydantic",
    )
    return [
        ("python", "PASS", platform.python_version()),
        *(_check_package(name) for name in packages),
    ]


def _check_package(name: str) -> tuple[str, str, str]:
    # Imported here: it reads e-mail headers, which no other command needs.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return name, "PASS", version(name)
    except PackageNotFoundError:
        return name, "FAIL", "not installed: pip install gcemil"


def _check_extras() -> list[tuple[str, str, str]]:
    rows = []
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if importlib.util.find_spec(name.replace("-", "_")) is None]
        remedy = f"missing {', '.join(missing)}: pip install 'gcemil[{extra}]'"
        rows.append((f"extra {extra}", "WARN" if missing else "PASS", remedy if missing else "installed"))
    return rows


def _check_device() -> tuple[str, str, str]:
    import torch

    if torch.cuda.is_available():
        return "device", "PASS", f"cuda: {torch.cuda.get_device_name(0)}"
    if torch.backends.mps.is_available():
        return "device", "PASS", "mps"
    return "device", "PASS", f"cpu, {torch.get_num_threads()} threads"


def _check_write_access() -> tuple[str, str, str]:
    import tempfile

    try:
        with tempfile.TemporaryDirectory(dir="."):
            return "write access", "PASS", "this folder can be written"
    except OSError as error:
        return (
            "write access",
            "WARN",
            f"this folder cannot be written ({error.strerror}); give --out elsewhere",
        )
