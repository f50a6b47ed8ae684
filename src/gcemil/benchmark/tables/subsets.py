"""Minimal sufficient subsets: how many disjoint ones a slide has, by policy and size."""

from __future__ import annotations

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.query import Query

SIZES = ("8", "16", "32")
POLICIES = {
    "prefix": ("sufficient_prefix", "plain", "all"),
    "attention": ("attention", "plain", "all"),
    "random": ("random", "plain", None),
    "evidence": ("evidence", "wrapped", "all"),
    "oracle": ("oracle", "plain", None),
}
"""Row key: rule and network of the finding, and the contest its line takes part in."""


def minimal_subsets(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("minimal_subset_main")
    base = Query(source="subsets", dataset="bracs", host="abmil")
    rows = [
        RowAsk(
            f"{k}.{policy}",
            (k, printed.name.partition(" · ")[2] if (printed := table.row(f"{k}.{policy}")) else rule),
            base.narrowed(labels={"rule": rule, "network": network, "k": k}),
            contest=k if contest else None,
        )
        for k in SIZES
        for policy, (rule, network, contest) in POLICIES.items()
    ]
    return compared(
        "minimal_subsets",
        "disjoint sufficient subsets of k patches, ABMIL on BRACS",
        measured,
        table,
        stub=("k", "policy"),
        rows=rows,
        columns=[
            asked("subsets_per_slide", "Subsets/slide", "subsets_per_slide"),
            asked("slides_with_2", "Slides ≥ 2 (%)", "two_subsets_share", percent=True),
            asked("slides_with_3", "Slides ≥ 3 (%)", "three_subsets_share", percent=True),
            asked("keep_only_drop", "Keep-only drop", "kept_output_drop"),
            *(asked(f"remove_union_{j}", f"Remove-union-{j}", f"remove_union_{j}") for j in (1, 2, 3)),
        ],
        notes=("Ours are test slides; attention, prefix, random and oracle are those of the plain host.",),
    )


def asked(key: str, header: str, metric: str, *, percent: bool = False) -> ColumnAsk:
    return ColumnAsk(
        Column(key, header, metric),
        {"metric": metric},
        decimals=2 if percent else 4,
        scale=100.0 if percent else 1.0,
    )
