"""The selected patches of one slide as JSON, for scripts that do not read HDF5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Real

from gcemil.report.geojson import numbers


def evidence_json(
    slide_id: str,
    selected: Bool[np.ndarray, "n"],
    coords: Int[np.ndarray, "n 2"] | None,
    *,
    rule: str,
    patch_size: int | None,
    measurements: Mapping[str, Real[np.ndarray, "n"]],
    stop_reason: str | None,
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """One entry per selected patch; positions are top-left corners in level-0 pixels of the feature file."""
    patches = []
    columns = {name: numbers(values[selected]) for name, values in measurements.items()}
    for row, patch in enumerate(np.flatnonzero(selected).tolist()):
        entry: dict[str, Any] = {"index": patch}
        if coords is not None:
            entry["x"], entry["y"] = coords[patch].tolist()
        patches.append({**entry, **{name: values[row] for name, values in columns.items()}})
    return {
        "slide_id": slide_id,
        "rule": rule,
        "n_patches": len(selected),
        "fraction": float(selected.mean()),
        "patch_size_level0": patch_size,
        "stop_reason": stop_reason,
        "hashes": dict(hashes),
        "patches": patches,
    }
