"""Does the evidence stay: across seeds of training, as in the paper, and under perturbed bags."""

from __future__ import annotations

from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import PaperFigures
from gcemil.benchmark.tables.compare import ColumnAsk, RowAsk, compared
from gcemil.benchmark.tables.layout import Column, Table
from gcemil.benchmark.tables.query import Query
from gcemil.benchmark.tables.rules import RULES, rule_name

SEEDS = "seeds"
SHOWN = ("attention", "gradient", "occlusion", "gce_soft_thresholded", "gce_discrete", "random", "oracle")
PAPER_KEYS = {"gce_soft_thresholded": "gce_soft"}


def stability(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("stability")
    kinds = [SEEDS, *sorted(perturbations(measured) - {SEEDS})]
    rows = [
        RowAsk(
            PAPER_KEYS.get(key, key) if kind == SEEDS else "",
            (kind, rule_name(PAPER_KEYS.get(key, key), table, rule)),
            Query(source="stability", labels={**rule.labels, "perturbation": kind}),
            contest=None if rule.is_control else kind,
            undefined=frozenset({"full_kept_gap" if rule.is_gated else "gap"}),
        )
        for kind in kinds
        for key, rule in ((key, RULES[key]) for key in SHOWN)
    ]
    return compared(
        "stability",
        "evidence across seeds and under perturbed bags",
        measured,
        table,
        stub=("perturbation", "rule"),
        rows=rows,
        columns=[
            ColumnAsk(Column("jaccard", "Jaccard", "jaccard"), {"metric": "jaccard"}),
            ColumnAsk(Column("prediction_flip", "Prediction flip", "prediction_flip"), {"metric": "prediction_flip"}),
            ColumnAsk(Column("gap", "C-D gap", "cd_gap"), {"metric": "cd_gap"}),
            ColumnAsk(Column("full_kept_gap", "Full-kept gap", "full_kept_gap"), {"metric": "full_kept_gap"}, paper=""),
        ],
    )  # fmt: skip


def perturbations(measured: Measured) -> set[str]:
    """Kinds of perturbation that any run was put to."""
    return {
        row.labels["perturbation"]
        for run in measured.runs
        for _, row in run.rows("stability")
        if "perturbation" in row.labels
    }
