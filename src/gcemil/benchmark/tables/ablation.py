"""One thing changed at a time: components, budget, selector, grounding. The rows are the variants of the grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gcemil.benchmark.measured import MeasuredResults
from gcemil.benchmark.paper_figures import PaperFigures, PaperTable
from gcemil.benchmark.tables.comparison import Query, TableColumn, TableRow, build_comparison
from gcemil.benchmark.tables.evidence import EVIDENCE
from gcemil.tables import Column, Table

HEADERS = {
    "task_metric": "Macro-F1 or C-index",
    "macro_f1": "Macro-F1",
    "evidence_fraction": "Evid. frac.",
    "cd_gap": "C-D gap",
    "complement_degradation": "Compl. degr.",
    "evidence_sufficiency": "Evid. suff.",
}
MEAN_NOTE = (
    "Ours are means over the hosts and cohorts that have a variant; Macro-F1 is that of the soft prediction."
)

COMPONENTS = {
    "naive": "naive_selector",
    "budget": "budget_control",
    "recovery": "discrete_recovery",
    "grounding": "semantic_grounding",
    "full": "gce",
}
BUDGETS = {key: f"budget_{key}" for key in ("0.01", "0.02", "0.05", "0.10", "0.20", "1.00")}
SELECTORS = {
    key: f"selector_{key}"
    for key in ("sigmoid_threshold", "top_k", "gumbel_sigmoid", "concrete", "sparsemax", "entmax15", "consecutive")
}  # fmt: skip
GROUNDINGS = {
    "none": "grounding_none",
    "random": "grounding_random",
    "shuffled": "grounding_shuffled",
    "generic": "grounding_generic",
    "specific": "grounding_specific",
    "free_bridge": "grounding_free_bridge",
    "full": "gce",
}
"""Each: the paper's row, and the variant of our grids that stands for it."""


def components(measured: MeasuredResults, paper: PaperFigures) -> Table:
    table = paper.table("ablation")
    plain = Query(label="host", labels={"mode": "full"}, dataset="bracs")
    only = TableRow("backbone", ("Backbone only",), plain, undefined=frozenset(table.columns) - {"macro_f1"})
    return ablation_table(
        "components", "components added one by one, BRACS", measured, table, COMPONENTS, "bracs", first=[only]
    )


def budget(measured: MeasuredResults, paper: PaperFigures) -> Table:
    table = paper.table("budget")
    return ablation_table("budget", "evidence budget, BRACS", measured, table, BUDGETS, "bracs")


def selector(measured: MeasuredResults, paper: PaperFigures) -> Table:
    table = paper.table("selector_arch")
    return ablation_table("selector", "selector variants, BRACS", measured, table, SELECTORS, "bracs")


def grounding(measured: MeasuredResults, paper: PaperFigures) -> Table:
    table = paper.table("grounding")
    return ablation_table(
        "grounding", "anchors and bridges, mean over cohorts", measured, table, GROUNDINGS, None
    )


def ablation_table(
    name: str,
    title: str,
    measured: MeasuredResults,
    table: PaperTable,
    variants: Mapping[str, str],
    dataset: str | None,
    *,
    first: Sequence[TableRow] = (),
) -> Table:
    """The paper's rows with our variants; the arm `gce` is the full method wherever no variant repeats it."""
    names = {row.key: row.name for row in table.rows}
    measured = comparable(measured, set(variants.values()))
    rows = [
        TableRow(key, (names[key],), Query(label=variant, dataset=dataset))
        for key, variant in variants.items()
    ]
    return build_comparison(
        name, title, measured, table, row_labels=("variant",), rows=[*first, *rows],
        columns=[ablation_column(key) for key in table.columns], notes=(MEAN_NOTE,),
    )  # fmt: skip


def comparable(measured: MeasuredResults, variants: set[str]) -> MeasuredResults:
    """Only hosts and cohorts that have a variant: the full method on other hosts would be another comparison."""
    pairs = {(run.cohort.name, run.host) for run in measured.runs if run.label in variants - {"gce"}}
    runs = tuple(run for run in measured.runs if (run.cohort.name, run.host) in pairs)
    return replace(measured, runs=runs) if runs else measured


def ablation_column(key: str) -> TableColumn:
    """Task metrics come from the prediction, the rest from the S/N/R of the evidence."""
    column = Column(key, HEADERS[key], key)
    if key in ("macro_f1", "task_metric"):
        return TableColumn(column, {"metric": key, "source": "task", "labels": {"mode": "soft"}})
    return TableColumn(column, {"metric": key, "source": EVIDENCE.source, "labels": EVIDENCE.labels})
