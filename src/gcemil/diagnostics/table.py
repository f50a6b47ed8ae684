"""Every diagnostic by name: the function that measures a fold, and the question it answers. No torch, so that a page can ask it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from gcemil.findings import Finding


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
    "budget": DiagnosticSpec(
        "budget:measure_budget", "Which rule finds the best patches, all having the same number?"
    ),
    "posthoc": DiagnosticSpec("posthoc:measure_posthoc", "Do explanations made after training do as well?"),
    "subsets": DiagnosticSpec(
        "subsets:measure_subsets", "How many disjoint subsets would be evidence enough?"
    ),
    "regions": DiagnosticSpec(
        "regions:measure_regions", "Which connected regions are enough, which are needed?"
    ),
    "stability": DiagnosticSpec(
        "stability:measure_stability", "Does the evidence stay when bag or seed change a little?"
    ),
    "localisation": DiagnosticSpec(
        "localisation:measure_localisation", "Does it lie on the annotated lesions?"
    ),
    "failures": DiagnosticSpec("failures:measure_failures", "Which slides fail, and how?"),
    "cost": DiagnosticSpec(
        "cost:measure_inference_cost", "What does the evidence cost, and what does it save?"
    ),
    "guarantee": DiagnosticSpec(
        "guarantee:measure_guarantee", "Which evidence size keeps the prediction, with which promise?"
    ),
    "adaptive": DiagnosticSpec(
        "adaptive:measure_adaptive", "How few patches does a slide need, and which rule picks them best?"
    ),
    "bounds": DiagnosticSpec(
        "bounds:measure_bounds", "How near is repair to the best coverage, and what is promised of it?"
    ),
    "sweep": DiagnosticSpec("sweep:measure_sweep", "How do threshold and coverage target move the result?"),
}
"""Diagnostics of one fold. `significance` compares two runs over their folds and is made beside them."""
SIGNIFICANCE = "significance"
QUESTIONS = {name: one.question for name, one in DIAGNOSTICS.items()} | {
    SIGNIFICANCE: "Is the run better than the plain host, and how surely?"
}
"""What every diagnostic answers, in the words of `gcemil diagnose` and of the report."""
