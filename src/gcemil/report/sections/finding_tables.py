"""Rows of a finding as a table: arrows and bold from the metrics, spread behind every figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from gcemil.findings import Row
from gcemil.metrics import METRICS
from gcemil.report.style import readable_name
from gcemil.rules import CONTROLS, order_rules
from gcemil.tables import Column, Line, Table, metric_cell

OWN_RULES = ("evidence", "confirmed evidence", "gce_discrete", "evidence scores")
GROUP_NAMES = {
    "task": "Task",
    "sufficiency": "Sufficiency",
    "necessity": "Necessity",
    "recoverability": "Recoverability",
    "truth": "Truth",
    "stability": "Stability",
    "size": "Size",
    "cost": "Cost",
    "guarantee": "Promise",
    "failure": "Failures",
}
RULE_HEADINGS = {"rule": "Patches chosen by", "network": "Predicted by"}
Naming = Callable[[str], str]


def finding_table(
    rows: Sequence[Row],
    labels: Mapping[str, str],
    metrics: Sequence[str],
    *,
    caption: str = "",
    notes: Sequence[str] = (),
    naming: Mapping[str, Naming] | None = None,
    grouped: bool = True,
    bold: bool = True,
    within: str = "",
) -> Table:
    """One line per row; `labels` gives headings, `naming` words for values, `within` the label whose lines compete."""
    shown = [name for name in metrics if any(row.values.get(name) is not None for row in rows)]
    words = naming or {}
    lines = []
    for row in rows:
        # The oracle knows the truth, so it competes with nothing.
        competes = bold and row.labels.get("rule") != "oracle"
        lines.append(
            Line(
                tuple(words.get(label, readable_name)(row.labels.get(label, "")) for label in labels),
                "ours",
                tuple(metric_cell(name, row.values.get(name), row.deviations.get(name)) for name in shown),
                comparison=row.labels.get(within, "") if competes else None,
                role=_find_role(row),
            )
        )
    return Table(
        name="",
        title=caption,
        label="",
        row_labels=tuple(labels.values()),
        columns=tuple(_metric_column(name, grouped=grouped) for name in shown),
        lines=tuple(lines),
        notes=tuple(notes),
    )


def _metric_column(name: str, *, grouped: bool) -> Column:
    metric = METRICS[name]
    return Column(name, metric.label, name, group=GROUP_NAMES[metric.criterion] if grouped else "")


def _find_role(row: Row) -> Literal["", "own", "control"]:
    rule = row.labels.get("rule")
    if rule in OWN_RULES and row.labels.get("network", "wrapped") == "wrapped":
        return "own"
    return "control" if rule in CONTROLS else ""


def filter_rows(rows: Sequence[Row], **labels: str) -> list[Row]:
    """The rows that carry all these labels."""
    return [row for row in rows if all(row.labels.get(name) == value for name, value in labels.items())]


def order_rows(rows: Sequence[Row]) -> list[Row]:
    """Ours first, then rivals, controls last; under each, the run's own network first."""
    rank = {rule: number for number, rule in enumerate(order_rules([row.labels["rule"] for row in rows]))}
    return sorted(rows, key=lambda row: (rank[row.labels["rule"]], row.labels["network"] != "wrapped"))
