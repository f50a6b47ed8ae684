"""The claims of the paper's abstract, computed anew from its own tables and from the results;
datasets, definitions, prompts.

  gain         mean over hosts and cohorts of the paired difference soft +GCE minus host
  gap ratio    attention's gap over GCE's. The paper divides by GCE's C-D gap, although attention
               has no gates: its gap can only be full against kept. Both are given: that mixed
               ratio, and full-kept over full-kept.
  necessity    complement degradation of the evidence over that of attention, same number of patches
  speed        one over the end-to-end time with tile prefilter; utility is relative to the full bag

Ratios are of means over the grid, not means of ratios, which a gap near 0 would rule.
"""

from __future__ import annotations

from statistics import fmean

import pandas as pd

from gcemil.families import load_family
from gcemil.metrics import METRICS
from gcemil.tables import MISSING, UNDEFINED, Cell, Column, Line, Table
from paper.ablation import COST, PREFILTER, keep_costed
from paper.comparison import (
    PAPER_MARK,
    TIMES,
    PaperFigures,
    benchmark_remedy,
    cell,
    legend,
    make_table,
    our_origin,
    paper_line,
)
from paper.evidence import PAPER_RULES
from paper.measured import CohortFacts, Measured, Query, estimate, select_values, subtract_paired

Found = tuple[str, tuple[Cell, Cell]]
"""What is added to the name of a claim, and the cells of its line."""
CLAIM_COLUMNS = (Column("value", "Value"), Column("cells", "Over"))
GAIN_TABLES = {"macro_f1": "cls_main", "c_index": "surv_main"}
RATIO_TABLES = ("same_budget", "explain")
"""Tables of the paper that have attention beside GCE discrete."""


def headline_table(measured: Measured, paper: PaperFigures) -> Table:
    """Every claim of the abstract: as printed, from the paper's tables, and from the results."""
    lines = [
        line
        for claim in paper.claims
        for line in (
            Line(
                (claim.name, f"paper ({claim.where})"),
                "paper",
                (Cell(claim.value), Cell("real cohorts")),
            ),
            Line((claim.name, "paper (from its tables)"), "paper", _paper_cells(claim.key, paper)),
            *(
                Line((f"{claim.name}{suffix}", our_origin(measured)), "ours", cells)
                for suffix, cells in _claim_cells(claim.key, measured)
            ),
        )
    ]
    return Table(
        "headline", "the claims of the abstract", "tab:headline", ("claim", "figures"), CLAIM_COLUMNS, tuple(lines),
        legend=legend(measured),
        notes=(
            "Gap ratio: the paper's puts attention's gap over GCE's C-D gap, two quantities; the "
            "second line of ours has full-kept gaps on both sides.",
        ),
        remedy="gcemil benchmark GRID.yaml --out RESULTS, with the diagnostics snr and cost",
    )  # fmt: skip


def _paper_cells(claim: str, paper: PaperFigures) -> tuple[Cell, Cell]:
    """What the paper's own tables give for a claim."""
    if claim.endswith("_gain"):
        table = paper.table(GAIN_TABLES[claim.removesuffix("_gain")])
        gains = [
            gain
            for row in table.rows
            if row.key.endswith(".delta")
            for column in table.columns
            if column.endswith(claim.removesuffix("_gain"))
            and (gain := table.number(row.key, column)) is not None
        ]
        return Cell(f"{fmean(gains):+.4f}", fmean(gains)), Cell(
            f"{len(gains)} pairs of host and dataset"
        )
    if claim in ("cd_gap_ratio", "complement_degradation_ratio"):
        return _table_ratios("gap" if claim == "cd_gap_ratio" else "complement_degradation", paper)
    cost = paper.table("cost")
    column = "end_to_end_time" if claim == "speed_up" else "relative_utility"
    found = cost.number("prefilter", column)
    if found is None:
        return MISSING, MISSING
    value = 1 / found if claim == "speed_up" else found
    return Cell(f"{value:.3g}{TIMES}", value), Cell(cost.label)


def _table_ratios(column: str, paper: PaperFigures) -> tuple[Cell, Cell]:
    """Smallest and largest ratio of attention and GCE discrete in the tables that have both."""
    ratios = []
    for name in RATIO_TABLES:
        attention, gce = (
            paper.table(name).number(rule, column) for rule in ("attention", "gce_discrete")
        )
        if attention and gce:
            ratios.append(attention / gce if column == "gap" else gce / attention)
    text = f"{min(ratios):.1f}{TIMES} to {max(ratios):.1f}{TIMES}"
    return Cell(text), Cell(", ".join(paper.table(name).label for name in RATIO_TABLES))


def _claim_cells(claim: str, measured: Measured) -> list[Found]:
    """The claim on the results; where a fairness control was run, its gain beside it."""
    if claim.endswith("_gain"):
        return _gain_cells(claim.removesuffix("_gain"), measured)
    snr = Query(source="snr", labels={"class": "all"})
    attention = snr.where(labels=PAPER_RULES["attention"].labels)
    evidence = snr.where(labels=PAPER_RULES["gce_discrete"].labels)
    if claim == "cd_gap_ratio":
        rival = select_values(measured, attention.where(metric="full_kept_gap"))
        return [
            (", full-kept over C-D", _ratio_cells(rival, select_values(measured, evidence.where(metric="cd_gap")))),
            (", full-kept over full-kept", _ratio_cells(rival, select_values(measured, evidence.where(metric="full_kept_gap")))),
        ]  # fmt: skip
    if claim == "complement_degradation_ratio":
        found = [
            select_values(measured, rule.where(metric=claim.removesuffix("_ratio")))
            for rule in (evidence, attention)
        ]
        return [("", _ratio_cells(*found))]
    if claim == "speed_up":
        return [
            ("", _speed_cells("end_to_end_time", PREFILTER, measured)),
            (
                ": aggregation of cached evidence",
                _speed_cells("aggregation_time", "discrete", measured),
            ),
        ]
    return [
        ("", _speed_cells(claim, PREFILTER, measured)),
        (": evidence alone", _speed_cells(claim, "discrete", measured)),
    ]


def _gain_cells(metric: str, measured: Measured) -> list[Found]:
    plain = select_values(measured, Query(metric, label="host", labels={"mode": "full"}))
    arms = {"": Query(metric, labels={"mode": "soft"})}
    controls = {
        " (control: host, twice the epochs)": Query(
            metric, label="host_long", labels={"mode": "full"}
        ),
        " (control: random anchors)": Query(
            metric, label="gce_random_anchors", labels={"mode": "soft"}
        ),
    }
    ran = set(measured.runs.label)
    arms |= {suffix: query for suffix, query in controls.items() if query.label in ran}
    found = {
        suffix: subtract_paired(select_values(measured, query), plain)
        for suffix, query in arms.items()
    }
    return [
        (suffix, (cell(gained, decimals=4, signed=True), _count_pairs(gained)))
        for suffix, gained in found.items()
    ]


def _ratio_cells(above: pd.Series, below: pd.Series) -> tuple[Cell, Cell]:
    """The ratio of the means over what both have."""
    shared = above[above.index.isin(below.index)]
    top, bottom = estimate(shared), estimate(below[below.index.isin(above.index)])
    if top is None or bottom is None:
        return MISSING, MISSING
    if bottom.mean <= 0:
        return UNDEFINED, _count_pairs(shared)
    value = top.mean / bottom.mean
    return Cell(f"{value:.2f}{TIMES}", value), _count_pairs(shared)


def _speed_cells(metric: str, mode: str, measured: Measured) -> tuple[Cell, Cell]:
    """A ratio of the cost table; a time is turned over, so that more is faster."""
    found = select_values(keep_costed(measured), COST.where(metric=metric, labels={"mode": mode}))
    if metric == "relative_utility":
        return cell(found, unit=TIMES), _count_pairs(found)
    mean = estimate(found)
    text = MISSING if mean is None else Cell(f"{1 / mean.mean:.2f}{TIMES}", 1 / mean.mean)
    return text, _count_pairs(found)


def _count_pairs(values: pd.Series) -> Cell:
    pairs = len(values.index.droplevel(["seed", "fold"]).unique())
    return Cell(f"{pairs} pair{'s' if pairs > 1 else ''} of host and cohort") if pairs else MISSING


DATASET_COLUMNS = (
    Column("source", "Source"),
    Column("task", "Task"),
    Column("split_unit", "Split unit"),
    Column("size", "Size and labels"),
    Column("patches", "Patches per slide"),
    Column("features", "Features"),
)
NO_DATASET = tuple(MISSING for _ in DATASET_COLUMNS)


def dataset_table(measured: Measured, paper: PaperFigures) -> Table:
    """The cohorts: slides, cases, patches and labels."""
    table = paper.table("dataset_details")
    lines = []
    for row in table.rows:
        keys = (column.key for column in DATASET_COLUMNS)
        lines.append(paper_line(table, row.key, (row.name, PAPER_MARK), keys))
        found = measured.dataset(row.key)
        lines += [_cohort_line(measured, cohort) for cohort in found]
        if not found:
            lines.append(Line((row.key.upper(), "ours"), "ours", NO_DATASET))
    known = {row.key for row in table.rows}
    lines += [
        _cohort_line(measured, cohort) for cohort in measured.cohorts if cohort.dataset not in known
    ]
    return make_table(
        "dataset_card", "the datasets", table, ("dataset",), DATASET_COLUMNS, lines,
        legend=legend(measured), remedy=benchmark_remedy("paper"),
    )  # fmt: skip


def _cohort_line(measured: Measured, cohort: CohortFacts) -> Line:
    row_labels = (cohort.name, our_origin(measured))
    record = cohort.record
    if record is None:
        return Line(row_labels, "ours", NO_DATASET)
    patches = record["patches"]
    provenance = record["provenance"]
    source = (
        f"simulated, profile {provenance.get('profile')}, seed {provenance.get('seed')}"
        if cohort.is_simulated
        else str(provenance.get("source", "real"))
    )
    cells = (
        Cell(source),
        Cell(str(record["task"]).capitalize()),
        # Folds that put a case into two parts are refused.
        Cell("Case"),
        Cell(f"{record['slides']} slides, {record['cases']} cases; {_describe_labels(cohort)}"),
        Cell(f"{patches['fewest']} to {patches['most']}"),
        Cell(f"{record['feature_dim']}-d, {record['encoder']}") if record["encoder"] else UNDEFINED,
    )
    return Line(row_labels, "ours", cells)


def _describe_labels(cohort: CohortFacts) -> str:
    record = cohort.record or {}
    if "classes" in record:
        return ", ".join(f"{name} {count}" for name, count in record["classes"].items())
    return f"{record.get('events')} events"


DEFINITION_COLUMNS = (Column("definition", "Definition"), Column("role", "Evidence role"))
GCEMIL = "gcemil"


def definitions_table(measured: Measured, paper: PaperFigures) -> Table:
    """The diagnostics as the paper and as this package define them; ours depend on no results."""
    table = paper.table("metric_defs")
    lines = []
    for row in (*table.rows, None):
        metric = METRICS["full_kept_gap" if row is None else row.key]
        if row is not None:
            lines.append(paper_line(table, row.key, (row.name, "paper"), table.columns))
        role = f"{metric.criterion.capitalize()}; {metric.direction} is better"
        lines.append(Line((metric.label, GCEMIL), "ours", (Cell(metric.meaning), Cell(role))))
    return make_table(
        "definitions", "what the diagnostics measure", table, ("diagnostic",), DEFINITION_COLUMNS, lines, legend={},
        notes=("Phi is the probability of the class predicted on X, or the standardised risk; M is Macro-F1 or the C-index.",),
    )  # fmt: skip


PROTOCOL_COLUMNS = (
    Column("source", "Anchor source"),
    Column("prompts", "Prompts"),
    Column("rule", "Selection rule"),
)


def protocol_table(measured: Measured, paper: PaperFigures) -> Table:
    """The prompts of every family, the paper's categories above our wordings."""
    table = paper.table("anchor_protocol")
    lines = []
    for row in table.rows:
        family = load_family(row.key)
        ours = (
            Cell(family.source),
            Cell("; ".join(family.wordings)),
            Cell("Fixed with the package, before any training"),
        )
        lines.append(paper_line(table, row.key, (row.name, "paper"), table.columns))
        lines.append(Line((row.name, GCEMIL), "ours", ours))
    title = "anchor prompts by dataset family"
    return make_table(
        "anchor_protocol", title, table, ("family",), PROTOCOL_COLUMNS, lines, legend={}
    )
