"""Every table of the paper by name. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable

from gcemil.benchmark.results import MeasuredResults
from gcemil.benchmark.tables import ablation, evidence, overview, prediction
from gcemil.benchmark.tables.comparison import PaperFigures
from gcemil.tables import Table

TABLES: dict[str, Callable[[MeasuredResults, PaperFigures], Table]] = {
    "classification": prediction.classification_table,
    "survival": prediction.survival_table,
    "components": ablation.components_table,
    "intervention": evidence.intervention_table,
    "same_budget_short": evidence.same_budget_short_table,
    "same_budget": evidence.same_budget_table,
    "definitions": overview.definitions_table,
    "diagnostics_bracs": evidence.diagnostics_bracs_table,
    "diagnostics": evidence.diagnostics_table,
    "stability": evidence.stability_table,
    "posthoc": evidence.posthoc_table,
    "minimal_subsets": evidence.minimal_subsets_table,
    "localisation": evidence.localisation_table,
    "significance_classification": prediction.significance_classification_table,
    "significance_survival": prediction.significance_survival_table,
    "budget": ablation.budget_table,
    "selector": ablation.selector_table,
    "grounding": ablation.grounding_table,
    "encoders": prediction.encoders_table,
    "failure_audit": evidence.failure_audit_table,
    "anchor_protocol": overview.protocol_table,
    "capacity": ablation.capacity_table,
    "cost": ablation.cost_table,
    "dataset_card": overview.dataset_table,
}
