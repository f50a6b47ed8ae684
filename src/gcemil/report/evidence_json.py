"""The selected patches of one slide as JSON, for scripts that do not read HDF5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Real

from gcemil.report.geojson import BLOCK, constant_text, json_text, number_column, numbers


@dataclass(frozen=True, eq=False)
class EvidenceList:
    """Everything the file says; the patches become values or text a block at a time."""

    head: dict[str, Any]
    patches: Int[np.ndarray, "k"]
    coords: Int[np.ndarray, "k 2"] | None
    measurements: Mapping[str, Real[np.ndarray, "k"]]

    def to_json(self) -> dict[str, Any]:
        columns = {name: numbers(values) for name, values in {**self._places(), **self.measurements}.items()}
        entries = zip(*columns.values(), strict=True)
        return {**self.head, "patches": [dict(zip(columns, entry, strict=True)) for entry in entries]}

    def blocks(self) -> Iterator[str]:
        """The file in parts, one patch per line."""
        yield json_text(self.head)[:-1] + ',"patches":['
        for start in range(0, len(self.patches), BLOCK):
            lines = self._lines(slice(start, start + BLOCK))
            yield (",\n" if start else "\n") + ",\n".join(lines)
        yield "\n]}\n"

    def _lines(self, rows: slice) -> Iterator[str]:
        """The entries as text by one template: a third of the time that making values and encoding them takes."""
        columns = {
            name: number_column(values[rows])
            for name, values in {**self._places(), **self.measurements}.items()
        }
        places = (f"{constant_text(name)}:{place}" for name, (place, _) in columns.items())
        template = "{" + ",".join(places) + "}"
        return map(template.__mod__, zip(*(values for _, values in columns.values()), strict=True))

    def _places(self) -> dict[str, Int[np.ndarray, "k"]]:
        if self.coords is None:
            return {"index": self.patches}
        return {"index": self.patches, "x": self.coords[:, 0], "y": self.coords[:, 1]}


def evidence_list(
    slide_id: str,
    selected: Bool[np.ndarray, "n"],
    coords: Int[np.ndarray, "n 2"] | None,
    *,
    rule: str,
    patch_size: int | None,
    measurements: Mapping[str, Real[np.ndarray, "n"]],
    stop_reason: str | None,
    hashes: Mapping[str, str],
) -> EvidenceList:
    """One entry per selected patch; positions are top-left corners in level-0 pixels of the feature file."""
    return EvidenceList(
        head={
            "slide_id": slide_id,
            "rule": rule,
            "n_patches": len(selected),
            "fraction": float(selected.mean()),
            "patch_size_level0": patch_size,
            "stop_reason": stop_reason,
            "hashes": dict(hashes),
        },
        patches=np.flatnonzero(selected),
        coords=None if coords is None else coords[selected],
        measurements={name: values[selected] for name, values in measurements.items()},
    )
