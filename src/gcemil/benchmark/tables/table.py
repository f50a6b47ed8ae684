"""Every table of the paper by name. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gcemil.benchmark.measured import MeasuredResults
from gcemil.benchmark.paper_figures import PaperFigures
from gcemil.benchmark.tables import ablation, cost, dataset_card, evidence, prediction
from gcemil.errors import UsageError
from gcemil.tables import Table

Build = Callable[[MeasuredResults, PaperFigures], Table]


@dataclass(frozen=True)
class TableSpec:
    """How a table is made, the paper's label of it, and the command that adds what it misses."""

    build: Build
    label: str
    remedy: str


def diagnose_command(name: str) -> str:
    return f"gcemil diagnose RUN --against HOST_RUN --only {name}"


def benchmark_command(grid: str) -> str:
    return f"gcemil benchmark grids/{grid}.yaml --out RESULTS"


TABLES: dict[str, TableSpec] = {
    "classification": TableSpec(prediction.classification, "tab:cls_main", benchmark_command("paper")),
    "survival": TableSpec(prediction.survival, "tab:surv_main", benchmark_command("paper")),
    "components": TableSpec(ablation.components, "tab:ablation", benchmark_command("component")),
    "intervention": TableSpec(evidence.intervention, "tab:causal", diagnose_command("budget")),
    "same_budget_short": TableSpec(
        evidence.same_budget_short, "tab:same_budget_main", diagnose_command("budget")
    ),
    "same_budget": TableSpec(evidence.same_budget, "tab:same_budget", diagnose_command("budget")),
    "diagnostics_bracs": TableSpec(
        evidence.diagnostics_bracs, "tab:diagnostics_bracs", diagnose_command("snr")
    ),
    "diagnostics": TableSpec(evidence.diagnostics, "tab:diagnostics", diagnose_command("snr")),
    "stability": TableSpec(
        evidence.stability,
        "tab:stability",
        "gcemil diagnose RUN RUN_OF_OTHER_SEED --against HOST_RUN --only stability",
    ),
    "posthoc": TableSpec(evidence.posthoc, "tab:explain", diagnose_command("posthoc")),
    "minimal_subsets": TableSpec(
        evidence.minimal_subsets, "tab:minimal_subset_main", diagnose_command("subsets")
    ),
    "localisation": TableSpec(
        evidence.localisation, "tab:camelyon_localization", benchmark_command("localisation")
    ),
    "significance_classification": TableSpec(
        prediction.significance_classification, "tab:cls_significance", benchmark_command("paper")
    ),
    "significance_survival": TableSpec(
        prediction.significance_survival, "tab:surv_significance", benchmark_command("paper")
    ),
    "budget": TableSpec(ablation.budget, "tab:budget", benchmark_command("budget_sweep")),
    "selector": TableSpec(ablation.selector, "tab:selector_arch", benchmark_command("selector")),
    "grounding": TableSpec(ablation.grounding, "tab:grounding", benchmark_command("grounding")),
    "encoders": TableSpec(prediction.encoders, "tab:backbone_generalization", benchmark_command("encoder")),
    "failure_audit": TableSpec(evidence.failure_audit, "tab:failure", diagnose_command("failures")),
    "capacity": TableSpec(cost.capacity, "tab:capacity_overhead", diagnose_command("cost")),
    "cost": TableSpec(
        cost.cost, "tab:cost", f"gcemil prefilter RUN SLIDES --measure, then {diagnose_command('cost')}"
    ),
    "dataset_card": TableSpec(dataset_card.dataset_card, "tab:dataset_details", benchmark_command("paper")),
}


def build_table(name: str, measured: MeasuredResults, paper: PaperFigures) -> Table:
    """A table by name, with the remedy for what it misses."""
    if name not in TABLES:
        raise UsageError(f"Unknown table '{name}'. Choose one of: headline, {', '.join(TABLES)}.")
    return replace(TABLES[name].build(measured, paper), remedy=TABLES[name].remedy)
