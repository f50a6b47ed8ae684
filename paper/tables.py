"""Every table of the paper by name. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gcemil.tables import Table
from paper import ablation, evidence, overview, prediction
from paper.comparison import PaperFigures
from paper.measured import Measured

TABLES: dict[str, Callable[[Measured, PaperFigures], Table]] = {
    "classification": partial(prediction.prediction_table, task="classification"),
    "survival": partial(prediction.prediction_table, task="survival"),
    "components": partial(ablation.ablation_table, name="components"),
    "intervention": evidence.intervention_table,
    "same_budget_short": partial(evidence.rules_at_budget_table, name="same_budget_short"),
    "same_budget": partial(evidence.rules_at_budget_table, name="same_budget"),
    "definitions": overview.definitions_table,
    "diagnostics_bracs": evidence.diagnostics_bracs_table,
    "diagnostics": evidence.diagnostics_table,
    "stability": evidence.stability_table,
    "posthoc": evidence.posthoc_table,
    "minimal_subsets": evidence.minimal_subsets_table,
    "localisation": evidence.localisation_table,
    "significance_classification": partial(prediction.significance_table, task="classification"),
    "significance_survival": partial(prediction.significance_table, task="survival"),
    "budget": partial(ablation.ablation_table, name="budget"),
    "selector": partial(ablation.ablation_table, name="selector"),
    "grounding": partial(ablation.ablation_table, name="grounding"),
    "encoders": prediction.encoders_table,
    "failure_audit": evidence.failure_audit_table,
    "anchor_protocol": overview.protocol_table,
    "capacity": ablation.capacity_table,
    "cost": ablation.cost_table,
    "dataset_card": overview.dataset_table,
}
