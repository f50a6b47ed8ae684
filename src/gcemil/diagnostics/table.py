"""Every diagnostic by name, and the one way to make it: open the fold, measure, write the finding with its origin."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.bench import TrainedFold
from gcemil.errors import UsageError
from gcemil.findings import Finding, write_finding
from gcemil.runs.environment import describe_environment, one_thread
from gcemil.runs.folder import read_run


@dataclass(frozen=True)
class DiagnosticSpec:
    """Where a diagnostic lives and the question it answers."""

    function: str
    """module:function; the module is imported when the diagnostic is made."""
    question: str

    def load(self) -> Callable[..., Finding]:
        """The function that measures a fold."""
        module, name = self.function.split(":")
        found: Callable[..., Finding] = getattr(import_module(f"gcemil.diagnostics.{module}"), name)
        return found

    def options(self) -> list[str]:
        """What a caller may set, beside the fold."""
        return [name for name in list(inspect.signature(self.load()).parameters)[1:] if name != "others"]


DIAGNOSTICS: dict[str, DiagnosticSpec] = {
    "snr": DiagnosticSpec("snr_report:measure_snr", "Is the evidence sufficient, necessary and recoverable?"),
    "budget": DiagnosticSpec("budget:measure_budget", "Which rule finds the best patches, all having the same number?"),
    "posthoc": DiagnosticSpec("posthoc:measure_posthoc", "Do explanations made after training do as well?"),
    "subsets": DiagnosticSpec("subsets:measure_subsets", "How many disjoint subsets would be evidence enough?"),
    "stability": DiagnosticSpec("stability:measure_stability", "Does the evidence stay when bag or seed change a little?"),
    "localisation": DiagnosticSpec("localisation:measure_localisation", "Does it lie on the annotated lesions?"),
    "failures": DiagnosticSpec("failures:measure_failures", "Which slides fail, and how?"),
    "cost": DiagnosticSpec("cost:measure_inference_cost", "What does the evidence cost, and what does it save?"),
    "guarantee": DiagnosticSpec("guarantee:measure_guarantee", "Which evidence size keeps the prediction, with which promise?"),
    "adaptive": DiagnosticSpec(
        "adaptive:measure_adaptive", "How few patches does a slide need, and which rule picks them best?"
    ),
    "sweep": DiagnosticSpec("sweep:measure_sweep", "How do threshold and coverage target move the result?"),
}
"""Diagnostics of one fold. `significance` compares two runs over their folds and is made beside them."""


def run_diagnostic(
    name: str,
    run: Path,
    fold: int,
    *,
    against: Path | None = None,
    others: Sequence[Path] = (),
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Measure one diagnostic of one fold and write it; `others` are runs of other seeds, for stability."""
    if name not in DIAGNOSTICS:
        raise UsageError(f"Unknown diagnostic '{name}'. Choose from: {', '.join(DIAGNOSTICS)}.")
    with one_thread():
        bench = TrainedFold.open(run, fold, against=against, seed=seed)
        extra = (
            {"others": [TrainedFold.open(o, fold, seed=seed) for o in others]} if name == "stability" else {}
        )
        finding = DIAGNOSTICS[name].load()(bench, **extra, **(options or {}))
    finding = replace(finding, provenance=describe_origin(run, fold, against, others, seed))
    return write_finding(run / f"fold_{fold}" / "diagnostics", finding)


def describe_origin(
    run: Path, fold: int, against: Path | None, others: Sequence[Path], seed: int
) -> dict[str, Any]:
    """Versions, seed, and the fingerprints of every network a finding depends on."""
    networks = {"run": run, **({"against": against} if against else {})}
    networks |= {f"other_{number}": path for number, path in enumerate(others)}
    inputs = {
        name: content_hash(path / f"fold_{fold}" / "checkpoint.safetensors")
        for name, path in networks.items()
    }
    device = torch.device("cpu")
    return {
        **describe_environment(seed=seed, device=device, inputs=inputs),
        "fold": fold,
        "settings_hash": read_run(run).settings.hash,
    }
