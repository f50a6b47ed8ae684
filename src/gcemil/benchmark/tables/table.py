"""Every table of the paper by name. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gcemil.benchmark.figures import MeasuredResults, PaperFigures
from gcemil.benchmark.tables import ablation, evidence, overview, prediction
from gcemil.errors import UsageError
from gcemil.tables import Table

Build = Callable[[MeasuredResults, PaperFigures], Table]


@dataclass(frozen=True)
class TableSpec:
    """How a table is made, the paper's label of it, and the command that adds what it misses."""

    build: Build
    label: str
    remedy: str
    reason: str = "no run of the results has them"
    """Why cells may be missing."""


def diagnose_command(name: str) -> str:
    return f"gcemil diagnose RUN --against HOST_RUN --only {name}"


def benchmark_command(grid: str) -> str:
    return f"gcemil benchmark grids/{grid}.yaml --out RESULTS"


TABLES: dict[str, TableSpec] = {
    "classification": TableSpec(prediction.classification_table, "tab:cls_main", benchmark_command("paper")),
    "survival": TableSpec(prediction.survival_table, "tab:surv_main", benchmark_command("paper")),
    "components": TableSpec(ablation.components_table, "tab:ablation", benchmark_command("component")),
    "intervention": TableSpec(evidence.intervention_table, "tab:causal", diagnose_command("budget")),
    "same_budget_short": TableSpec(
        evidence.same_budget_short_table, "tab:same_budget_main", diagnose_command("budget")
    ),
    "same_budget": TableSpec(evidence.same_budget_table, "tab:same_budget", diagnose_command("budget")),
    "definitions": TableSpec(overview.definitions_table, "tab:metric_defs", ""),
    "diagnostics_bracs": TableSpec(
        evidence.diagnostics_bracs_table, "tab:diagnostics_bracs", diagnose_command("snr")
    ),
    "diagnostics": TableSpec(evidence.diagnostics_table, "tab:diagnostics", diagnose_command("snr")),
    "stability": TableSpec(
        evidence.stability_table,
        "tab:stability",
        "gcemil diagnose RUN RUN_OF_OTHER_SEED --against HOST_RUN --only stability",
        "stability needs runs of two seeds",
    ),
    "posthoc": TableSpec(
        evidence.posthoc_table,
        "tab:explain",
        diagnose_command("posthoc"),
        "not every rule can explain every host, and the diagnostic is not in every grid",
    ),
    "minimal_subsets": TableSpec(
        evidence.minimal_subsets_table, "tab:minimal_subset_main", diagnose_command("subsets")
    ),
    "localisation": TableSpec(
        evidence.localisation_table, "tab:camelyon_localization", benchmark_command("localisation")
    ),
    "significance_classification": TableSpec(
        prediction.significance_classification_table,
        "tab:cls_significance",
        benchmark_command("paper"),
        "a paired test needs two folds or more of the host on the dataset",
    ),
    "significance_survival": TableSpec(
        prediction.significance_survival_table,
        "tab:surv_significance",
        benchmark_command("paper"),
        "a paired test needs two folds or more of the host on the dataset",
    ),
    "budget": TableSpec(ablation.budget_table, "tab:budget", benchmark_command("budget_sweep")),
    "selector": TableSpec(ablation.selector_table, "tab:selector_arch", benchmark_command("selector")),
    "grounding": TableSpec(ablation.grounding_table, "tab:grounding", benchmark_command("grounding")),
    "encoders": TableSpec(
        prediction.encoders_table,
        "tab:backbone_generalization",
        benchmark_command("paper_small_encoder"),
        "no cohort of the results was made with these encoders; the weights of UNI are gated",
    ),
    "failure_audit": TableSpec(evidence.failure_audit_table, "tab:failure", diagnose_command("failures")),
    "anchor_protocol": TableSpec(overview.protocol_table, "tab:anchor_protocol", ""),
    "capacity": TableSpec(
        ablation.capacity_table,
        "tab:capacity_overhead",
        diagnose_command("cost"),
        "the results have no cost diagnostic, or no grounding variants",
    ),
    "cost": TableSpec(
        ablation.cost_table,
        "tab:cost",
        f"gcemil prefilter RUN SLIDES --measure, then {benchmark_command('paper_small_cost')}",
        "encoding and the prefilter are timed on slides, which simulated features do not have",
    ),
    "dataset_card": TableSpec(overview.dataset_table, "tab:dataset_details", benchmark_command("paper")),
}


def build_table(name: str, measured: MeasuredResults, paper: PaperFigures) -> Table:
    """A table by name, with the remedy for what it misses."""
    if name not in TABLES:
        raise UsageError(f"Unknown table '{name}'. Choose one of: headline, {', '.join(TABLES)}.")
    spec = TABLES[name]
    return replace(spec.build(measured, paper), remedy=spec.remedy, reason=spec.reason)
