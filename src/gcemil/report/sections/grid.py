"""A grid of runs: every arm in one table, what the evidence changed, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gcemil.errors import RunError
from gcemil.files import read_record
from gcemil.metrics import METRICS, TASKS
from gcemil.report import style
from gcemil.report.context import quote_path, save_figure
from gcemil.report.html import Picture, render, render_page, render_section
from gcemil.report.run_data import Record
from gcemil.tables import NOT_MEASURED, Cell, Column, Line, Table, metric_cell

SNR = ("sufficient_share", "necessary_share", "both_share", "evidence_fraction")
SNR_LABELS = {"rule": "evidence", "network": "wrapped", "class": "all", "comparison": "full-kept"}


def render_grid_page(results: Path) -> bytes:
    """The page of a results folder."""
    path = results / "summary.json"
    if not path.is_file():
        raise RunError(
            f"{results} has no summary.json. "
            f"Make it with 'gcemil benchmark GRID.yaml --out {results}'."
        )
    remedy = "Make it again with 'gcemil benchmark'."
    summary = read_record(path, Record, error=RunError, remedy=remedy)
    try:
        cohorts = summary["cohorts"]
        counts = f"{len(summary['runs'])} trained folds · {len(cohorts)} cohorts"
        facts = f"{', '.join(summary['grids'])} · {counts}"
        simulated = [name for name, card in cohorts.items() if card.get("simulated")]
        lead = render("grid_lead.html", title=results.name, facts=facts, simulated=simulated)
        # R2 may be negative, and a ratio of it is then meaningless.
        leads = [task.lead for task in TASKS.values() if task.lead != "r2"]
        figures = [_draw_hosts(summary["means"], metric, results / "figures") for metric in leads]
        # The main metric first; tasks never share a table.
        names = [
            (task.lead, *(name for name in task.metrics if name != task.lead))
            for task in TASKS.values()
        ]
        tables = [_tabulate_runs(summary, one) for one in names]
        sections = [
            render_section(
                "runs",
                "Host and evidence against the host",
                figures=[figure for figure in figures if figure is not None],
                tables=[table for table in tables if table is not None],
            ),
            render_section(
                "unfinished",
                "Unfinished",
                rows=[
                    (one["key"], one["failure"] or "not run yet") for one in summary["unfinished"]
                ],
                command=f"gcemil benchmark GRID.yaml --out {quote_path(results)}",
            ),
        ]
    except (KeyError, TypeError) as error:
        raise RunError(f"{path} is not the summary of a grid ({error}). {remedy}") from error
    return render_page(f"Grid report: {results.name}", lead, sections)


def _draw_hosts(means: Sequence[Record], metric: str, folder: Path) -> Picture | None:
    """The metric of host and evidence over that of the host; None where no arm has it."""
    gains = pair_hosts(means, metric)
    if gains.empty:
        return None
    label = METRICS[metric].label
    figure = draw_relative_performance(
        gains, label=f"{label} of host and evidence over that of the host"
    )
    return save_figure(
        folder,
        f"hosts_{metric}",
        figure,
        f"Relative {label} per host and cohort",
        "Right of the line the evidence gains, left of it it costs. One mark is one cohort, means "
        "over folds and seeds. The host is the arm without the wrapper; where the grid has none, "
        "all patches of the wrapped run.",
    )


def pair_hosts(means: Sequence[Record], metric: str) -> pd.DataFrame:
    """Host, cohort, and the metric without and with evidence; ablations are left out.

    Without is the host arm, or all patches of the wrapped run.
    """
    arms = {
        (row["cohort"], row["host"], row["arm"]): row["metrics"]
        for row in means
        if row["variant"] is None
    }
    gains = []
    for (cohort, host, arm), metrics in arms.items():
        if arm == "gce":
            before = arms.get((cohort, host, "host"), metrics).get("full", {}).get(metric)
            after = metrics.get("gce", metrics.get("soft", {})).get(metric)
            if before is not None and after is not None:
                gains.append((host, cohort, before["mean"], after["mean"]))
    return pd.DataFrame(gains, columns=["host", "cohort", "before", "after"])


def _tabulate_runs(summary: Record, names: Sequence[str]) -> Table | None:
    """Metrics of every mode and the counts of the evidence, one line per cohort, host and arm."""
    rows = [
        row
        for row in summary["means"]
        if any(name in row["metrics"].get("full", {}) for name in names)
    ]
    if not rows:
        return None
    modes = [mode for mode in style.MODE_NAMES if any(mode in row["metrics"] for row in rows)]
    arm = itemgetter("cohort", "host", "arm", "variant")
    evidence = {
        arm(row): row["values"]
        for row in summary["diagnostic_means"]
        if row["diagnostic"] == "snr" and SNR_LABELS.items() <= row["labels"].items()
    }
    columns = []
    for name in names:
        group = f"{METRICS[name].label} {METRICS[name].arrow}"
        for mode in modes:
            columns.append(Column(f"{name} {mode}", style.MODE_NAMES[mode], group=group))
    columns += [Column(name, METRICS[name].label, name, group="Evidence") for name in SNR]
    lines = []
    for row in rows:
        metrics, counts = row["metrics"], evidence.get(arm(row), {})
        cells = [_read_cell(metrics.get(mode, {}), name) for name in names for mode in modes]
        cells += [_read_cell(counts, name) for name in SNR]
        labels = (row["cohort"], row["host"], row["variant"] or row["arm"], row["runs"])
        lines.append(Line(tuple(map(str, labels)), "ours", tuple(cells)))
    notes = ["Mean ± standard deviation over folds and seeds; summary.json has every fold."]
    if not evidence:
        notes.append(
            "The grid has no S/N/R figures. Name snr under diagnostics in the grid file to count "
            "evidence that holds."
        )
    headings = ("Cohort", "Host", "Arm", "Folds")
    return Table("", "", "", headings, tuple(columns), tuple(lines), notes=tuple(notes))


def _read_cell(values: Mapping[str, Any], name: str) -> Cell:
    value = values.get(name)
    return NOT_MEASURED if value is None else metric_cell(name, value["mean"], value["std"])


def draw_relative_performance(gains: pd.DataFrame, *, label: str) -> Figure:
    """A dot per cohort and a line at the mean for every host; 1 is the plain host."""
    hosts, cohorts = gains.host.unique(), gains.cohort.unique()
    figure = style.new_figure(1.1 + 0.36 * len(hosts))
    axes = style.draw_grid(figure.subplots(), grid="x")
    axes.axvline(1.0, color=style.INK, linewidth=0.9)
    places = pd.Series(style.label_rows(axes, hosts), hosts)
    gains = gains[gains.before != 0].assign(ratio=lambda gains: gains.after / gains.before)
    for number, cohort in enumerate(cohorts):
        members = gains[gains.cohort == cohort]
        look = {**style.number_look(number), "label": style.shorten_label(cohort, 24)}
        style.draw_dots(axes, members.ratio, places[members.host], size=6, **look)
    for host, mean in gains.groupby("host", sort=False).ratio.mean().items():
        ends = [places[host] - 0.32, places[host] + 0.32]
        axes.plot([mean, mean], ends, color=style.EVIDENCE_COLOR, linewidth=2.2)
    axes.plot([], [], color=style.EVIDENCE_COLOR, linewidth=2.2, label="mean over cohorts")
    axes.set_xlabel(label)
    figure.legend(loc="outside lower left", ncols=5)
    return figure
