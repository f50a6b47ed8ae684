"""A grid of runs: every arm of every host on every cohort, what the wrapper changed, and what is still missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from gcemil.errors import RunError
from gcemil.findings import Row
from gcemil.metrics import METRICS
from gcemil.report.html import (
    Section,
    collapse,
    element,
    join_markup,
    paragraph,
    render_page,
    render_rows,
    render_table,
)
from gcemil.report.sections.context import (
    RULE_HEADINGS,
    FigureFolder,
    finding_table,
    quote_path,
    render_missing,
)
from gcemil.report.style import (
    EVIDENCE_COLOR,
    GROUPS,
    INK,
    MARKERS,
    MODE_NAMES,
    WIDTH,
    apply_style,
    draw_grid,
    new_figure,
    shorten_label,
)
from gcemil.tables import NOT_MEASURED, Cell, Column, Line, Table, metric_cell

Record = dict[str, Any]
TASKS = (("macro_f1", "accuracy", "auc"), ("c_index",))
"""Metrics of the two tasks, which never share a table."""
MAIN = ("macro_f1", "c_index")
SNR = (
    "evidence_sufficiency", "keep_only_drop", "full_kept_gap", "sufficient_share", "complement_degradation",
    "necessary_share", "evidence_fraction", "precision", "recall",
)  # fmt: skip
SOFT = ("cd_gap", "recoverable_share")


def render_grid_page(summary: Record, results: Path, figures: FigureFolder) -> str:
    """The page of a results folder."""
    try:
        means, diagnostics = summary["means"], summary["diagnostic_means"]
        sections = [
            _render_performance(means, figures),
            _render_runs(means, summary["runs"]),
            _render_snr(diagnostics, results),
            _render_unfinished(summary["unfinished"], results),
        ]
        lead = _render_lead(summary, results)
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{results / 'summary.json'} is not the summary of a grid ({error}). Make it with 'gcemil benchmark'."
        ) from error
    return render_page(f"Grid report: {results.name}", lead, sections)


def _render_lead(summary: Record, results: Path) -> Markup:
    cohorts = summary["cohorts"]
    simulated = [name for name, card in cohorts.items() if card.get("simulated")]
    facts = f"{', '.join(summary['grids'])} · {len(summary['runs'])} trained folds · {len(cohorts)} cohorts"
    parts = [
        paragraph("Grid report", kind="eyebrow"),
        element("h1", results.name),
        paragraph(facts, kind="facts"),
    ]
    if simulated:
        parts.append(paragraph(f"Simulated, not tissue: {', '.join(simulated)}.", kind="caution"))
    return join_markup(parts)


def _render_performance(means: list[Record], figures: FigureFolder) -> Section:
    """Host against host + GCE over the grid."""
    parts = []
    for metric in MAIN:
        gains = list(pair_hosts(means, metric))
        if gains:
            label = f"{METRICS[metric].label} of host + GCE (gated) over that of the plain host"
            parts.append(
                figures.save(
                    f"hosts_{metric}",
                    draw_relative_performance(gains, label=label),
                    alt=f"Relative {METRICS[metric].label} per host and cohort",
                    caption="Right of the line the wrapper gains, left of it it costs. One mark is one cohort, means over folds and seeds.",
                )
            )
    if not parts:
        parts.append(paragraph("No host was trained both plainly and with the wrapper yet.", kind="missing"))
    return Section("performance", "Relative performance per host", join_markup(parts))


def pair_hosts(means: list[Record], metric: str) -> Iterator[HostGain]:
    """Pairs of arms `host` and `gce` of one host on one cohort, ablations aside."""
    plain = {
        (row["cohort"], row["host"]): found
        for row in means
        if (row["arm"], row["variant"]) == ("host", None)
        and (found := _read_mean(row, "full", metric)) is not None
    }
    for row in means:
        key = (row["cohort"], row["host"])
        found = _read_mean(row, "soft", metric)
        if (row["arm"], row["variant"]) == ("gce", None) and key in plain and found is not None:
            yield HostGain(row["host"], row["cohort"], plain[key], found)


def _read_mean(row: Record, mode: str, metric: str) -> float | None:
    found: float | None = row["metrics"].get(mode, {}).get(metric, {}).get("mean")
    return found


def _render_runs(means: list[Record], runs: list[Record]) -> Section:
    """Means in view, single folds folded below."""
    if not runs:
        return Section("runs", "Runs", paragraph("No fold is trained yet.", kind="missing"))
    folds = [{**row, "runs": 1, "metrics": _wrap_values(row["metrics"])} for row in runs]
    parts = [
        *_render_metric_tables(means, {"runs": "Folds"}, "Mean ± standard deviation over folds and seeds.")
    ]
    parts.append(
        collapse(
            f"All {len(runs)} trained folds",
            join_markup(_render_metric_tables(folds, {"seed": "Seed", "fold": "Fold"})),
        )
    )
    return Section("runs", "Runs", join_markup(parts))


def _wrap_values(metrics: Record) -> Record:
    return {
        mode: {name: {"mean": value, "std": None} for name, value in found.items()}
        for mode, found in metrics.items()
    }


def _render_metric_tables(rows: list[Record], extra: dict[str, str], note: str = "") -> Iterator[Markup]:
    """One table for the classification cohorts and one for the survival cohorts."""
    for names in TASKS:
        own = [row for row in rows if any(name in row["metrics"].get("full", {}) for name in names)]
        if not own:
            continue
        modes = [mode for mode in MODE_NAMES if any(mode in row["metrics"] for row in own)]
        shown = [(name, mode) for name in names for mode in modes]
        labels = {"cohort": "Cohort", "host": "Host", "label": "Arm", **extra}
        columns = [
            Column(f"{name} {mode}", MODE_NAMES[mode], group=f"{METRICS[name].label} ↑")
            for name, mode in shown
        ]
        lines = [
            Line(
                tuple(str({**row, "label": row["variant"] or row["arm"]}[label]) for label in labels),
                "ours",
                tuple(_read_cell(row, mode, name) for name, mode in shown),
            )
            for row in own
        ]
        yield render_table(
            Table(
                name="",
                title="",
                label="",
                row_labels=tuple(labels.values()),
                columns=tuple(columns),
                lines=tuple(lines),
                notes=(note,) if note else (),
            )
        )


def _read_cell(row: Record, mode: str, metric: str) -> Cell:
    found = row["metrics"].get(mode, {}).get(metric)
    return NOT_MEASURED if found is None else metric_cell(metric, found["mean"], found["std"])


def _render_snr(diagnostics: list[Record], results: Path) -> Section:
    """Sufficiency, necessity, recoverability of the evidence and of its controls, cohort by cohort."""
    title = "Sufficiency, necessity, recoverability"
    own = [row for row in diagnostics if row["diagnostic"] == "snr" and row["labels"].get("class") == "all"]
    if not own:
        remedy = f"gcemil benchmark GRID.yaml --out {quote_path(results)}"
        return Section(
            "snr",
            title,
            render_missing("The grid asks for no 'snr'. Name it under diagnostics in the grid file.", remedy),
        )
    parts = []
    labels = {
        "cohort": "Cohort",
        "host": "Host",
        "arm": "Arm",
        **RULE_HEADINGS,
    }
    for comparison, metrics in (("full-kept", SNR), ("soft-kept", SOFT)):
        rows = [
            Row(
                {
                    "cohort": row["cohort"],
                    "host": row["host"],
                    "arm": row["variant"] or row["arm"],
                    **row["labels"],
                },
                {name: found["mean"] for name, found in row["values"].items()},
                {name: found["std"] for name, found in row["values"].items() if found["std"]},
            )
            for row in own
            if row["labels"].get("comparison") == comparison
        ]
        if rows:
            parts.append(
                render_table(
                    finding_table(
                        rows,
                        labels,
                        metrics,
                        bold=False,
                        notes=["Mean ± standard deviation over folds and seeds."],
                    )
                )
            )
    return Section("snr", title, join_markup(parts))


def _render_unfinished(missing: list[Record], results: Path) -> Section:
    title = "Unfinished"
    if not missing:
        return Section("unfinished", title, paragraph("Everything the grids ask for is done."))
    rows = [(str(row["key"]), str(row["failure"] or "not run yet")) for row in missing]
    remedy = render_missing(
        f"{len(missing)} are missing.", f"gcemil benchmark GRID.yaml --out {quote_path(results)}"
    )
    return Section("unfinished", title, join_markup([remedy, render_rows(("What", "Why"), rows)]))


@dataclass(frozen=True)
class HostGain:
    """What the wrapper changed for one host on one cohort."""

    host: str
    cohort: str
    host_value: float
    gce_value: float

    @property
    def relative(self) -> float | None:
        """Wrapped over plain; None where plain is 0."""
        return self.gce_value / self.host_value if self.host_value else None


@apply_style
def draw_relative_performance(gains: Sequence[HostGain], *, label: str) -> Figure:
    """A dot per cohort and a line at the mean for every host; 1 is the plain host."""
    hosts = list(dict.fromkeys(gain.host for gain in gains))
    cohorts = list(dict.fromkeys(gain.cohort for gain in gains))
    figure = new_figure(WIDTH, 1.1 + 0.36 * len(hosts))
    axes = draw_grid(figure.subplots(), grid="x")
    axes.axvline(1.0, color=INK, linewidth=0.9)
    for row, host in enumerate(hosts):
        place = len(hosts) - row
        own = [
            (gain.cohort, gain.relative) for gain in gains if gain.host == host and gain.relative is not None
        ]
        for cohort, value in own:
            number = cohorts.index(cohort)
            axes.plot(
                value, place, linestyle="", marker=MARKERS[number % len(MARKERS)],
                color=GROUPS[number % len(GROUPS)], markersize=6,
            )  # fmt: skip
        if own:
            mean = float(np.mean([value for _, value in own]))
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=EVIDENCE_COLOR, linewidth=2.2)
    axes.set_yticks([len(hosts) - row for row in range(len(hosts))], hosts)
    axes.set_ylim(0.4, len(hosts) + 0.6)
    axes.set_xlabel(label)
    for number, cohort in enumerate(cohorts):
        axes.plot(
            [], [], linestyle="", marker=MARKERS[number % len(MARKERS)], color=GROUPS[number % len(GROUPS)],
            label=shorten_label(cohort, 24),
        )  # fmt: skip
    axes.plot([], [], color=EVIDENCE_COLOR, linewidth=2.2, label="mean over cohorts")
    figure.legend(loc="outside lower left", ncols=5)
    return figure
