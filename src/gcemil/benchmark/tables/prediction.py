"""How well slides are predicted: host and host+GCE on every dataset (classification, survival)."""

from __future__ import annotations

from collections.abc import Sequence

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures, PaperTable, paper_figures
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.query import Query
from gcemil.hosts.table import HOSTS
from gcemil.metrics import METRICS

SOFT_NOTE = (
    "+GCE is the prediction under the gates (soft); its Δ is paired with the host by cohort, seed and fold."
)
CONTROLS = {
    "host_long": ("host, twice the epochs Δ", "full"),
    "gce_random_anchors": ("+GCE with random anchors Δ", "soft"),
    "gce_paper": ("+GCE, the paper read literally Δ", "soft"),
}
"""Fairness controls, shown where they were run: what they are called, and the mode that is compared."""


def classification(measured: Measured, paper: PaperFigures) -> Table:
    return prediction_table(
        "classification", measured, paper.table("cls_main"), "classification", ("accuracy", "macro_f1", "auc")
    )


def survival(measured: Measured, paper: PaperFigures) -> Table:
    return prediction_table("survival", measured, paper.table("surv_main"), "survival", ("c_index",))


def prediction_table(
    name: str, measured: Measured, paper: PaperTable, task: str, metrics: Sequence[str]
) -> Table:
    columns = [
        ColumnAsk(
            Column(f"{dataset}.{metric}", METRICS[metric].label, metric, group=dataset.upper()),
            {"dataset": dataset, "metric": metric},
        )
        for dataset in datasets_of(task, paper, measured)
        for metric in metrics
    ]
    rows = [row for host in hosts_of(measured) for row in host_rows(host, measured)]
    return compared(
        name,
        f"{task} with and without GCE",
        measured,
        paper,
        stub=("method",),
        rows=rows,
        columns=columns,
        notes=(SOFT_NOTE,),
    )


def host_rows(host: str, measured: Measured) -> list[RowAsk]:
    """The host, the change by GCE, and the controls that were run."""
    plain = Query(label="host", labels={"mode": "full"}, host=host)
    soft = Query(labels={"mode": "soft"}, host=host)
    found = {run.label for run in measured.runs}
    return [
        RowAsk(f"{host}.host", (host_name(host),), plain),
        RowAsk(f"{host}.delta", (f"{host_name(host)} +GCE Δ",), soft, baseline=plain),
        *(
            RowAsk(f"{host}.{label}", (f"{host_name(host)} {title}",), soft.narrowed(label=label, labels={"mode": mode}), baseline=plain)
            for label, (title, mode) in CONTROLS.items()
            if label in found
        ),
    ]  # fmt: skip


def host_name(host: str) -> str:
    """As the paper writes it."""
    row = paper_figures().table("cls_main").row(f"{host}.host")
    return row.name if row else host


def hosts_of(measured: Measured) -> list[str]:
    """The nine hosts, then any other that was run."""
    return [*HOSTS, *sorted({run.host for run in measured.runs} - set(HOSTS))]


def datasets_of(task: str, paper: PaperTable, measured: Measured) -> list[str]:
    """The paper's datasets, then those of ours that it does not have."""
    theirs = dict.fromkeys(column.partition(".")[0] for column in paper.columns)
    ours = dict.fromkeys(cohort.dataset for cohort in measured.cohorts if cohort.task == task)
    return [*theirs, *(name for name in ours if name not in theirs)]
