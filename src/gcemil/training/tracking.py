"""Epoch records as TensorBoard curves, where the `tracking` extra is installed; history.jsonl is always written."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """Writes numbers of an epoch under their own names; without TensorBoard it does nothing."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def add(self, record: Mapping[str, Any], step: int) -> None:
        if self._writer is None:
            return
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        for name, value in {**numbers, **{f"terms/{k}": v for k, v in record["terms"].items()}}.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
