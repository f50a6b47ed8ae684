"""Rows of a finding as a table: arrows and bold from the metrics, spread behind every figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gcemil.findings import Row
from gcemil.metrics import METRICS
from gcemil.report.html import Cell, Column, Line, Table
from gcemil.report.style import readable_name
from gcemil.rules import CONTROLS, order_rules

OWN_RULES = ("evidence", "gce_discrete", "evidence scores")
PERCENT = ("evidence_fraction", "patch_ratio", "marked_share", "certified_fraction", "guarded_fraction")
NONE = "—"
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
    blocks = {row.labels.get(within, ""): None for row in rows}
    best = {
        (block, name): best_text(name, [row for row in rows if row.labels.get(within, "") == block])
        if bold
        else None
        for block in blocks
        for name in shown
    }
    columns = [Column(heading, is_number=False) for heading in labels.values()]
    columns += [metric_column(name, grouped=grouped) for name in shown]
    lines = []
    for row in rows:
        cells = [
            Cell((naming or {}).get(label, readable_name)(row.labels.get(label, "")), is_name=True)
            for label in labels
        ]
        cells += [value_cell(name, row, best[row.labels.get(within, ""), name]) for name in shown]
        lines.append(Line(tuple(cells), kind=line_kind(row)))
    return Table(tuple(columns), tuple(lines), caption, tuple(notes))


def metric_column(name: str, *, grouped: bool = True) -> Column:
    metric = METRICS[name]
    group = GROUP_NAMES[metric.criterion] if grouped else ""
    return Column(f"{metric.label}\u00a0{metric.arrow}".strip(), meaning=metric.meaning, group=group)


def value_cell(name: str, row: Row, best: str | None) -> Cell:
    value = row.values.get(name)
    if value is None:
        return Cell(NONE, is_number=True)
    text = written(name, value)
    deviation = row.deviations.get(name)
    note = f"± {written(name, deviation)}" if deviation else ""
    return Cell(text, is_number=True, is_best=text == best and not is_control(row, "oracle"), note=note)


def best_text(name: str, rows: Sequence[Row]) -> str | None:
    """The best figure as it is written; the oracle, which knows the truth, does not compete."""
    direction = METRICS[name].direction
    found = [
        value for row in rows if not is_control(row, "oracle") and (value := row.values.get(name)) is not None
    ]
    if direction == "neither" or len(found) < 2:
        return None
    return written(name, max(found) if direction == "higher" else min(found))


def written(name: str, value: float) -> str:
    """Shares in percent, p-values with two digits, everything else with three decimals; no zero has a sign."""
    text = with_digits(name, value)
    return text.removeprefix("-") if text.startswith("-") and not text.strip("-0. %") else text


def with_digits(name: str, value: float) -> str:
    if name.endswith("_share") or name in PERCENT:
        return f"{100 * value:.1f} %"
    if name.startswith("p_"):
        return f"{value:.2g}"
    if name.endswith("_time") or name == "runtime_ratio":
        return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
    if name in ("subset_patches", "repaired_patches", "calibration_bags"):
        return f"{value:.1f}"
    return f"{value:.3f}"


def line_kind(row: Row) -> str:
    if row.labels.get("rule") in OWN_RULES and row.labels.get("network", "wrapped") == "wrapped":
        return "own"
    return "control" if any(is_control(row, rule) for rule in CONTROLS) else ""


def is_control(row: Row, rule: str) -> bool:
    return row.labels.get("rule") == rule


def rows_with(rows: Sequence[Row], **labels: str) -> list[Row]:
    """The rows that carry all these labels."""
    return [row for row in rows if all(row.labels.get(name) == value for name, value in labels.items())]


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Ours first, then rivals, controls last; under each, the run's own network first."""
    rank = {rule: number for number, rule in enumerate(order_rules([row.labels["rule"] for row in rows]))}
    return sorted(rows, key=lambda row: (rank[row.labels["rule"]], row.labels["network"] != "wrapped"))
