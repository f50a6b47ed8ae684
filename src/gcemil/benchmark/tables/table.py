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
class _TableSpec:
    """How a table is made, the paper's label of it, and the command that adds what it misses."""

    build: Build
    label: str
    remedy: str
    reason: str = "no run of the results has them"
    """Why cells may be missing."""


def diagnose_command(name: str) -> str:
    """The command that adds a diagnostic."""
    return f"gcemil diagnose RUN --against HOST_RUN --only {name}"


def _benchmark_command(grid: str) -> str:
    return f"gcemil benchmark grids/{grid}.yaml --out RESULTS"


NO_TEST = (
    "a test needs the predictions of +GCE and of its host on the dataset, one over folds two folds or more"
)
TABLES: dict[str, _TableSpec] = {
    "classification": _TableSpec(
        prediction.classification_table, "tab:cls_main", _benchmark_command("paper")
    ),
    "survival": _TableSpec(prediction.survival_table, "tab:surv_main", _benchmark_command("paper")),
    "components": _TableSpec(ablation.components_table, "tab:ablation", _benchmark_command("component")),
    "intervention": _TableSpec(evidence.intervention_table, "tab:causal", diagnose_command("budget")),
    "same_budget_short": _TableSpec(
        evidence.same_budget_short_table, "tab:same_budget_main", diagnose_command("budget")
    ),
    "same_budget": _TableSpec(evidence.same_budget_table, "tab:same_budget", diagnose_command("budget")),
    "definitions": _TableSpec(overview.definitions_table, "tab:metric_defs", ""),
    "diagnostics_bracs": _TableSpec(
        evidence.diagnostics_bracs_table, "tab:diagnostics_bracs", diagnose_command("snr")
    ),
    "diagnostics": _TableSpec(evidence.diagnostics_table, "tab:diagnostics", diagnose_command("snr")),
    "stability": _TableSpec(
        evidence.stability_table,
        "tab:stability",
        "gcemil diagnose RUN RUN_OF_OTHER_SEED --against HOST_RUN --only stability",
        "stability needs runs of two seeds",
    ),
    "posthoc": _TableSpec(
        evidence.posthoc_table,
        "tab:explain",
        diagnose_command("posthoc"),
        "not every rule can explain every host, and the diagnostic is not in every grid",
    ),
    "minimal_subsets": _TableSpec(
        evidence.minimal_subsets_table, "tab:minimal_subset_main", diagnose_command("subsets")
    ),
    "localisation": _TableSpec(
        evidence.localisation_table, "tab:camelyon_localization", _benchmark_command("localisation")
    ),
    "significance_classification": _TableSpec(
        prediction.significance_classification_table,
        "tab:cls_significance",
        _benchmark_command("paper"),
        NO_TEST,
    ),
    "significance_survival": _TableSpec(
        prediction.significance_survival_table,
        "tab:surv_significance",
        _benchmark_command("paper"),
        NO_TEST,
    ),
    "budget": _TableSpec(ablation.budget_table, "tab:budget", _benchmark_command("budget_sweep")),
    "selector": _TableSpec(ablation.selector_table, "tab:selector_arch", _benchmark_command("selector")),
    "grounding": _TableSpec(ablation.grounding_table, "tab:grounding", _benchmark_command("grounding")),
    "encoders": _TableSpec(
        prediction.encoders_table,
        "tab:backbone_generalization",
        _benchmark_command("paper_small_encoder"),
        "no cohort of the results was made with these encoders; the weights of UNI are gated",
    ),
    "failure_audit": _TableSpec(evidence.failure_audit_table, "tab:failure", diagnose_command("failures")),
    "anchor_protocol": _TableSpec(overview.protocol_table, "tab:anchor_protocol", ""),
    "capacity": _TableSpec(
        ablation.capacity_table,
        "tab:capacity_overhead",
        diagnose_command("cost"),
        "the results have no cost diagnostic, or no grounding variants",
    ),
    "cost": _TableSpec(
        ablation.cost_table,
        "tab:cost",
        f"gcemil prefilter RUN SLIDES --measure, then {_benchmark_command('paper_small_cost')}",
        "encoding and the prefilter are timed on slides, which simulated features do not have",
    ),
    "dataset_card": _TableSpec(overview.dataset_table, "tab:dataset_details", _benchmark_command("paper")),
}


def build_table(name: str, measured: MeasuredResults, paper: PaperFigures) -> Table:
    """A table by name, with the remedy for what it misses."""
    if name not in TABLES:
        raise UsageError(f"Unknown table '{name}'. Choose one of: headline, {', '.join(TABLES)}.")
    spec = TABLES[name]
    return replace(spec.build(measured, paper), remedy=spec.remedy, reason=spec.reason)
