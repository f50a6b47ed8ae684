"""Which tool wrote a features folder, from its folder names and its first file."""

from __future__ import annotations

import re
from pathlib import Path

from gcemil.bags import store
from gcemil.bags.foreign.source import Tool

TRIDENT_RUN = re.compile(r"[\d.]+x_\d+px_\d+px_overlap$")
TRIDENT_ATTRIBUTES = frozenset({"patch_size_level0", "target_magnification", "level0_magnification"})


def tool_of(folder: Path) -> Tool | None:
    """The tool that wrote this features folder, or None."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if TRIDENT_RUN.search(folder.name) or any(TRIDENT_RUN.search(name) for name in names):
        return "trident"
    if names & {"h5_files", "pt_files"}:
        return "clam"
    if _is_torchmil(folder, names):
        return "torchmil"
    if first := first_h5(folder):
        return tool_of_file(first)
    if "bags_config.json" not in names and any(name.endswith(".pt") for name in names):
        return "clam"
    return None


def tool_of_file(path: Path) -> Tool | None:
    """The tool that wrote this HDF5 feature file; a plain features and coords file is CLAM's, and ours."""
    datasets = store.describe(path)
    if "feats" in datasets or "patch_embeddings" in datasets:
        return "stamp"
    if "features" not in datasets:
        return None
    attributes = store.attributes(path, "coords") if "coords" in datasets else {}
    return "trident" if TRIDENT_ATTRIBUTES & set(attributes) else "clam"


def first_h5(folder: Path) -> Path | None:
    """The first HDF5 file of a folder, or below it."""
    return min(folder.glob("*.h5"), default=None) or min(folder.rglob("*.h5"), default=None)


def _is_torchmil(folder: Path, names: set[str]) -> bool:
    if any(re.match(r"patches_\d+$", name) for name in names) or any(name.endswith(".npy") for name in names):
        return True
    return "features" in names and bool(names & {"labels", "inst_labels", "patch_labels", "coords"})
