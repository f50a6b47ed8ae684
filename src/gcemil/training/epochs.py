"""Figures of an epoch (loss terms, gradient norms, gates) and warnings about known failures of training.

Warnings are printed and kept in the run. history.jsonl is always written; training/trackers.py sends its numbers elsewhere too.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gcemil.model import Evidence

GATE_BINS = 10


Epoch = Mapping[str, float]
SOLVED_LOSS = 0.1
"""Cross-entropy of a task whose bags are given nine tenths of their class."""
DOMINANT_SHARE = 0.9
MOSTLY = 0.5
SEVERE = 5.0
"""Adam takes steps of the same length whatever the scale of its gradients, so a milder cut of most steps does no harm."""


class LossMeans:
    """Means of the loss terms over an epoch."""

    def __init__(self) -> None:
        # Tensors until the end: reading a number would stop the device at every step.
        self.terms: dict[str, list[Tensor]] = defaultdict(list)
        self.steps = 0
        self.eventless = 0

    def add(self, terms: dict[str, Tensor]) -> None:
        """Count the terms of one step."""
        self.steps += 1
        for name, term in terms.items():
            self.terms[name].append(term.detach())

    def means(self) -> dict[str, float]:
        """The mean of every term."""
        return {
            name: float(torch.stack(found).double().sum()) / max(1, self.steps)
            for name, found in self.terms.items()
        }


class GradientNorms:
    """How large the gradients of an epoch were before they were clipped, host and wrapper apart."""

    def __init__(self) -> None:
        self.norms: dict[str, list[Tensor]] = defaultdict(list)
        self.largest = math.inf

    def add(self, norms: Mapping[str, Tensor], largest: float | None) -> None:
        """Count the norms of one step; `largest` is where they are clipped."""
        self.largest = math.inf if largest is None else largest
        for name, norm in norms.items():
            self.norms[name].append(norm.detach())

    def summary(self) -> dict[str, float]:
        """Median norm, and the shares of steps that were clipped at all and to less than a fifth."""
        found = {}
        for name, norms in self.norms.items():
            values = torch.stack(norms).float()
            found[f"{name}_gradient"] = float(values.median())
            found[f"{name}_clipped"] = float((values > self.largest).float().mean())
            found[f"{name}_severely_clipped"] = float(
                (values > SEVERE * self.largest).float().mean()
            )
        return found


class GateStatistics:
    """What the gates of an epoch looked like."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        """Of each bag: mean gate, share open, whether none is, largest gate, least coverage; then the histogram."""

    def add(self, outputs: Sequence[Evidence]) -> None:
        """Count the gates of a window of bags."""
        for output in outputs:
            gates = output.gates.detach().float()
            opened = output.opened.float()
            numbers = [gates.mean(), opened.mean(), 1 - opened.amax(), gates.amax(), output.coverage.detach().float().amin()]  # fmt: skip
            self.rows.append(
                torch.cat([torch.stack(numbers), torch.histc(gates, GATE_BINS, 0, 1) / len(gates)])
            )

    def summary(self) -> dict[str, Any]:
        """Means over the bags, the largest gate and the least coverage; nothing where no bag was gated."""
        if not self.rows:
            return {}
        table = torch.stack(self.rows).double().cpu().numpy()
        mean, opened, empty = table[:, :3].mean(axis=0).tolist()
        return {
            "mean_gate": mean,
            "evidence_fraction": opened,
            "empty_subsets": empty,
            "max_gate": float(table[:, 3].max()),
            "min_coverage": float(table[:, 4].min()),
            "gate_histogram": table[:, 5:].mean(axis=0).round(5).tolist(),
        }


def merge_warnings(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the epochs warned of, each kind once: the last wording, and in how many epochs."""
    kinds: dict[str, list[str]] = {}
    for record in history:
        for text in record["warnings"]:
            kinds.setdefault(warning_kind(text), []).append(text)
    return sorted(
        texts[-1] if len(texts) == 1 else f"{texts[-1]} (in {len(texts)} epochs)"
        for texts in kinds.values()
    )


def warning_kind(text: str) -> str:
    """The same sentence with other numbers is the same warning."""
    return re.sub(r"\d[\d.e+-]*", "#", text)


def find_failures(epoch: Epoch, terms: Mapping[str, float], *, competes: bool = True) -> list[str]:
    """What is wrong with this epoch, in sentences; nothing when it looks healthy.

    Terms compete where they train the same weights: those of the evidence and of a host that is left alone do not.
    """
    found = []
    if epoch.get("eventless_windows", 0) > 0:
        found.append(
            f"{epoch['eventless_windows']:.0f} windows had no event and taught nothing: raise the window size."
        )
    for part in ("host", "wrapper"):
        if (share := epoch.get(f"{part}_severely_clipped", 0)) > MOSTLY:
            found.append(
                f"the gradient of the {part} was cut to less than a fifth in {share:.0%} of the steps "
                f"(median norm {epoch[f'{part}_gradient']:.3g}): lower the learning rate, or raise 'clip'."
            )
    if "mean_gate" in epoch:
        found += _gate_failures(epoch)
    total = sum(abs(value) for value in terms.values())
    task = sum(abs(value) for name, value in terms.items() if name.startswith("task"))
    # A task that is solved has no loss left, and whatever remains is then most of nothing.
    for name, value in terms.items() if competes and task >= SOLVED_LOSS else ():
        if (
            len(terms) > 2
            and not name.startswith("task")
            and abs(value) > DOMINANT_SHARE * total > 0
        ):
            found.append(
                f"the term '{name}' is {abs(value) / total:.0%} of the loss: lower its weight."
            )
    return found


def _gate_failures(epoch: Epoch) -> list[str]:
    found = []
    if epoch["mean_gate"] > 0.9:
        found.append(
            f"gates are all open (mean {epoch['mean_gate']:.2f}): the evidence is the whole bag."
        )
    if epoch["max_gate"] < 0.5:
        found.append(
            f"gates are all closed (largest {epoch['max_gate']:.2f}): recovery falls back to one patch."
        )
    elif epoch["empty_subsets"] > 0:
        found.append(f"{epoch['empty_subsets']:.0%} of the bags open no patch at all.")
    if epoch["min_coverage"] > 0.999:
        found.append(
            "every anchor is covered on every bag: coverage is saturated and carries no gradient."
        )
    return found
