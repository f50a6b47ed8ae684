"""What an epoch looked like: means of the loss terms, and the gates of its bags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcemil.model import EvidenceOutput

GATE_BINS = 10


class LossMeans:
    """Means of the loss terms over an epoch."""

    def __init__(self) -> None:
        self.total: dict[str, float] = defaultdict(float)
        self.steps = 0
        self.eventless = 0

    def add(self, terms: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, term in terms.items():
            self.total[name] += float(term.detach())

    def means(self) -> dict[str, float]:
        return {name: value / max(1, self.steps) for name, value in self.total.items()}


class GateStatistics:
    """What the gates of an epoch looked like."""

    def __init__(self) -> None:
        self.bags = 0
        self.mean = self.opened = self.empty = 0.0
        self.largest = 0.0
        self.coverage = 1.0
        self.histogram = np.zeros(GATE_BINS)

    def add(self, outputs: Sequence[EvidenceOutput]) -> None:
        for output in outputs:
            gates = output.gates.detach().float()
            self.bags += 1
            self.mean += float(gates.mean())
            self.opened += float(output.opened.float().mean())
            self.empty += float(not bool(output.opened.any()))
            self.largest = max(self.largest, float(gates.max()))
            self.coverage = min(self.coverage, float(output.coverage.detach().min()))
            self.histogram += torch.histc(gates, GATE_BINS, 0, 1).cpu().numpy() / len(gates)

    def summary(self) -> dict[str, Any]:
        if self.bags == 0:
            return {}
        return {
            "mean_gate": self.mean / self.bags,
            "evidence_fraction": self.opened / self.bags,
            "empty_subsets": self.empty / self.bags,
            "max_gate": self.largest,
            "min_coverage": self.coverage,
            "gate_histogram": (self.histogram / self.bags).round(5).tolist(),
        }
