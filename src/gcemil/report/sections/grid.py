"""A grid of runs: every arm of every host on every cohort in one table, what the evidence changed, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from gcemil.errors import RunError
from gcemil.metrics import METRICS
from gcemil.report.html import HtmlTable, render, render_page, render_section
from gcemil.report.run_data import Record
from gcemil.report.sections.context import FigureFolder, quote_path
from gcemil.report.style import (
    EVIDENCE_COLOR,
    GROUPS,
    INK,
    MARKERS,
    MODE_NAMES,
    apply_style,
    draw_grid,
    label_rows,
    new_figure,
    shorten_label,
)
from gcemil.tables import NOT_MEASURED, Cell, Column, Line, Table, metric_cell

TASKS = (("macro_f1", "accuracy", "auc"), ("c_index",))
"""Metrics of the two tasks, the main one first; they never share a table."""
SNR = ("sufficient_share", "necessary_share", "both_share", "evidence_fraction")
SNR_LABELS = {"rule": "evidence", "network": "wrapped", "class": "all", "comparison": "full-kept"}


class HostGain(NamedTuple):
    """The metric of one host on one cohort, without and with the evidence."""

    host: str
    cohort: str
    before: float
    after: float


def render_grid_page(summary: Record, results: Path, figures: FigureFolder) -> bytes:
    """The page of a results folder."""
    try:
        cohorts, unfinished = summary["cohorts"], summary["unfinished"]
        facts = (
            f"{', '.join(summary['grids'])} · {len(summary['runs'])} trained folds · {len(cohorts)} cohorts"
        )
        simulated = [name for name, card in cohorts.items() if card.get("simulated")]
        lead = render("grid_lead.html", title=results.name, facts=facts, simulated=simulated)
        sections = [
            render_section(
                "runs",
                "Host and evidence against the host",
                figures=list(_draw_hosts(summary["means"], figures)),
                tables=[table for names in TASKS if (table := _tabulate_runs(summary, names)) is not None],
            ),
            render_section(
                "unfinished",
                "Unfinished",
                rows=[(row["key"], row["failure"] or "not run yet") for row in unfinished],
                command=f"gcemil benchmark GRID.yaml --out {quote_path(results)}",
            ),
        ]
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{results / 'summary.json'} is not the summary of a grid ({error}). Make it with 'gcemil benchmark'."
        ) from error
    return render_page(f"Grid report: {results.name}", lead, sections)


def _draw_hosts(means: Sequence[Record], figures: FigureFolder) -> Iterator[Any]:
    """One figure per task: the main metric of host and evidence over that of the host."""
    for metric, *_ in TASKS:
        if gains := list(pair_hosts(means, metric)):
            label = METRICS[metric].label
            yield figures.save(
                f"hosts_{metric}",
                draw_relative_performance(gains, label=f"{label} of host and evidence over that of the host"),
                alt=f"Relative {label} per host and cohort",
                caption="Right of the line the evidence gains, left of it it costs. One mark is one cohort, means over folds and "
                "seeds. The host is the arm without the wrapper; where the grid has none, all patches of the wrapped run.",
            )


def pair_hosts(means: Sequence[Record], metric: str) -> Iterator[HostGain]:
    """Every wrapped arm beside the host arm of its host and cohort, or beside its own all patches; ablations aside."""
    arms = {
        (row["cohort"], row["host"], row["arm"]): row["metrics"] for row in means if row["variant"] is None
    }
    for (cohort, host, arm), metrics in arms.items():
        if arm == "gce":
            plain = arms.get((cohort, host, "host"), metrics)
            before = plain.get("full", {}).get(metric)
            after = metrics.get("gce", metrics.get("soft", {})).get(metric)
            if before is not None and after is not None:
                yield HostGain(host, cohort, before["mean"], after["mean"])


def _tabulate_runs(summary: Record, names: Sequence[str]) -> HtmlTable | None:
    """Metrics of every mode and the counts of the evidence, one line per cohort, host and arm."""
    rows = [row for row in summary["means"] if any(name in row["metrics"].get("full", {}) for name in names)]
    if not rows:
        return None
    modes = [mode for mode in MODE_NAMES if any(mode in row["metrics"] for row in rows)]
    evidence = {_identify_arm(row): row["values"] for row in summary["diagnostic_means"] if _is_snr(row)}
    columns = [
        Column(f"{name} {mode}", MODE_NAMES[mode], group=f"{METRICS[name].label} ↑")
        for name in names
        for mode in modes
    ]
    columns += [Column(name, METRICS[name].label, name, group="Evidence") for name in SNR]
    lines = []
    for row in rows:
        cells = [_read_cell(row["metrics"].get(mode, {}), name) for name in names for mode in modes]
        cells += [_read_cell(evidence.get(_identify_arm(row), {}), name) for name in SNR]
        labels = (row["cohort"], row["host"], row["variant"] or row["arm"], row["runs"])
        lines.append(Line(tuple(map(str, labels)), "ours", tuple(cells)))
    notes = ["Mean ± standard deviation over folds and seeds; summary.json has every fold."]
    if not evidence:
        notes.append(
            "The grid has no S/N/R figures. Name snr under diagnostics in the grid file to count evidence that holds."
        )
    headings = ("Cohort", "Host", "Arm", "Folds")
    return HtmlTable.of(Table("", "", "", headings, tuple(columns), tuple(lines), notes=tuple(notes)))


def _identify_arm(row: Record) -> tuple[str, ...]:
    return row["cohort"], row["host"], row["arm"], str(row["variant"])


def _is_snr(row: Record) -> bool:
    """Whether a row of diagnostics is about the evidence of all slides."""
    return row["diagnostic"] == "snr" and all(
        row["labels"].get(key) == value for key, value in SNR_LABELS.items()
    )


def _read_cell(values: Mapping[str, Any], name: str) -> Cell:
    found = values.get(name)
    return NOT_MEASURED if found is None else metric_cell(name, found["mean"], found["std"])


@apply_style
def draw_relative_performance(gains: Sequence[HostGain], *, label: str) -> Figure:
    """A dot per cohort and a line at the mean for every host; 1 is the plain host."""
    hosts, cohorts = (list(dict.fromkeys(column)) for column in list(zip(*gains, strict=True))[:2])
    figure = new_figure(1.1 + 0.36 * len(hosts))
    axes = draw_grid(figure.subplots(), grid="x")
    axes.axvline(1.0, color=INK, linewidth=0.9)
    places = dict(zip(hosts, label_rows(axes, hosts), strict=True))
    for number, cohort in enumerate(cohorts):
        own = [gain for gain in gains if gain.cohort == cohort and gain.before]
        axes.plot(
            [gain.after / gain.before for gain in own],
            [places[gain.host] for gain in own],
            color=GROUPS[number % len(GROUPS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=6,
            linestyle="",
            label=shorten_label(cohort, 24),
        )
    for host, place in places.items():
        if found := [gain.after / gain.before for gain in gains if gain.host == host and gain.before]:
            mean = np.mean(found)
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=EVIDENCE_COLOR, linewidth=2.2)
    axes.plot([], [], color=EVIDENCE_COLOR, linewidth=2.2, label="mean over cohorts")
    axes.set_xlabel(label)
    figure.legend(loc="outside lower left", ncols=5)
    return figure
