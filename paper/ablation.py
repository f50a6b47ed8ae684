"""One thing changed at a time, and what the wrapper costs.

Components, budget, selector, grounding: the rows are the variants of the grids. Cost is that of
inference relative to one pass of the host over the full bag; capacity is what the wrapper adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gcemil.hosts.table import HOSTS
from gcemil.rules import CONTROLS
from gcemil.tables import MISSING, Cell, Column, Line, Table
from paper.comparison import (
    PAPER_MARK,
    TIMES,
    PaperFigures,
    TableColumn,
    TableRow,
    benchmark_remedy,
    build_comparison,
    diagnose_remedy,
    legend,
    make_table,
    our_origin,
    paper_line,
)
from paper.evidence import EVIDENCE, control_rows
from paper.measured import ANY_ENCODER, RUN, Measured, Query, estimate, select_values
from paper.prediction import list_paper_hosts

HEADERS = {
    "task_metric": "Macro-F1 or C-index",
    "macro_f1": "Macro-F1",
    "evidence_fraction": "Evid. frac.",
    "cd_gap": "C-D gap",
    "complement_degradation": "Compl. degr.",
    "evidence_sufficiency": "Evid. suff.",
}
MEAN_NOTE = "Ours are means over the hosts and cohorts that have a variant; Macro-F1 is that of the soft prediction."

FULL = "paper_budget"
"""The variants start from this recipe, so that nothing but the paper's own parts corrects a row."""
COMPONENTS = {
    "naive": "naive_selector",
    "budget": "budget_control",
    "recovery": "discrete_recovery",
    "grounding": "semantic_grounding",
    "full": FULL,
}
BUDGETS = {
    key: FULL if key == "0.05" else f"budget_{key}"
    for key in ("0.01", "0.02", "0.05", "0.10", "0.20", "1.00")
}
SELECTORS = {
    key: FULL if key == "consecutive" else f"selector_{key}"
    for key in ("sigmoid_threshold", "top_k", "gumbel_sigmoid", "concrete", "sparsemax", "entmax15", "consecutive")
}  # fmt: skip
GROUNDINGS = {
    "none": "grounding_none",
    "random": "grounding_random",
    "shuffled": "grounding_shuffled",
    "generic": "grounding_generic",
    "specific": "grounding_specific",
    "free_bridge": "semantic_grounding",
    "full": FULL,
}
"""Each: the paper's row, and the variant of our grids that represents it."""


@dataclass(frozen=True)
class Ablation:
    """One thing changed at a time."""

    title: str
    paper: str
    """The paper's table."""
    grid: str
    """Our grid."""
    variants: Mapping[str, str]
    dataset: str | None = "bracs"


ABLATIONS = {
    "components": Ablation(
        "components added one by one, BRACS", "ablation", "reduced_ablation", COMPONENTS
    ),
    "budget": Ablation("evidence budget, BRACS", "budget", "reduced_ablation", BUDGETS),
    "selector": Ablation(
        "selector variants, BRACS", "selector_arch", "reduced_ablation", SELECTORS
    ),
    "grounding": Ablation(
        "anchors and bridges, mean over cohorts", "grounding", "reduced_ablation", GROUNDINGS, None
    ),
}


def ablation_table(measured: Measured, paper: PaperFigures, *, name: str) -> Table:
    """The paper's rows with our variants; the full method is the recipe that they start from."""
    ablation = ABLATIONS[name]
    table, dataset = paper.table(ablation.paper), ablation.dataset
    names = {row.key: row.name for row in table.rows}
    measured = _keep_comparable(measured, set(ablation.variants.values()))
    rows = [
        TableRow(key, (names[key],), Query(label=variant, dataset=dataset))
        for key, variant in ablation.variants.items()
    ]
    if "backbone" in names:
        plain = Query(label="host", labels={"mode": "full"}, dataset=dataset)
        others = frozenset(table.columns) - {"macro_f1"}
        rows.insert(0, TableRow("backbone", ("Backbone only",), plain, undefined=others))
    undefined = frozenset({"cd_gap", "macro_f1", "task_metric"})
    rows += control_rows(Query(label=FULL, dataset=dataset), ", full method's runs", undefined)
    return build_comparison(
        name, ablation.title, measured, table, row_labels=("variant",), rows=rows,
        columns=[_ablation_column(key) for key in table.columns], notes=(MEAN_NOTE,), remedy=benchmark_remedy(ablation.grid),
    )  # fmt: skip


def _keep_comparable(measured: Measured, variants: set[str]) -> Measured:
    """Only hosts and cohorts that have a variant besides the full method."""
    return measured.keep_places(
        measured.runs[measured.runs.label.isin(variants - {FULL})], ["cohort", "host"]
    )


def _ablation_column(key: str) -> TableColumn:
    """Task metrics come from the prediction, the rest from the S/N/R of the evidence."""
    column = Column(key, HEADERS[key], key)
    if key in ("macro_f1", "task_metric"):
        return TableColumn(column, {"source": "task", "labels": {"mode": "soft"}})
    return TableColumn(column, {"source": EVIDENCE.source, "labels": EVIDENCE.labels})


PREFILTER = "prefilter"
COST = Query(source="cost", encoder=ANY_ENCODER)
MODES = ("full", "soft", "discrete", PREFILTER, "attention", "occlusion")
"""Rows of the paper; the diagnostic calls them the same."""
CLOSED_FORM, GRADIENTS = "occlusion_closed_form", "integrated_gradients"
OWN_MODES = {
    CLOSED_FORM: "Occlusion in closed form",
    GRADIENTS: "Integrated gradients",
    "random": "Random-k (control)",
    "oracle": "Oracle, truth first (control)",
}
"""Rows that the paper does not have."""
TIMED_ENCODERS = {"efficientnet_lite0": "EfficientNet-Lite0", "vit_s": "ViT-S"}
TIMES_OF = {
    "extraction_time": "Feature extraction",
    "aggregation_time": "MIL aggregation",
    "end_to_end_time": "End-to-end time",
    "peak_memory": "Peak memory",
    "explained_time": "Aggregation with finding the subset",
}
COST_NOTE = (
    "MIL aggregation of ours is one prediction from a known subset; what finding the subset adds "
    "is a column of its own, which the paper counts under aggregation for occlusion. Encoding and "
    "the prefilter are timed by 'gcemil prefilter --measure'; the columns that name an encoder "
    "are computed from its time per patch, with finding the subset."
)


def cost_table(measured: Measured, paper: PaperFigures) -> Table:
    """What each way to predict costs."""
    table = paper.table("cost")
    names = {row.key: row.name for row in table.rows} | OWN_MODES
    measured = keep_costed(measured)
    rows = [
        TableRow(
            key,
            (names[key],),
            COST.where(labels={"mode": key}),
            comparison=None,
            undefined=_undefined_costs(key),
        )
        for key in (*MODES, *OWN_MODES)
    ]
    columns = [
        TableColumn(Column(key, header, key, better="lower"), decimals=2, unit=TIMES)
        for key, header in TIMES_OF.items()
    ]
    columns += [
        TableColumn(
            Column(
                f"end_to_end.{encoder}", f"End-to-end, {title}", "end_to_end_time", better="lower"
            ),
            {"labels": {"encoder": encoder}},
            paper="",
            decimals=2,
            unit=TIMES,
        )
        for encoder, title in TIMED_ENCODERS.items()
    ]
    columns += [
        TableColumn(Column("patch_ratio", "Patch ratio", "patch_ratio")),
        TableColumn(Column("relative_utility", "Relative Macro-F1 or C-index", "relative_utility")),
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
        remedy=f"gcemil prefilter RUN SLIDES --measure, then {benchmark_remedy('reduced_large')}",
        reason="encoding and the prefilter are timed on slides, which simulated features do not have",
    )


def keep_costed(measured: Measured) -> Measured:
    """The runs whose prefilter was timed, if any: modes are compared on the same slides."""
    rows = measured.rows
    return measured.keep_places(
        rows[(rows.source == COST.source) & (rows.by_mode == PREFILTER)], RUN
    )


def _undefined_costs(mode: str) -> frozenset[str]:
    """Times that a prefilter, which searches while it encodes, or a control cannot have."""
    if mode == PREFILTER:
        return frozenset({"explained_time"})
    if mode in CONTROLS:
        return frozenset({*TIMES_OF, *(f"end_to_end.{encoder}" for encoder in TIMED_ENCODERS)})
    return frozenset()


CAPACITY_COLUMNS = (
    Column("evidence", "Supporting evidence"),
    Column("value", "Key value"),
    Column("interpretation", "Interpretation"),
)
CAPACITY_TEXTS = {
    "soft_runtime": (
        "diagnostic cost, mode soft",
        "Above 1 is what the wrapper adds to one pass of the host",
    ),
    "discrete_cost": ("diagnostic cost, mode discrete", "Below 1 is what a known subset saves"),
    "capacity_alone": (
        "grounding table, random and shuffled anchors",
        "The same capacity without meaning",
    ),
    "grounding_quality": (
        "grounding table, generic anchors to the full method",
        "Meaning at the same capacity",
    ),
}
"""Where our figure of a question comes from, and how it is read."""
FULL_WIDTH, N_OUTPUTS = 1024, 2
ADDED_PARAMETERS = 21
"""What the default recipe adds to any host: 3 weights of the score, 8 anchors x 2 classes, 2 class
biases. A test counts them.
"""


def capacity_table(measured: Measured, paper: PaperFigures) -> Table:
    """Parameters and time that the wrapper adds."""
    table = paper.table("capacity_overhead")
    values = {
        "soft_runtime": _cost_cell(measured, "soft", {"end_to_end_time": "end-to-end", "aggregation_time": "MIL aggregation", "peak_memory": "peak memory"}),
        "discrete_cost": _cost_cell(measured, "discrete", {"aggregation_time": "MIL aggregation", "peak_memory": "peak memory"}),
        "capacity_alone": _grounding_cell(measured, ("random", "shuffled"), "/"),
        "grounding_quality": _grounding_cell(measured, ("generic", "full"), "→"),
    }  # fmt: skip
    mark = our_origin(measured)
    lines = []
    for row in table.rows:
        evidence, reading = CAPACITY_TEXTS[row.key]
        lines.append(paper_line(table, row.key, (row.name, PAPER_MARK), table.columns))
        lines.append(
            Line((row.name, mark), "ours", (Cell(evidence), values[row.key], Cell(reading)))
        )
    for host in list_paper_hosts():
        if (own := HOSTS[host].parameters) is not None:
            text = f"{own:,} + {ADDED_PARAMETERS:,} ({100 * ADDED_PARAMETERS / own:+.4f} %)"
            value, reading = (
                Cell(text, float(ADDED_PARAMETERS)),
                "Own parameters and what the default recipe adds",
            )
            labels = (f"Parameters of {host}", "ours (counted)")
            lines.append(Line(labels, "ours", (Cell("counted"), value, Cell(reading))))
    return make_table(
        "capacity", "added capacity and overhead", table, ("question",), CAPACITY_COLUMNS, lines, legend=legend(measured),
        notes=(
            f"Parameters at {FULL_WIDTH}-d features and {N_OUTPUTS} outputs, default recipe; the "
            "evidence head, which is fitted after training, is not among them. The paper gives "
            "none.",
        ),
        remedy=diagnose_remedy("cost"), reason="the results have no cost diagnostic, or no grounding variants",
    )  # fmt: skip


def _cost_cell(measured: Measured, mode: str, metrics: dict[str, str]) -> Cell:
    """Those of several ratios of one mode of inference that were measured, in one cell."""
    measured = keep_costed(measured)
    found = {
        title: estimate(select_values(measured, COST.where(metric=metric, labels={"mode": mode})))
        for metric, title in metrics.items()
    }
    parts = [f"{title} {one.mean:.2f}{TIMES}" for title, one in found.items() if one is not None]
    return Cell("; ".join(parts)) if parts else MISSING


def _grounding_cell(measured: Measured, rows: Sequence[str], between: str) -> Cell:
    """C-D gap and degradation of some grounding variants, on the hosts and cohorts that have them."""
    measured = _keep_comparable(measured, set(GROUNDINGS.values()))
    parts = []
    for metric, title in (
        ("cd_gap", "C-D gap"),
        ("complement_degradation", "complement degradation"),
    ):
        query = EVIDENCE.where(metric=metric)
        found = [
            estimate(select_values(measured, query.where(label=GROUNDINGS[row]))) for row in rows
        ]
        numbers = [f"{one.mean:.3f}" for one in found if one is not None]
        if len(numbers) < len(rows):
            return MISSING
        parts.append(f"{title} {between.join(numbers)}")
    return Cell("; ".join(parts))
