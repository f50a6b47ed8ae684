"""Every table of the paper by name. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures
from gcemil.benchmark.tables import (
    ablation,
    capacity,
    cost,
    dataset_card,
    encoders,
    failure_audit,
    host_diagnostics,
    localisation,
    prediction,
    significance,
    stability,
    subset_rules,
    subsets,
)
from gcemil.benchmark.tables.layout import Table
from gcemil.errors import UsageError

Build = Callable[[Measured, PaperFigures], Table]


@dataclass(frozen=True)
class TableSpec:
    """How a table is made, the paper's label of it, and the command that adds what it misses."""

    build: Build
    label: str
    remedy: str


def diagnosed(name: str) -> str:
    return f"gcemil diagnose RUN --against HOST_RUN --only {name}"


def benchmarked(grid: str) -> str:
    return f"gcemil benchmark grids/{grid}.yaml --out RESULTS"


TABLES: dict[str, TableSpec] = {
    "classification": TableSpec(prediction.classification, "tab:cls_main", benchmarked("paper")),
    "survival": TableSpec(prediction.survival, "tab:surv_main", benchmarked("paper")),
    "components": TableSpec(ablation.components, "tab:ablation", benchmarked("component")),
    "intervention": TableSpec(subset_rules.intervention, "tab:causal", diagnosed("budget")),
    "same_budget_short": TableSpec(
        subset_rules.same_budget_short, "tab:same_budget_main", diagnosed("budget")
    ),
    "same_budget": TableSpec(subset_rules.same_budget, "tab:same_budget", diagnosed("budget")),
    "diagnostics_bracs": TableSpec(
        host_diagnostics.diagnostics_bracs, "tab:diagnostics_bracs", diagnosed("snr")
    ),
    "diagnostics": TableSpec(host_diagnostics.diagnostics, "tab:diagnostics", diagnosed("snr")),
    "stability": TableSpec(
        stability.stability,
        "tab:stability",
        "gcemil diagnose RUN RUN_OF_OTHER_SEED --against HOST_RUN --only stability",
    ),
    "posthoc": TableSpec(subset_rules.posthoc, "tab:explain", diagnosed("posthoc")),
    "minimal_subsets": TableSpec(subsets.minimal_subsets, "tab:minimal_subset_main", diagnosed("subsets")),
    "localisation": TableSpec(
        localisation.localisation, "tab:camelyon_localization", benchmarked("localisation")
    ),
    "significance_classification": TableSpec(
        significance.classification, "tab:cls_significance", benchmarked("paper")
    ),
    "significance_survival": TableSpec(significance.survival, "tab:surv_significance", benchmarked("paper")),
    "budget": TableSpec(ablation.budget, "tab:budget", benchmarked("budget_sweep")),
    "selector": TableSpec(ablation.selector, "tab:selector_arch", benchmarked("selector")),
    "grounding": TableSpec(ablation.grounding, "tab:grounding", benchmarked("grounding")),
    "encoders": TableSpec(encoders.encoders, "tab:backbone_generalization", benchmarked("encoder")),
    "failure_audit": TableSpec(failure_audit.failure_audit, "tab:failure", diagnosed("failures")),
    "capacity": TableSpec(capacity.capacity, "tab:capacity_overhead", diagnosed("cost")),
    "cost": TableSpec(
        cost.cost, "tab:cost", f"gcemil prefilter RUN SLIDES --measure, then {diagnosed('cost')}"
    ),
    "dataset_card": TableSpec(dataset_card.dataset_card, "tab:dataset_details", benchmarked("paper")),
}


def built(name: str, measured: Measured, paper: PaperFigures) -> Table:
    """A table by name, with the remedy for what it misses."""
    if name not in TABLES:
        raise UsageError(f"Unknown table '{name}'. Choose one of: headline, {', '.join(TABLES)}.")
    return replace(TABLES[name].build(measured, paper), remedy=TABLES[name].remedy)
