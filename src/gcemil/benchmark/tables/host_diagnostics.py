"""S/N/R of the wrapped hosts: BRACS alone, and three datasets side by side."""

from __future__ import annotations

from collections.abc import Sequence

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures, PaperTable
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.prediction import host_name, hosts_of
from gcemil.benchmark.tables.query import Query

HEADERS = {
    "cd_gap": "C-D gap",
    "complement_degradation": "Compl. degr.",
    "evidence_sufficiency": "Evid. suff.",
}
EVIDENCE = Query(source="snr", labels={"rule": "evidence", "class": "all"})
"""The recovered evidence, over all classes."""
CONTROL = EVIDENCE.narrowed(labels={"rule": "random", "network": "wrapped"})


def diagnostics_bracs(measured: Measured, paper: PaperFigures) -> Table:
    columns = [
        ColumnAsk(Column(metric, header, metric), {"metric": metric, "dataset": "bracs"})
        for metric, header in HEADERS.items()
    ]
    return diagnostics_table(
        "diagnostics_bracs", "BRACS", measured, paper.table("diagnostics_bracs"), columns
    )


def diagnostics(measured: Measured, paper: PaperFigures) -> Table:
    columns = [
        ColumnAsk(
            Column(f"{dataset}.{metric}", header, metric, group=dataset.upper()),
            {"metric": metric, "dataset": dataset},
        )
        for dataset in ("bracs", "nsclc", "panda")
        for metric, header in HEADERS.items()
    ]
    return diagnostics_table("diagnostics", "three datasets", measured, paper.table("diagnostics"), columns)


def diagnostics_table(
    name: str, where: str, measured: Measured, table: PaperTable, columns: Sequence[ColumnAsk]
) -> Table:
    """The hosts, and the same number of random patches as the control."""
    rows = [
        RowAsk(host, (f"{host_name(host)}+GCE",), EVIDENCE.narrowed(host=host)) for host in hosts_of(measured)
    ]
    gapless = frozenset(ask.column.key for ask in columns if ask.column.metric == "cd_gap")
    rows.append(
        RowAsk("random", ("random patches, mean of hosts",), CONTROL, contest=None, undefined=gapless)
    )
    return compared(
        name, f"S/N/R of the recovered evidence, {where}", measured, table, stub=("method",), rows=rows, columns=columns
    )  # fmt: skip
