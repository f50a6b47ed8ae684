"""What the wrapper adds: the paper's questions with our figures, and parameters counted on the hosts themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from gcemil.bags.simulated.sizes import SIZES
from gcemil.benchmark.measured import Measured
from gcemil.benchmark.paper_figures import TIMES, PaperFigures
from gcemil.benchmark.tables.ablation import GROUNDINGS, comparable
from gcemil.benchmark.tables.compare import PAPER_MARK, legend, our_mark, paper_cell
from gcemil.benchmark.tables.host_diagnostics import EVIDENCE
from gcemil.benchmark.tables.layout import MISSING, Cell, Column, Line, Table
from gcemil.benchmark.tables.query import Query, estimate, values
from gcemil.config import EvidenceSettings
from gcemil.evidence.anchors import AnchorBank
from gcemil.hosts.table import HOSTS, create_host
from gcemil.model import GceMil

COLUMNS = (Column("value", "Key value"),)
N_OUTPUTS = 2


def capacity(measured: Measured, paper: PaperFigures) -> Table:
    table = paper.table("capacity_overhead")
    answers = {
        "soft_runtime": costs(measured, "soft", {"aggregation_time": "MIL aggregation", "peak_memory": "peak memory"}),
        "discrete_cost": costs(measured, "discrete", {"aggregation_time": "MIL aggregation", "peak_memory": "peak memory"}),
        "capacity_alone": grounding(measured, ("random", "shuffled"), "/"),
        "grounding_quality": grounding(measured, ("generic", "full"), "→"),
    }  # fmt: skip
    mark = our_mark(measured)
    lines = []
    for row in table.rows:
        lines.append(Line((row.name, PAPER_MARK), "paper", (paper_cell(table.cell(row.key, "value")),)))
        lines.append(Line((row.name, mark), "ours", (answers[row.key],)))
    lines += [
        Line((f"Parameters of {host}", "ours (counted)"), "ours", (parameter_cell(*found),))
        for host, found in parameter_counts().items()
    ]
    width = SIZES["full"].feature_dim
    return Table(
        "capacity", "added capacity and overhead", table.label, ("question", "figures"), COLUMNS, tuple(lines),
        legend=legend(measured),
        notes=(f"Parameters at {width}-d features and {N_OUTPUTS} outputs, default recipe with a text bank; the paper gives none.",),
    )  # fmt: skip


def costs(measured: Measured, mode: str, metrics: dict[str, str]) -> Cell:
    """Several ratios of one mode of inference in one cell."""
    found = [
        estimate(values(measured, Query(metric, source="cost", labels={"mode": mode}))) for metric in metrics
    ]
    return joined([
        None if one is None else f"{title} {one.mean:.2f}{TIMES}" for title, one in zip(metrics.values(), found, strict=True)
    ])  # fmt: skip


def grounding(measured: Measured, rows: Sequence[str], between: str) -> Cell:
    """C-D gap and degradation of some grounding variants, on the hosts and cohorts that have them."""
    measured = comparable(measured, set(GROUNDINGS.values()))
    parts = []
    for metric, title in (("cd_gap", "C-D gap"), ("complement_degradation", "complement degradation")):
        query = EVIDENCE.narrowed(metric=metric)
        found = [estimate(values(measured, query.narrowed(label=GROUNDINGS[row]))) for row in rows]
        numbers = [f"{one.mean:.3f}" for one in found if one is not None]
        parts.append(f"{title} {between.join(numbers)}" if len(numbers) == len(rows) else None)
    return joined(parts)


def joined(parts: Sequence[str | None]) -> Cell:
    return Cell("; ".join(part for part in parts if part)) if all(parts) else MISSING


@cache
def parameter_counts() -> dict[str, tuple[int, int]]:
    """Trainable parameters of every host, and those the wrapper adds."""
    size, n_anchors = SIZES["full"], EvidenceSettings().n_prototypes
    bank = AnchorBank(torch.ones(n_anchors, size.anchor_dim), ("anchor",) * n_anchors, "for counting")
    counts = {}
    for name in HOSTS:
        host = create_host(name, in_dim=size.feature_dim, n_outputs=N_OUTPUTS)
        own = sum(p.numel() for p in host.parameters() if p.requires_grad)
        wrapped = GceMil(host, bank, in_dim=size.feature_dim)
        counts[name] = own, sum(p.numel() for p in wrapped.parameters() if p.requires_grad) - own
    return counts


def parameter_cell(own: int, added: int) -> Cell:
    return Cell(f"{own:,} + {added:,} ({100 * added / own:+.1f} %)", float(added))
