"""The failure audit: how many slides fail in which way, dataset by dataset and over all of them."""

from __future__ import annotations

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.query import Query
from gcemil.metrics import METRICS

TYPES = (
    "case_failure", "artifact_evidence", "low_sufficiency", "low_necessity", "semantic_mismatch", "severe_failure",
)  # fmt: skip
THRESHOLDS = "The paper gives no thresholds, so its rates cannot be compared with ours; those of ours stand in each finding."


def failure_audit(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("failure")
    theirs = {row.key: row.name for row in table.rows}
    ours = dict.fromkeys(cohort.dataset for cohort in measured.cohorts)
    names = {**theirs, **{name: name.upper() for name in ours if name not in theirs}}
    query = Query(source="failures", labels={"rule": "evidence", "network": "wrapped"})
    rows = [
        RowAsk(key, (name,), query.narrowed(dataset=None if key == "all" else key), contest=None)
        for key, name in names.items()
    ]
    columns = [
        ColumnAsk(
            Column(kind, f"{METRICS[metric].label} (%)", metric),
            {"metric": metric},
            decimals=1,
            scale=100.0,
        )
        for kind, metric in ((kind, f"{kind}_share") for kind in TYPES)
    ]
    return compared(
        "failure_audit",
        "slides that fail, by kind of failure",
        measured,
        table,
        stub=("dataset",),
        rows=rows,
        columns=columns,
        notes=(
            THRESHOLDS,
            "Ours are means over the hosts that were audited; 'All' is the mean over datasets.",
        ),
    )
