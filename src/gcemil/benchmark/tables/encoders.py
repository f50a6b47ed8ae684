"""Does the gain depend on the patch encoder: host, host+GCE and their difference, encoder by encoder."""

from __future__ import annotations

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures
from gcemil.benchmark.tables.compare import PAPER_MARK, legend, our_mark, paper_cell
from gcemil.benchmark.tables.layout import Column, Line, Table
from gcemil.benchmark.tables.query import Query, cell, differences, values

Key = tuple[str, str, str]
"""Dataset, encoder, host."""
COLUMNS = (
    Column("host", "Host", "task_metric"),
    Column("gce", "+GCE", "task_metric"),
    Column("delta", "Δ"),
)


def encoders(measured: Measured, paper: PaperFigures) -> Table:
    """The paper's rows with ours of the same encoder, then encoders of ours alone."""
    table = paper.table("backbone_generalization")
    stubs: dict[Key, Key] = {}
    for row in table.rows:
        (dataset, encoder, host), (title, encoder_title, host_title) = (
            row.key.split("."),
            row.name.split(" · "),
        )
        stubs[dataset, encoder, host] = (title, encoder_title, host_title)
    stubs |= {key: key for key in own_keys(measured) if key not in stubs}
    lines = []
    for key, stub in stubs.items():
        if table.row(".".join(key)) is not None:
            theirs = tuple(paper_cell(table.cell(".".join(key), column.key)) for column in COLUMNS)
            lines.append(Line((*stub, PAPER_MARK), "paper", theirs))
        lines.append(our_line(measured, key, stub))
    return Table(
        "encoders", "patch encoders, Macro-F1 or C-index", table.label, ("dataset", "encoder", "method", "figures"),
        COLUMNS, tuple(lines), legend=legend(measured), notes=tuple(f"In the paper: {note}" for note in table.notes),
    )  # fmt: skip


def own_keys(measured: Measured) -> list[Key]:
    """Every dataset, encoder and host that was run, where the grid names the encoder."""
    named = ((run.cohort.dataset, run.cohort.encoder, run.host) for run in measured.runs)
    return list(
        dict.fromkeys((dataset, encoder, host) for dataset, encoder, host in named if encoder is not None)
    )


def our_line(measured: Measured, key: Key, stub: Key) -> Line:
    dataset, encoder, host = key
    query = Query(dataset=dataset, encoder=encoder, host=host)
    plain = values(measured, query.narrowed(label="host", labels={"mode": "full"}))
    soft = values(measured, query.narrowed(labels={"mode": "soft"}))
    cells = (cell(plain), cell(soft), cell(differences(soft, plain), signed=True))
    return Line((*stub, our_mark(measured)), "ours", cells)
