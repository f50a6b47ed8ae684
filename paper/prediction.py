"""How well slides are predicted: host and host+GCE on every dataset, whether they differ, and
encoder by encoder.

Significance is p over the folds both arms share, where there are two, and over the slides they
tested (slide_tests.py). Over folds, values of several seeds are averaged within a fold first: seeds
of one fold are no further folds. Holm's correction is over all cells of a table and test. With five
folds that share training bags, a small p is an indication and no proof; over slides it speaks of
these trained networks and not of others.
"""

from __future__ import annotations

from statistics import fmean

from gcemil.config import RANDOM_PREFIX
from gcemil.hosts.table import HOSTS
from gcemil.metrics import METRICS
from gcemil.tables import MISSING, Cell, Column, Line, Table
from paper.comparison import (
    PAPER_MARK,
    PaperFigures,
    PaperTable,
    TableColumn,
    TableRow,
    benchmark_remedy,
    build_comparison,
    cell,
    legend,
    make_table,
    our_origin,
    paper_figures,
    paper_line,
)
from paper.measured import Measured, Query, select_values, subtract_paired

TASKS = {
    "classification": ("cls_main", "cls_significance", ("accuracy", "macro_f1", "auc")),
    "survival": ("surv_main", "surv_significance", ("c_index",)),
}
"""The paper's tables of figures and of tests, and the metrics."""
SOFT_NOTE = "+GCE is the prediction under the gates (soft); its Δ is paired with the host by cohort, seed and fold."
CONTROLS = {
    "host_long": ("host, twice the epochs Δ", "full", "host"),
    "gce_random_anchors": ("+GCE with random anchors Δ", "soft", "host"),
    "taught": ("+GCE, host taught by its evidence Δ", "soft", "host"),
    "paper": ("+GCE, the paper read literally Δ", "soft", "host"),
    "paper_budget": ("+GCE, the paper's parts within the budget Δ", "soft", "host"),
    "gce_paper": ("+GCE, the paper read literally Δ", "soft", "host_paper"),
    "gce_paper_constrained": ("+GCE, the same with a constrained bridge Δ", "soft", "host_paper"),
}
"""Controls, where they were run: title, compared mode, and plain host of the schedule."""


def prediction_table(measured: Measured, paper: PaperFigures, *, task: str) -> Table:
    """Hosts with and without evidence, by class or by risk."""
    source, _, metrics = TASKS[task]
    table = paper.table(source)
    columns = [
        TableColumn(
            Column(f"{dataset}.{metric}", METRICS[metric].label, metric, group=dataset.upper()),
            {"dataset": dataset},
        )
        for dataset in list_datasets(task, table, measured)
        for metric in metrics
    ]
    rows = [row for host in list_hosts(measured) for row in _host_rows(host, measured)]
    return build_comparison(
        task,
        f"{task} with and without GCE",
        measured,
        table,
        row_labels=("method",),
        rows=rows,
        columns=columns,
        notes=(SOFT_NOTE,),
        remedy=benchmark_remedy("reduced"),
    )


def _host_rows(host: str, measured: Measured) -> list[TableRow]:
    """The host, the change by GCE, and the controls that were run."""
    plain = Query(label="host", labels={"mode": "full"}, host=host)
    soft = Query(labels={"mode": "soft"}, host=host)
    found = set(measured.runs.label)
    return [
        TableRow(f"{host}.host", (host_name(host),), plain),
        TableRow(f"{host}.delta", (f"{host_name(host)} +GCE Δ",), soft, baseline=plain),
        *(
            TableRow(
                f"{host}.{label}",
                (f"{host_name(host)} {title}",),
                soft.where(label=label, labels={"mode": mode}),
                baseline=plain.where(label=beside if beside in found else "host"),
            )
            for label, (title, mode, beside) in CONTROLS.items()
            if label in found
        ),
    ]  # fmt: skip


def host_name(host: str) -> str:
    """As the paper writes it."""
    row = paper_figures().table("cls_main").row(f"{host}.host")
    return row.name if row else host


def list_hosts(measured: Measured) -> list[str]:
    """The nine hosts, then any other that was run."""
    nine = list_paper_hosts()
    return [*nine, *sorted(set(measured.runs.host) - set(nine))]


def list_paper_hosts() -> list[str]:
    """The hosts that the paper measured."""
    return [host for host in HOSTS if paper_figures().table("cls_main").row(f"{host}.host")]


def list_datasets(task: str, paper: PaperTable, measured: Measured) -> list[str]:
    """The paper's datasets, then those of ours that it does not have."""
    theirs = dict.fromkeys(column.partition(".")[0] for column in paper.columns)
    ours = dict.fromkeys(cohort.dataset for cohort in measured.cohorts if cohort.task == task)
    return [*theirs, *(name for name in ours if name not in theirs)]


NO_TEST = "a test needs the predictions of +GCE and of its host on the dataset, one over folds two folds or more"
T_TEST, SLIDE_TEST = "paired t", "permutation over slides"
HOLM = ", Holm"
TEST_NOTES = {
    T_TEST: "Paired t: two-sided, over folds of the task metric, soft +GCE against the host's full bag. Folds share training bags, "
    "so p over folds is too small rather than too large.",
    SLIDE_TEST: "Permutation over slides: the same two predictions of each test slide are swapped at random (10,000 times, or in all "
    "ways where few slides differ), and the difference of the metric is averaged over folds; risks "
    "enter as ranks.",
}


def significance_table(measured: Measured, paper: PaperFigures, *, task: str) -> Table:
    """Paired tests of a table of predictions."""
    # Loaded here, since no other table tests anything.
    from gcemil.diagnostics.paired_tests import holm

    table = paper.table(TASKS[task][1])
    datasets = list_datasets(task, table, measured)
    hosts = list_hosts(measured)
    keys = [(host, dataset) for host in hosts for dataset in datasets]
    over_slides = {(test.host, test.dataset): test for test in measured.slide_tests}
    tests = {
        T_TEST: {key: _paired_p(measured, *key) for key in keys},
        SLIDE_TEST: {key: over_slides[key].p if key in over_slides else None for key in keys},
    }
    for title in list(tests):
        corrected = holm([tests[title][key] for key in keys])
        tests[title + HOLM] = dict(zip(keys, corrected, strict=True))
    mark = our_origin(measured)
    lines = []
    for host in hosts:
        row_labels = f"{host_name(host)}+GCE"
        lines.append(paper_line(table, host, (row_labels, "not named", PAPER_MARK), datasets))
        own = {
            title: tuple(
                MISSING if (p := found[host, dataset]) is None else Cell(f"{p:.3f}", p)
                for dataset in datasets
            )
            for title, found in sorted(tests.items())
        }
        shown = [
            title for title, cells in own.items() if any(cell.value is not None for cell in cells)
        ]
        lines += [
            Line((row_labels, title, mark), "ours", own[title]) for title in shown or [SLIDE_TEST]
        ]
    alike = sum(key in over_slides and not over_slides[key].moved for key in keys)
    notes = [
        note
        for title, note in TEST_NOTES.items()
        if any(p is not None for p in tests[title].values())
    ]
    if alike:
        notes.append(
            f"Where no prediction of a slide differs, p over slides is 1: {alike} of {len(keys)} "
            "cells."
        )
    return make_table(
        f"significance_{task}", f"p of +GCE against its host, {task}", table, ("method", "test"),
        [Column(dataset, dataset.upper()) for dataset in datasets], lines, legend=legend(measured), notes=notes,
        remedy=benchmark_remedy("reduced"), reason=NO_TEST,
    )  # fmt: skip


def _paired_p(measured: Measured, host: str, dataset: str) -> float | None:
    """None where fewer than two folds are paired, or where they all differ alike."""
    import numpy as np

    from gcemil.diagnostics.paired_tests import paired_t

    soft = select_values(measured, Query(labels={"mode": "soft"}, host=host, dataset=dataset))
    plain = select_values(
        measured, Query(label="host", labels={"mode": "full"}, host=host, dataset=dataset)
    )
    by_fold = subtract_paired(soft, plain).groupby(level=["cohort", "fold"]).agg(fmean)
    return paired_t(np.array(by_fold, dtype=float))


EncoderKey = tuple[str, str, str]
"""Dataset, encoder, host."""
ENCODER_COLUMNS = (
    Column("host", "Host", "task_metric"),
    Column("gce", "+GCE", "task_metric"),
    Column("delta", "Δ"),
)


ENCODERS_NOTE = (
    "Ours are encoders that were run on drawn slides: 'random weights' is the architecture "
    "without training, where its weights cannot be had; 'stand-in' is no encoder at all but "
    "simulated features of that width."
)


def encoders_table(measured: Measured, paper: PaperFigures) -> Table:
    """The paper's rows, each above ours of the same architecture, then encoders of ours alone."""
    table = paper.table("backbone_generalization")
    left = _measured_encoders(measured)
    lines = []
    for row in table.rows:
        dataset, encoder, host = row.key.split(".")
        title, printed, host_title = row.name.split(" · ")
        lines.append(
            paper_line(table, row.key, (title, printed, host_title, PAPER_MARK), table.columns)
        )
        # An untrained architecture, as its name tells, is still that architecture.
        own = [
            key
            for key in left
            if (key[0], key[1].removeprefix(RANDOM_PREFIX), key[2]) == (dataset, encoder, host)
        ]
        for key in own or [(dataset, encoder, host)]:
            labels = (title, _describe_encoder(measured, key, printed), host_title)
            lines.append(_encoder_line(measured, key, labels))
        left = [key for key in left if key not in own]
    for key in left:
        labels = (key[0].upper(), _describe_encoder(measured, key, key[1]), host_name(key[2]))
        lines.append(_encoder_line(measured, key, labels))
    return make_table(
        "encoders", "patch encoders, Macro-F1 or C-index", table, ("dataset", "encoder", "method"), ENCODER_COLUMNS, lines,
        legend=legend(measured), notes=(ENCODERS_NOTE,), remedy=benchmark_remedy("encoder"),
        reason="no cohort of the results was made with these encoders; the weights of UNI are gated",
    )  # fmt: skip


def _measured_encoders(measured: Measured) -> list[EncoderKey]:
    """Every dataset, encoder and host that was run, where the grid names the encoder."""
    cohorts = {cohort.name: cohort for cohort in measured.cohorts if cohort.encoder is not None}
    runs = measured.runs[measured.runs.cohort.isin(cohorts)]
    pairs = zip(runs.cohort, runs.host, strict=True)
    return list(
        dict.fromkeys(
            (cohorts[name].dataset, str(cohorts[name].encoder), host) for name, host in pairs
        )
    )


def _describe_encoder(measured: Measured, key: EncoderKey, printed: str) -> str:
    """The encoder as it was run: trained, untrained, or none at all."""
    dataset, encoder, _ = key
    if encoder.startswith(RANDOM_PREFIX):
        return f"{printed.partition(' (')[0].removeprefix(RANDOM_PREFIX)}, random weights"
    if any(cohort.is_stand_in for cohort in measured.dataset(dataset) if cohort.encoder == encoder):
        return f"{printed}, stand-in"
    return printed


def _encoder_line(measured: Measured, key: EncoderKey, row_labels: EncoderKey) -> Line:
    dataset, encoder, host = key
    query = Query(dataset=dataset, encoder=encoder, host=host)
    plain = select_values(measured, query.where(label="host", labels={"mode": "full"}))
    soft = select_values(measured, query.where(labels={"mode": "soft"}))
    cells = (cell(plain), cell(soft), cell(subtract_paired(soft, plain), signed=True))
    return Line((*row_labels, our_origin(measured)), "ours", cells)
