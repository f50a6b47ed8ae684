"""What inference costs relative to one pass of the host over the full bag, and what the wrapper adds."""

from __future__ import annotations

from collections.abc import Sequence

from gcemil.benchmark.measured import MeasuredResults
from gcemil.benchmark.paper_figures import TIMES, PaperFigures
from gcemil.benchmark.tables.ablation import GROUNDINGS, comparable
from gcemil.benchmark.tables.comparison import (
    PAPER_MARK,
    Query,
    TableColumn,
    TableRow,
    build_comparison,
    estimate,
    find_values,
    legend,
    our_origin,
    paper_cell,
)
from gcemil.benchmark.tables.evidence import EVIDENCE
from gcemil.hosts.table import HOSTS
from gcemil.simulation.profile import SIZES
from gcemil.tables import MISSING, Cell, Column, Line, Table

PREFILTER = "prefilter"
MODES = ("full", "soft", "discrete", PREFILTER, "attention", "occlusion")
"""Rows of the paper; the diagnostic calls them the same."""
CLOSED_FORM = "occlusion_closed_form"
TIMES_OF = {
    "extraction_time": "Feature extraction",
    "aggregation_time": "MIL aggregation",
    "end_to_end_time": "End-to-end time",
    "peak_memory": "Peak memory",
    "explained_time": "Aggregation with finding the subset",
}
COST_NOTE = (
    "MIL aggregation of ours is one prediction from a known subset; what finding the subset adds is a column of its own, "
    "which the paper counts under aggregation for occlusion. Encoding and the prefilter are timed by 'gcemil prefilter --measure'."
)


def cost(measured: MeasuredResults, paper: PaperFigures) -> Table:
    table = paper.table("cost")
    names = {row.key: row.name for row in table.rows} | {CLOSED_FORM: "Occlusion in closed form"}
    rows = [
        TableRow(key, (names[key],), Query(source="cost", labels={"mode": key}), comparison=None)
        for key in (*MODES, CLOSED_FORM)
    ]
    columns = [
        TableColumn(Column(key, header, key, better="lower"), {"metric": key}, decimals=2, unit=TIMES)
        for key, header in TIMES_OF.items()
    ]
    columns += [
        TableColumn(Column("patch_ratio", "Patch ratio", "patch_ratio"), {"metric": "patch_ratio"}),
        TableColumn(
            Column("relative_utility", "Relative Macro-F1 or C-index", "relative_utility"),
            {"metric": "relative_utility"},
        ),
    ]
    return build_comparison(
        "cost",
        "inference cost relative to the full bag",
        measured,
        table,
        row_labels=("mode",),
        rows=rows,
        columns=columns,
        notes=(COST_NOTE,),
    )


CAPACITY_COLUMNS = (Column("value", "Key value"),)
N_OUTPUTS = 2
ADDED_PARAMETERS = 230_165
"""What the wrapper adds to any host at full width and two outputs, by the default recipe with a text bank."""


def capacity(measured: MeasuredResults, paper: PaperFigures) -> Table:
    table = paper.table("capacity_overhead")
    answers = {
        "soft_runtime": cost_cell(measured, "soft", {"aggregation_time": "MIL aggregation", "peak_memory": "peak memory"}),
        "discrete_cost": cost_cell(measured, "discrete", {"aggregation_time": "MIL aggregation", "peak_memory": "peak memory"}),
        "capacity_alone": grounding_cell(measured, ("random", "shuffled"), "/"),
        "grounding_quality": grounding_cell(measured, ("generic", "full"), "→"),
    }  # fmt: skip
    mark = our_origin(measured)
    lines = []
    for row in table.rows:
        lines.append(Line((row.name, PAPER_MARK), "paper", (paper_cell(table.cell(row.key, "value")),)))
        lines.append(Line((row.name, mark), "ours", (answers[row.key],)))
    lines += [
        Line(
            (f"Parameters of {host}", "ours (counted)"),
            "ours",
            (parameter_cell(spec.parameters, ADDED_PARAMETERS),),
        )
        for host, spec in HOSTS.items()
        if spec.parameters is not None
    ]
    width = SIZES["full"].feature_dim
    return Table(
        "capacity", "added capacity and overhead", table.label, ("question", "figures"), CAPACITY_COLUMNS, tuple(lines),
        legend=legend(measured),
        notes=(f"Parameters at {width}-d features and {N_OUTPUTS} outputs, default recipe with a text bank; the paper gives none.",),
    )  # fmt: skip


def cost_cell(measured: MeasuredResults, mode: str, metrics: dict[str, str]) -> Cell:
    """Several ratios of one mode of inference in one cell."""
    found = [
        estimate(find_values(measured, Query(metric, source="cost", labels={"mode": mode})))
        for metric in metrics
    ]
    return join_parts([
        None if one is None else f"{title} {one.mean:.2f}{TIMES}" for title, one in zip(metrics.values(), found, strict=True)
    ])  # fmt: skip


def grounding_cell(measured: MeasuredResults, rows: Sequence[str], between: str) -> Cell:
    """C-D gap and degradation of some grounding_cell variants, on the hosts and cohorts that have them."""
    measured = comparable(measured, set(GROUNDINGS.values()))
    parts = []
    for metric, title in (("cd_gap", "C-D gap"), ("complement_degradation", "complement degradation")):
        query = EVIDENCE.where(metric=metric)
        found = [estimate(find_values(measured, query.where(label=GROUNDINGS[row]))) for row in rows]
        numbers = [f"{one.mean:.3f}" for one in found if one is not None]
        parts.append(f"{title} {between.join(numbers)}" if len(numbers) == len(rows) else None)
    return join_parts(parts)


def join_parts(parts: Sequence[str | None]) -> Cell:
    return Cell("; ".join(part for part in parts if part)) if all(parts) else MISSING


def parameter_cell(own: int, added: int) -> Cell:
    return Cell(f"{own:,} + {added:,} ({100 * added / own:+.1f} %)", float(added))
