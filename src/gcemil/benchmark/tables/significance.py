"""Is +GCE better than its host? p over the folds both arms share, dataset by dataset.

Values of several seeds are averaged within a fold first: seeds of one fold are no further folds. Holm's correction is
over all cells of a table. With five folds that share training bags, a small p is an indication and no proof.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures, PaperTable
from gcemil.benchmark.tables.compare import PAPER_MARK, legend, our_mark, paper_cell
from gcemil.benchmark.tables.layout import MISSING, Cell, Column, Line, Table
from gcemil.benchmark.tables.prediction import datasets_of, host_name, hosts_of
from gcemil.benchmark.tables.query import Query, Unit, differences, values
from gcemil.diagnostics.paired_tests import holm, paired_t

NOTE = "Ours: two-sided paired t-test over folds of the task metric, soft +GCE against the host's full bag."


def classification(measured: Measured, paper: PaperFigures) -> Table:
    return significance_table(
        "significance_classification", measured, paper.table("cls_significance"), "classification"
    )


def survival(measured: Measured, paper: PaperFigures) -> Table:
    return significance_table("significance_survival", measured, paper.table("surv_significance"), "survival")


def significance_table(name: str, measured: Measured, paper: PaperTable, task: str) -> Table:
    datasets = datasets_of(task, paper, measured)
    hosts = hosts_of(measured)
    keys = [(host, dataset) for host in hosts for dataset in datasets]
    tests = {key: p_of(measured, *key) for key in keys}
    corrected = dict(zip(keys, holm([tests[key] for key in keys]), strict=True))
    lines = []
    for host in hosts:
        stub = f"{host_name(host)}+GCE"
        theirs = tuple(paper_cell(paper.cell(host, dataset)) for dataset in datasets)
        lines.append(Line((stub, "not named", PAPER_MARK), "paper", theirs))
        mark = our_mark(measured)
        for title, found in (("paired t", tests), ("paired t, Holm", corrected)):
            lines.append(
                Line((stub, title, mark), "ours", tuple(p_cell(found[host, dataset]) for dataset in datasets))
            )
    return Table(
        name, f"p of +GCE against its host, {task}", paper.label, ("method", "test", "figures"),
        tuple(Column(dataset, dataset.upper()) for dataset in datasets), tuple(lines), legend=legend(measured),
        notes=(NOTE, "Folds share training bags, so p over folds is too small rather than too large.",
               *(f"In the paper: {note}" for note in paper.notes)),
    )  # fmt: skip


def p_of(measured: Measured, host: str, dataset: str) -> float | None:
    """None where fewer than two folds are paired, or where they all differ alike."""
    soft = values(measured, Query(labels={"mode": "soft"}, host=host, dataset=dataset))
    plain = values(measured, Query(label="host", labels={"mode": "full"}, host=host, dataset=dataset))
    return paired_t(np.array(by_fold(differences(soft, plain))))


def by_fold(found: dict[Unit, float]) -> list[float]:
    """One difference per cohort and fold."""
    folds: dict[tuple[str, int | None], list[float]] = {}
    for unit, value in found.items():
        folds.setdefault((unit.cohort, unit.fold), []).append(value)
    return [fmean(group) for group in folds.values()]


def p_cell(p: float | None) -> Cell:
    return MISSING if p is None else Cell(f"{p:.3f}", p)
