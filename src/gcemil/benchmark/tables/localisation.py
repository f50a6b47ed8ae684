"""Localisation against annotated lesions: the host's attention, the gates, and what is gained."""

from __future__ import annotations

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.prediction import host_name, hosts_of
from gcemil.benchmark.tables.query import Query
from gcemil.metrics import METRICS

COLUMNS = {
    "dice": "dice",
    "normal_specificity": "specificity",
    "froc": "froc",
    "patch_specificity": "",
    "froc_official": "",
}
"""Our metric, and the paper's column it stands beside. The paper does not say over which slides its specificity is."""
NOTE = "The map of a host is its attention, that of GCE its gates; each is thresholded on validation slides."


def localisation(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("camelyon_localization")
    base = Query(source="localisation", dataset="camelyon16")
    rows = []
    ran = {run.host for run in measured.runs if run.cohort.dataset == "camelyon16"}
    for host in (host for host in hosts_of(measured) if table.row(f"{host}.host") or host in ran):
        name = host_name(host)
        attention = base.narrowed(host=host, labels={"rule": "attention", "network": "plain"})
        gates = base.narrowed(host=host, labels={"rule": "gates", "network": "wrapped"})
        rows += [
            RowAsk(f"{host}.host", (name,), attention),
            RowAsk(f"{host}.gce", (f"{name}+GCE",), gates),
            RowAsk(f"{host}.delta", (f"{name} Δ",), gates, baseline=attention),
        ]
    rows += [
        RowAsk(f"control.{rule}", (rule,), base.narrowed(labels={"rule": rule}), contest=None)
        for rule in ("random", "oracle")
    ]
    columns = [
        ColumnAsk(Column(metric, METRICS[metric].label if metric in METRICS else metric, metric), {"metric": metric}, paper=theirs)
        for metric, theirs in COLUMNS.items()
    ]  # fmt: skip
    return compared(
        "localisation", "evidence against annotated lesions, CAMELYON16", measured, table,
        stub=("method",), rows=rows, columns=columns, notes=(NOTE,),
    )  # fmt: skip
