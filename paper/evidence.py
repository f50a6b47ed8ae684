"""Is the evidence sufficient, necessary, recoverable, stable and in place? Hosts and subset rules
side by side.

The paper prints one gap per rule, although only gates have a C-D gap. Here it is that of the gates;
what every rule has, the full-kept gap, is a column of its own, and the two never stand in one line:
GCE has a line for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from gcemil.metrics import FAILURE_TYPES, METRICS
from gcemil.rules import find_rule
from gcemil.tables import Cell, Column, Line, Table
from paper.comparison import (
    TIMES,
    PaperFigures,
    PaperTable,
    TableColumn,
    TableRow,
    benchmark_remedy,
    build_comparison,
    diagnose_remedy,
)
from paper.measured import RUN, Labels, Measured, Query
from paper.prediction import host_name, list_hosts


@dataclass(frozen=True)
class PaperRule:
    """A row of the paper that is a subset rule."""

    name: str
    names: tuple[str, ...]
    """Its names in the catalogue (gcemil/rules.py)."""
    network: str = "plain"

    @property
    def labels(self) -> Labels:
        return {"rule": self.names, "network": self.network}

    @property
    def is_gated(self) -> bool:
        """Made from gates: it has a C-D gap."""
        return find_rule(self.names[0]).is_gated

    @property
    def is_control(self) -> bool:
        return find_rule(self.names[0]).is_control


OCCLUSION = ("occlusion", "occlusion_blocks")
SALIENCY = ("saliency", "gradient", "gradient_saliency")

PAPER_RULES: dict[str, PaperRule] = {
    "random": PaperRule("Random-k", ("random",)),
    "attention": PaperRule("Attention top-k", ("attention",)),
    "attention_smoothed": PaperRule("Attention top-k, half smoothed", ("attention_smoothed",)),
    "clam_attention": PaperRule("CLAM attention", ("clam_attention",)),
    "gradient": PaperRule("Gradient saliency", SALIENCY),
    "integrated_gradients": PaperRule("Integrated gradients", ("integrated_gradients",)),
    "occlusion": PaperRule("Occlusion", OCCLUSION),
    "contribution": PaperRule("Signed contribution", ("contribution",)),
    "single": PaperRule("Keep-one", ("single", "single_blocks")),
    "lrp": PaperRule("LRP", ("lrp",)),
    "oracle": PaperRule("Oracle (truth first)", ("oracle",)),
    "gce_soft": PaperRule("GCE soft", ("gce_soft",), "wrapped"),
    "gce_soft_thresholded": PaperRule("GCE soft thresholded", ("soft_thresholded",), "wrapped"),
    "gce_discrete": PaperRule("GCE discrete", ("evidence", "gce_discrete"), "wrapped"),
}


def of_wrapped_host(rule: PaperRule) -> PaperRule:
    return replace(rule, name=f"{rule.name}, wrapped host", network="wrapped")


def rule_name(key: str, paper: PaperTable, rule: PaperRule) -> str:
    """As the paper prints it, else our own name."""
    row = paper.row(key)
    return row.name if row else rule.name


SNR_HEADERS = {
    "cd_gap": "C-D gap",
    "complement_degradation": "Compl. degr.",
    "evidence_sufficiency": "Evid. suff.",
}
EVIDENCE = Query(source="snr", labels={"rule": "evidence", "class": "all"})
"""The recovered evidence, over all classes."""
CONTROL_ROWS: dict[str, tuple[str, Labels]] = {
    "control.attention": ("attention of the plain host", {"rule": "attention", "network": "plain"}),
    "control.random": ("random patches", {"rule": "random", "network": "wrapped"}),
    "control.oracle": ("oracle (truth first)", {"rule": "oracle", "network": "wrapped"}),
}
"""The last rows of tables about the evidence: as many patches by other rules."""


def control_rows(base: Query, suffix: str, undefined: frozenset[str]) -> list[TableRow]:
    """The three controls, which compete with nothing."""
    return [
        TableRow(
            key,
            (f"{title}{suffix}",),
            base.where(labels=labels),
            comparison=None,
            undefined=undefined,
        )
        for key, (title, labels) in CONTROL_ROWS.items()
    ]


def diagnostics_bracs_table(measured: Measured, paper: PaperFigures) -> Table:
    columns = [
        TableColumn(Column(metric, header, metric), {"dataset": "bracs"})
        for metric, header in SNR_HEADERS.items()
    ]
    return snr_table(
        "diagnostics_bracs", "BRACS", measured, paper.table("diagnostics_bracs"), columns
    )


def diagnostics_table(measured: Measured, paper: PaperFigures) -> Table:
    columns = [
        TableColumn(
            Column(f"{dataset}.{metric}", header, metric, group=dataset.upper()),
            {"dataset": dataset},
        )
        for dataset in ("bracs", "nsclc", "panda")
        for metric, header in SNR_HEADERS.items()
    ]
    return snr_table("diagnostics", "three datasets", measured, paper.table("diagnostics"), columns)


def snr_table(
    name: str, where: str, measured: Measured, table: PaperTable, columns: Sequence[TableColumn]
) -> Table:
    """The hosts, and the same number of patches by attention, by chance and by the truth."""
    rows = [
        TableRow(host, (f"{host_name(host)}+GCE",), EVIDENCE.where(host=host))
        for host in list_hosts(measured)
    ]
    gapless = frozenset(one.column.key for one in columns if one.column.metric == "cd_gap")
    rows += control_rows(EVIDENCE, ", mean of hosts", gapless)
    return build_comparison(
        name, f"S/N/R of the recovered evidence, {where}", measured, table, row_labels=("method",), rows=rows, columns=columns,
        remedy=diagnose_remedy("snr"),
    )  # fmt: skip


BUDGET = "0.05"
GAPS_NOTE = "Gap: the paper's column; of ours, the C-D gap, which only gates have. Full-kept gap: every rule has it."
RIVALS_NOTE = (
    "Rules are asked of the plain host, GCE of the wrapped one; random and oracle are controls."
)
SUFFICIENCY = "evidence_sufficiency"
SUFFICIENCY_COLUMN = TableColumn(Column(SUFFICIENCY, SNR_HEADERS[SUFFICIENCY], SUFFICIENCY))
NECESSITY_COLUMN = TableColumn(
    Column(
        "complement_degradation", SNR_HEADERS["complement_degradation"], "complement_degradation"
    )
)
FULL_KEPT_COLUMN = TableColumn(Column("full_kept_gap", "Full-kept gap", "full_kept_gap"), paper="")
GAP_COLUMNS = (TableColumn(Column("gap", "Gap", "cd_gap")), FULL_KEPT_COLUMN)


def intervention_table(measured: Measured, paper: PaperFigures) -> Table:
    """What keeping and removing does to the task metric, mean over all cohorts and hosts."""
    table = paper.table("causal")
    measured = keep_common_runs(
        measured, "budget", ("random", "attention", "gradient", "gce_discrete")
    )
    rows = rule_rows(
        table,
        Query(source="budget", labels={"budget": BUDGET}),
        ("random", "attention", "gradient", "gce_discrete", "oracle"),
    )
    columns = [
        # Kept, the task metric should not fall; removed, it should: the signs are the paper's.
        TableColumn(Column("keep_only", "Keep only Δ", "keep_only_drop", better="higher"), scale=-1.0, signed=True),
        TableColumn(Column("remove", "Remove Δ", "complement_degradation", better="lower"), scale=-1.0, signed=True),
    ]  # fmt: skip
    return build_comparison(
        "intervention", "change of the task metric by keeping and by removing a subset", measured, table, row_labels=("rule",),
        rows=rows, columns=columns, notes=(RIVALS_NOTE,), remedy=diagnose_remedy("budget"),
    )  # fmt: skip


RULES_AT_BUDGET = {
    "same_budget_short": (
        "same_budget_main", ("random", "attention", "gradient", "occlusion", "gce_discrete", "oracle"),
    ),
    "same_budget": (
        "same_budget",
        ("random", "attention", "attention_smoothed", "gradient", "integrated_gradients", "occlusion", "gce_soft",
         "gce_discrete", "oracle"),
    ),
}  # fmt: skip
"""The paper's table, and its rules."""


def rules_at_budget_table(measured: Measured, paper: PaperFigures, *, name: str) -> Table:
    """Subset rules with the same number of patches."""
    source, rules = RULES_AT_BUDGET[name]
    table = paper.table(source)
    base = Query(source="budget", dataset="bracs", labels={"budget": BUDGET})
    measured = keep_common_runs(measured, "budget", rules)
    columns = [
        TableColumn(Column("macro_f1", "Macro-F1", SUFFICIENCY)),
        *GAP_COLUMNS,
        NECESSITY_COLUMN,
    ]
    if SUFFICIENCY in table.columns:
        columns.append(SUFFICIENCY_COLUMN)
    return build_comparison(
        name, "subset rules at 5 % of the patches, BRACS", measured, table, row_labels=("rule",),
        rows=rule_rows(table, base, rules, wrapped=("attention", "occlusion")), columns=columns,
        notes=(GAPS_NOTE, RIVALS_NOTE, "Macro-F1 and evidence sufficiency of a subset are one figure, M(X_S), in ours."),
        remedy=diagnose_remedy("budget"),
    )  # fmt: skip


def posthoc_table(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("explain")
    rules = ("attention", "clam_attention", "gradient", "integrated_gradients", "occlusion", "contribution", "single",
             "lrp", "gce_discrete", "random", "oracle")  # fmt: skip
    columns = [
        TableColumn(Column("keep_only_macro_f1", "Keep-only Macro-F1 or C-index", SUFFICIENCY)),
        TableColumn(Column("remove_drop", "Remove drop", "complement_degradation")),
        *GAP_COLUMNS,
        NECESSITY_COLUMN,
        SUFFICIENCY_COLUMN,
        TableColumn(Column("runtime", "Runtime", "runtime_ratio"), decimals=2, unit=TIMES),
    ]
    return build_comparison(
        "posthoc", "explanations made after training, mean over cohorts", measured, table, row_labels=("rule",),
        rows=rule_rows(table, Query(source="posthoc"), rules), columns=columns,
        notes=(GAPS_NOTE, RIVALS_NOTE, "Of ours, remove drop and complement degradation are one figure, M(X) - M(X_notS)."),
        remedy=diagnose_remedy("posthoc"),
        reason="not every rule can explain every host, and the diagnostic is not in every grid",
    )  # fmt: skip


def keep_common_runs(measured: Measured, source: str, rules: Sequence[str]) -> Measured:
    """The wrapped runs that have all rules, if any: rules are compared on the same hosts."""
    wanted = [PAPER_RULES[rule].names for rule in rules if not PAPER_RULES[rule].is_control]
    rows = measured.rows
    wrapped = rows[(rows.label == "gce") & (rows.source == source)]
    complete = wrapped.groupby(RUN).by_rule.agg(
        lambda own: all(set(own) & set(names) for names in wanted)
    )
    runs = pd.MultiIndex.from_frame(rows[RUN])
    return (
        measured.keep((rows.label != "gce") | runs.isin(complete.index[complete]))
        if complete.any()
        else measured
    )


def rule_rows(
    table: PaperTable, base: Query, rules: Sequence[str], *, wrapped: Sequence[str] = ()
) -> list[TableRow]:
    """One row per rule; where a rule has gates, a second one for its other gap."""
    rows = [row for key in rules for row in lines_of_rule(key, PAPER_RULES[key], table, base)]
    return rows + [
        row
        for key in wrapped
        for row in lines_of_rule(f"wrapped.{key}", of_wrapped_host(PAPER_RULES[key]), table, base)
    ]


def lines_of_rule(key: str, rule: PaperRule, table: PaperTable, base: Query) -> list[TableRow]:
    name, query = rule_name(key, table, rule), base.where(labels=rule.labels)
    comparison = None if rule.is_control else "all"
    undefined = frozenset({"gap", "runtime"} if rule.is_control else {"gap"})
    # The soft row of the paper is the prediction under the gates, not one from a subset.
    instead = {"macro_f1": "soft_metric"} if key == "gce_soft" else {}
    row = TableRow(key, (name,), query, comparison=comparison, undefined=undefined, instead=instead)
    if not rule.is_gated or "gap" not in table.columns:
        return [row]
    others = frozenset({*table.columns, "full_kept_gap"} - {"gap"})
    return [
        row,
        TableRow(
            "", (f"{name}: gates against evidence",), query, comparison=None, undefined=others
        ),
    ]


SUBSET_SIZES = ("8", "16", "32")
POLICIES = {
    "prefix": ("sufficient_prefix", "plain", "all"),
    "attention": ("attention", "plain", "all"),
    "random": ("random", "plain", None),
    "evidence": ("evidence", "wrapped", "all"),
    "oracle": ("oracle", "plain", None),
}
"""Row key: rule and network of the finding, and the comparison its line takes part in."""


def minimal_subsets_table(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("minimal_subset_main")
    base = Query(source="subsets", dataset="bracs", host="abmil")
    rows = [
        TableRow(
            f"{k}.{policy}",
            (
                k,
                printed.name.partition(" · ")[2]
                if (printed := table.row(f"{k}.{policy}"))
                else rule,
            ),
            base.where(labels={"rule": rule, "network": network, "k": k}),
            comparison=k if comparison else None,
        )
        for k in SUBSET_SIZES
        for policy, (rule, network, comparison) in POLICIES.items()
    ]
    columns = [
        TableColumn(Column("subsets_per_slide", "Subsets/slide", "subsets_per_slide"), decimals=4),
        TableColumn(
            Column("slides_with_2", "Slides ≥ 2 (%)", "two_subsets_share"), decimals=2, scale=100.0
        ),
        TableColumn(
            Column("slides_with_3", "Slides ≥ 3 (%)", "three_subsets_share"),
            decimals=2,
            scale=100.0,
        ),
        TableColumn(Column("keep_only_drop", "Keep-only drop", "kept_output_drop"), decimals=4),
    ]
    columns += [
        TableColumn(
            Column(f"remove_union_{j}", f"Remove-union-{j}", f"remove_union_{j}"), decimals=4
        )
        for j in (1, 2, 3)
    ]
    return build_comparison(
        "minimal_subsets",
        "disjoint sufficient subsets of k patches, ABMIL on BRACS",
        measured,
        table,
        row_labels=("k", "policy"),
        rows=rows,
        columns=columns,
        remedy=diagnose_remedy("subsets"),
        notes=(
            "Ours are test slides; attention, prefix, random and oracle are those of the plain "
            "host.",
        ),
    )


SEEDS = "seeds"
STABILITY_RULES = (
    "attention",
    "gradient",
    "occlusion",
    "gce_soft_thresholded",
    "gce_discrete",
    "random",
    "oracle",
)
STABILITY_PAPER_KEYS = {"gce_soft_thresholded": "gce_soft"}


def stability_table(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("stability")
    kinds = [SEEDS, *sorted(perturbations(measured) - {SEEDS})]
    rows = [
        TableRow(
            STABILITY_PAPER_KEYS.get(key, key) if kind == SEEDS else "",
            (kind, rule_name(STABILITY_PAPER_KEYS.get(key, key), table, rule)),
            Query(source="stability", labels={**rule.labels, "perturbation": kind}),
            comparison=None if rule.is_control else kind,
            undefined=frozenset({"full_kept_gap" if rule.is_gated else "gap"}),
        )
        for kind in kinds
        for key, rule in ((key, PAPER_RULES[key]) for key in STABILITY_RULES)
    ]
    columns = [
        TableColumn(Column("jaccard", "Jaccard", "jaccard")),
        TableColumn(Column("prediction_flip", "Prediction flip", "prediction_flip")),
        TableColumn(Column("gap", "C-D gap", "cd_gap")),
        FULL_KEPT_COLUMN,
    ]
    return build_comparison(
        "stability", "evidence across seeds and under perturbed bags", measured, table, row_labels=("perturbation", "rule"),
        rows=rows, columns=columns, reason="stability needs runs of two seeds",
        remedy="gcemil diagnose RUN RUN_OF_OTHER_SEED --against HOST_RUN --only stability",
    )  # fmt: skip


def perturbations(measured: Measured) -> set[str]:
    """Kinds of perturbation that any run was put to."""
    rows = measured.rows
    return set(rows.by_perturbation[rows.source == "stability"].dropna())


LOCALISATION_COLUMNS = {
    "dice": "dice",
    "normal_specificity": "specificity",
    "froc": "froc",
    "patch_specificity": "",
    "froc_official": "",
}
"""Our metric, and the paper's column; the paper does not define its specificity."""
MAP_NOTE = (
    "The map of a host is its attention, that of GCE its evidence scores; each is thresholded on "
    "validation slides. The set is the recovered evidence, which has no threshold."
)


def localisation_table(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("camelyon_localization")
    base = Query(source="localisation", dataset="camelyon16")
    rows = []
    names = [cohort.name for cohort in measured.dataset("camelyon16")]
    ran = set(measured.runs.host[measured.runs.cohort.isin(names)])
    for host in (host for host in list_hosts(measured) if table.row(f"{host}.host") or host in ran):
        name = host_name(host)
        attention = base.where(host=host, labels={"rule": "attention", "network": "plain"})
        scores = base.where(host=host, labels={"rule": "evidence scores", "network": "wrapped"})
        found = base.where(host=host, labels={"rule": "evidence", "network": "wrapped"})
        rows += [
            TableRow(f"{host}.host", (name,), attention),
            TableRow(f"{host}.gce", (f"{name}+GCE",), scores),
            TableRow(f"{host}.delta", (f"{name} Δ",), scores, baseline=attention),
            TableRow(f"{host}.set", (f"{name}+GCE, set",), found),
        ]
    rows += [
        TableRow(f"control.{rule}", (rule,), base.where(labels={"rule": rule}), comparison=None)
        for rule in ("random", "oracle")
    ]
    columns = [
        TableColumn(Column(metric, METRICS[metric].label, metric), paper=theirs)
        for metric, theirs in LOCALISATION_COLUMNS.items()
    ]
    return build_comparison(
        "localisation", "evidence against annotated lesions, CAMELYON16", measured, table,
        row_labels=("method",), rows=rows, columns=columns, notes=(MAP_NOTE,), remedy=benchmark_remedy("localisation"),
    )  # fmt: skip


THRESHOLDS_NOTE = "The paper gives no thresholds, so its rates cannot be compared with ours; those of ours stand in each finding."


def failure_audit_table(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("failure")
    theirs = {row.key: row.name for row in table.rows}
    ours = dict.fromkeys(cohort.dataset for cohort in measured.cohorts)
    names = {**theirs, **{name: name.upper() for name in ours if name not in theirs}}
    query = Query(source="failures", labels={"rule": "evidence", "network": "wrapped"})
    rows = [
        TableRow(key, (name,), query.where(dataset=None if key == "all" else key), comparison=None)
        for key, name in names.items()
    ]
    rows += control_rows(query, ", all datasets", frozenset({"slides"}))
    columns = [TableColumn(Column("slides", "Slides", "audited_slides"), decimals=0)]
    columns += [
        TableColumn(Column(kind, f"{words} (%)", f"{kind}_share"), decimals=1, scale=100.0)
        for kind, words in FAILURE_TYPES.items()
    ]
    made = build_comparison(
        "failure_audit",
        "slides that fail, by kind of failure",
        measured,
        table,
        row_labels=("dataset",),
        rows=rows,
        columns=columns,
        remedy=diagnose_remedy("failures"),
        notes=(
            THRESHOLDS_NOTE,
            "Ours are means over the hosts that were audited; 'All' is the mean over datasets, and "
            "the sum of their slides.",
        ),
    )
    return replace(made, lines=tuple(sum_slides(made.lines, theirs["all"])))


def sum_slides(lines: Sequence[Line], all_name: str) -> Iterator[Line]:
    """The lines, with the number of slides of our line about all datasets as their sum."""
    ours = [line for line in lines if line.origin == "ours" and line.row_labels[0] != all_name]
    total = sum(round(line.cells[0].value) for line in ours if line.cells[0].value is not None)
    for line in lines:
        if line.origin == "ours" and line.row_labels[0] == all_name and total:
            yield replace(line, cells=(Cell(str(total), float(total)), *line.cells[1:]))
        else:
            yield line
