"""What inference costs relative to one pass of the host over the full bag."""

from __future__ import annotations

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import TIMES, PaperFigures
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.query import Query

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
NOTE = (
    "MIL aggregation of ours is one prediction from a known subset; what finding the subset adds is a column of its own, "
    "which the paper counts under aggregation for occlusion. Encoding and the prefilter are timed by 'gcemil prefilter --measure'."
)


def cost(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("cost")
    names = {row.key: row.name for row in table.rows} | {CLOSED_FORM: "Occlusion in closed form"}
    rows = [
        RowAsk(key, (names[key],), Query(source="cost", labels={"mode": key}), contest=None)
        for key in (*MODES, CLOSED_FORM)
    ]
    columns = [
        ColumnAsk(Column(key, header, key, better="lower"), {"metric": key}, decimals=2, unit=TIMES)
        for key, header in TIMES_OF.items()
    ]
    columns += [
        ColumnAsk(Column("patch_ratio", "Patch ratio", "patch_ratio"), {"metric": "patch_ratio"}),
        ColumnAsk(
            Column("relative_utility", "Relative Macro-F1 or C-index", "relative_utility"),
            {"metric": "relative_utility"},
        ),
    ]
    return compared(
        "cost",
        "inference cost relative to the full bag",
        measured,
        table,
        stub=("mode",),
        rows=rows,
        columns=columns,
        notes=(NOTE,),
    )
