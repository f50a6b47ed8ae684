"""Subset rules of one size against each other: intervention, same budget (short and full), post-hoc explanations.

The paper prints one gap per rule, although only gates have a C-D gap. Here it is that of the gates; what every rule has,
the full-kept gap, is a column of its own, and the two never stand in one line: GCE has a line for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import TIMES, PaperFigures, PaperTable
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.query import Query
from gcemil.benchmark.tables.rules import RULES, Rule, of_wrapped_host, rule_name

BUDGET = "0.05"
GAPS_NOTE = (
    "Gap: the paper's column; of ours, the C-D gap, which only gates have. Full-kept gap: every rule has it."
)
RIVALS_NOTE = "Rules are asked of the plain host, GCE of the wrapped one; random and oracle are controls."
SUFFICIENCY = "evidence_sufficiency"


def intervention(measured: Measured, paper: PaperFigures) -> Table:
    """What keeping and removing does to the task metric, mean over all cohorts and hosts."""
    table = paper.table("causal")
    rows = rule_rows(
        table,
        Query(source="budget", labels={"budget": BUDGET}),
        ("random", "attention", "gradient", "gce_discrete", "oracle"),
    )
    columns = [
        # Kept, the task metric should not fall; removed, it should: the signs are the paper's.
        ColumnAsk(Column("keep_only", "Keep only Δ", "keep_only_drop", better="higher"), {"metric": "keep_only_drop"}, scale=-1.0, signed=True),
        ColumnAsk(Column("remove", "Remove Δ", "complement_degradation", better="lower"), {"metric": "complement_degradation"}, scale=-1.0, signed=True),
    ]  # fmt: skip
    return compared("intervention", "change of the task metric by keeping and by removing a subset", measured, table,
                    stub=("rule",), rows=rows, columns=columns, notes=(RIVALS_NOTE,))  # fmt: skip


def same_budget_short(measured: Measured, paper: PaperFigures) -> Table:
    rules = ("random", "attention", "gradient", "occlusion", "gce_discrete", "oracle")
    return same_budget_table("same_budget_short", measured, paper.table("same_budget_main"), rules)


def same_budget(measured: Measured, paper: PaperFigures) -> Table:
    rules = (
        "random",
        "attention",
        "attention_smoothed",
        "gradient",
        "integrated_gradients",
        "occlusion",
        "gce_soft",
        "gce_discrete",
        "oracle",
    )
    return same_budget_table("same_budget", measured, paper.table("same_budget"), rules)


def same_budget_table(name: str, measured: Measured, table: PaperTable, rules: Sequence[str]) -> Table:
    base = Query(source="budget", dataset="bracs", labels={"budget": BUDGET})
    columns = [kept_metric("macro_f1", "Macro-F1"), *gaps(), necessity()]
    if SUFFICIENCY in table.columns:
        columns.append(kept_metric(SUFFICIENCY, "Evid. suff."))
    return compared(
        name, "subset rules at 5 % of the patches, BRACS", measured, table, stub=("rule",),
        rows=rule_rows(table, base, rules, wrapped=("attention", "occlusion")), columns=columns,
        notes=(GAPS_NOTE, RIVALS_NOTE, "Macro-F1 and evidence sufficiency of a subset are one figure, M(X_S), in ours."),
    )  # fmt: skip


def posthoc(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("explain")
    rules = ("attention", "clam_attention", "gradient", "integrated_gradients", "occlusion", "contribution", "single",
             "lrp", "gce_discrete", "random", "oracle")  # fmt: skip
    columns = [
        kept_metric("keep_only_macro_f1", "Keep-only Macro-F1 or C-index"),
        ColumnAsk(Column("remove_drop", "Remove drop", "complement_degradation"), {"metric": "complement_degradation"}),
        *gaps(),
        necessity(),
        kept_metric(SUFFICIENCY, "Evid. suff."),
        ColumnAsk(Column("runtime", "Runtime", "runtime_ratio"), {"metric": "runtime_ratio"}, decimals=2, unit=TIMES),
    ]  # fmt: skip
    return compared(
        "posthoc", "explanations made after training, mean over cohorts", measured, table, stub=("rule",),
        rows=rule_rows(table, Query(source="posthoc"), rules), columns=columns,
        notes=(GAPS_NOTE, RIVALS_NOTE, "Of ours, remove drop and complement degradation are one figure, M(X) - M(X_notS)."),
    )  # fmt: skip


def rule_rows(
    table: PaperTable, base: Query, rules: Sequence[str], *, wrapped: Sequence[str] = ()
) -> list[RowAsk]:
    """One row per rule; where a rule has gates, a second one for its other gap."""
    rows = [row for key in rules for row in rows_of(key, RULES[key], table, base)]
    return rows + [
        row for key in wrapped for row in rows_of(f"wrapped.{key}", of_wrapped_host(RULES[key]), table, base)
    ]


def rows_of(key: str, rule: Rule, table: PaperTable, base: Query) -> list[RowAsk]:
    name, query = rule_name(key, table, rule), base.narrowed(labels=rule.labels)
    contest = None if rule.is_control else "all"
    undefined = frozenset({"gap", "runtime"} if rule.is_control else {"gap"})
    # The soft row of the paper is the prediction under the gates, not one from a subset.
    instead = {"macro_f1": "soft_metric"} if key == "gce_soft" else {}
    row = RowAsk(key, (name,), query, contest=contest, undefined=undefined, instead=instead)
    if not rule.is_gated or "gap" not in table.columns:
        return [row]
    others = frozenset({*table.columns, "full_kept_gap"} - {"gap"})
    return [row, RowAsk("", (f"{name}: gates against evidence",), query, contest=None, undefined=others)]


def kept_metric(key: str, header: str) -> ColumnAsk:
    return ColumnAsk(Column(key, header, SUFFICIENCY), {"metric": SUFFICIENCY})


def necessity() -> ColumnAsk:
    metric = "complement_degradation"
    return ColumnAsk(Column(metric, "Compl. degr.", metric), {"metric": metric})


def gaps() -> list[ColumnAsk]:
    return [
        ColumnAsk(Column("gap", "Gap", "cd_gap"), {"metric": "cd_gap"}),
        ColumnAsk(Column("full_kept_gap", "Full-kept gap", "full_kept_gap"), {"metric": "full_kept_gap"}, paper=""),
    ]  # fmt: skip
