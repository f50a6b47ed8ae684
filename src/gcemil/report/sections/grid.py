"""A grid of runs: every arm of every host on every cohort, what the wrapper changed, and what is still missing.

Its first figure is the paper's first, assembled from the whole grid: the task metric of 5 % of the patches by every rule, the gates
of a run at the first and last epoch, and the wrapped over the plain host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    fold,
    join_markup,
    paragraph,
    render,
    render_element,
    render_page,
    render_rows,
    render_table,
)
from gcemil.report.sections.context import (
    RULE_HEADINGS,
    FigureFolder,
    finding_table,
    quote_path,
)
from gcemil.report.style import (
    EVIDENCE_COLOR,
    GROUPS,
    INK,
    MARKERS,
    MODE_NAMES,
    MUTED,
    add_axes_row,
    apply_style,
    draw_grid,
    label_rows,
    new_figure,
    shorten_label,
)
from gcemil.rules import find_rule
from gcemil.runs.folder import FoldFolder, RunFolder, read_history, read_run
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
BUDGET = "0.05"
SHOWN_RULES = ("random", "attention", "saliency", "occlusion", "gce_discrete", "oracle")


def render_grid_page(summary: Record, results: Path, figures: FigureFolder) -> str:
    """The page of a results folder."""
    try:
        means, diagnostics = summary["means"], summary["diagnostic_means"]
        alone = find_hosts_left_alone(summary["runs"], results)
        sections = [
            _render_motivation(summary, alone, results, figures),
            _render_performance(means, alone, figures),
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
    return render("grid_lead.html", title=results.name, facts=facts, simulated=simulated)


Pair = tuple[str, str]
"""A cohort and a host."""


def find_hosts_left_alone(runs: list[Record], results: Path) -> set[Pair]:
    """Where the wrapped host learned as if there were no wrapper, so that its full bag is the plain host's."""
    found = set()
    for row in runs:
        if (row["arm"], row["variant"]) != ("gce", None) or not RunFolder(results / row["run"]).is_begun:
            continue
        if read_run(results / row["run"]).settings.host_is_unchanged:
            found.add((row["cohort"], row["host"]))
    return found


def _render_motivation(summary: Record, alone: set[Pair], results: Path, figures: FigureFolder) -> Section:
    """The paper's first figure, from as many of its three panels as the grid has."""
    rules = read_kept_metric(summary["diagnostic_means"])
    gates = read_gate_history(summary["runs"], results)
    gains = [gain for metric in MAIN for gain in pair_hosts(summary["means"], metric, alone)]
    title = "Is attention evidence?"
    if not rules and not gates and not gains:
        return Section("motivation", title, paragraph("No finished fold to draw from yet.", "missing"))
    figure = figures.save(
        "motivation",
        draw_motivation(rules, gates, gains),
        alt="Task metric of a few patches by rule, gates at the first and last epoch, wrapped over plain host",
        caption="Left: the task metric when only 5 % of the patches are kept, mean over the cohorts and hosts of the diagnostic budget. "
        "Middle: gates of the training bags of one run. Right: host + GCE (gated) over the plain host, mean over cohorts.",
    )
    return Section("motivation", title, figure)


def read_kept_metric(diagnostics: list[Record]) -> dict[str, float]:
    """The task metric of 5 % of the patches by rule: rivals of the host that is asked, controls, and the evidence."""
    found: dict[str, list[float]] = {}
    for row in diagnostics:
        labels = row["labels"]
        if (row["diagnostic"], row["arm"], row["variant"]) != ("budget", "gce", None) or labels.get(
            "budget"
        ) != BUDGET:
            continue
        value = row["values"].get("evidence_sufficiency", {}).get("mean")
        if labels.get("rule") in SHOWN_RULES and labels.get("network") == "wrapped" and value is not None:
            found.setdefault(labels["rule"], []).append(value)
    return {rule: float(np.mean(found[rule])) for rule in SHOWN_RULES if rule in found}


def read_gate_history(runs: list[Record], results: Path) -> list[tuple[int, list[float]]]:
    """First and last epoch, each with its gates, of the first wrapped fold that recorded them; empty where none did."""
    for row in runs:
        folder = results / row["run"] / f"fold_{row['fold']}"
        if (row["arm"], row["variant"]) != ("gce", None) or not FoldFolder(folder).history.is_file():
            continue
        records = [record for record in read_history(folder) if record.get("gate_histogram")]
        if records:
            return [(int(one["epoch"]), one["gate_histogram"]) for one in (records[0], records[-1])]
    return []


def _render_performance(means: list[Record], alone: set[Pair], figures: FigureFolder) -> Section:
    """Host against host + GCE over the grid."""
    parts = []
    for metric in MAIN:
        gains = list(pair_hosts(means, metric, alone))
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
        parts.append(paragraph("No host was trained both plainly and with the wrapper yet.", "missing"))
    return Section("performance", "Relative performance per host", join_markup(parts))


def pair_hosts(means: list[Record], metric: str, alone: Collection[Pair] = ()) -> Iterator[HostGain]:
    """Pairs of arms `host` and `gce` of one host on one cohort, ablations aside; a host left `alone` is its own plain arm."""
    plain = {
        (row["cohort"], row["host"]): found
        for row in means
        if (row["arm"], row["variant"]) == ("host", None)
        and (found := _read_mean(row, "full", metric)) is not None
    }
    for row in means:
        key = (row["cohort"], row["host"])
        found = _read_mean(row, "gce" if "gce" in row["metrics"] else "soft", metric)
        before = plain.get(key, _read_mean(row, "full", metric) if key in alone else None)
        if (row["arm"], row["variant"]) == ("gce", None) and before is not None and found is not None:
            yield HostGain(row["host"], row["cohort"], before, found)


def _read_mean(row: Record, mode: str, metric: str) -> float | None:
    found: float | None = row["metrics"].get(mode, {}).get(metric, {}).get("mean")
    return found


def _render_runs(means: list[Record], runs: list[Record]) -> Section:
    """Means in view, single folds folded below."""
    if not runs:
        return Section("runs", "Runs", paragraph("No fold is trained yet.", "missing"))
    folds = [{**row, "runs": 1, "metrics": _wrap_values(row["metrics"])} for row in runs]
    tables = _render_metric_tables(
        means, {"runs": "Folds"}, "Mean ± standard deviation over folds and seeds."
    )
    single = join_markup(_render_metric_tables(folds, {"seed": "Seed", "fold": "Fold"}))
    return Section("runs", "Runs", join_markup([*tables, fold(f"All {len(runs)} trained folds", single)]))


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
        labels = {"cohort": "Cohort", "host": "Host", "label": "Arm", **extra}
        columns = [
            Column(f"{name} {mode}", MODE_NAMES[mode], group=f"{METRICS[name].label} ↑")
            for name in names
            for mode in modes
        ]
        lines = [
            Line(
                tuple(str({**row, "label": row["variant"] or row["arm"]}[label]) for label in labels),
                "ours",
                tuple(_read_cell(row, mode, name) for name in names for mode in modes),
            )
            for row in own
        ]
        notes = (note,) if note else ()
        yield render_table(
            Table("", "", "", tuple(labels.values()), tuple(columns), tuple(lines), notes=notes)
        )


def _read_cell(row: Record, mode: str, metric: str) -> Cell:
    found = row["metrics"].get(mode, {}).get(metric)
    return NOT_MEASURED if found is None else metric_cell(metric, found["mean"], found["std"])


def _render_snr(diagnostics: list[Record], results: Path) -> Section:
    """Sufficiency, necessity, recoverability of the evidence and of its controls, cohort by cohort."""
    own = [row for row in diagnostics if row["diagnostic"] == "snr" and row["labels"].get("class") == "all"]
    parts = []
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
            labels = {"cohort": "Cohort", "host": "Host", "arm": "Arm", **RULE_HEADINGS}
            notes = ["Mean ± standard deviation over folds and seeds."]
            parts.append(render_table(finding_table(rows, labels, metrics, bold=False, notes=notes)))
    if not own:
        what = "The grid asks for no 'snr'. Name it under diagnostics in the grid file."
        parts.append(
            render_element("missing", what, f"gcemil benchmark GRID.yaml --out {quote_path(results)}")
        )
    return Section("snr", "Sufficiency, necessity, recoverability", join_markup(parts))


def _render_unfinished(missing: list[Record], results: Path) -> Section:
    title = "Unfinished"
    if not missing:
        return Section("unfinished", title, paragraph("Everything the grids ask for is done."))
    rows = [(str(row["key"]), str(row["failure"] or "not run yet")) for row in missing]
    remedy = render_element(
        "missing", f"{len(missing)} are missing.", f"gcemil benchmark GRID.yaml --out {quote_path(results)}"
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
def draw_motivation(
    rules: Mapping[str, float], gates: Sequence[tuple[int, Sequence[float]]], gains: Sequence[HostGain]
) -> Figure:
    """Three panels; one without figures says so."""
    figure = new_figure(2.7)
    kept, bimodal, hosts = add_axes_row(figure, 3)
    colors = [find_rule(rule).color for rule in rules]
    kept.barh(
        label_rows(kept, [find_rule(rule).label for rule in rules]),
        list(rules.values()),
        color=colors,
        height=0.62,
    )
    draw_grid(kept, grid="x").set_title("Kept alone, 5 % of patches")
    for (epoch, shares), color in zip(gates, (MUTED, EVIDENCE_COLOR), strict=False):
        middles = (np.arange(len(shares)) + 0.5) / len(shares)
        bimodal.step(middles, shares, where="mid", color=color, label=f"epoch {epoch}")
    if gates:
        bimodal.set_yscale("log")
        bimodal.minorticks_off()
        bimodal.legend(loc="upper center")
    draw_grid(bimodal).set(xlabel="gate", title="Gates" if gates else "Gates: not recorded")
    by_host = group_gains(gains)
    hosts.axvline(1.0, color=INK, linewidth=0.9)
    means = [np.mean(list(found.values()) or [np.nan]) for found in by_host.values()]
    hosts.plot(means, label_rows(hosts, list(by_host)), linestyle="", marker="D", color=EVIDENCE_COLOR)
    draw_grid(hosts, grid="x").set_title("Host + GCE over host")
    return figure


def group_gains(gains: Sequence[HostGain]) -> dict[str, dict[str, float]]:
    """Wrapped over plain by host and cohort; without those that are undefined."""
    found: dict[str, dict[str, float]] = {}
    for gain in gains:
        own = found.setdefault(gain.host, {})
        if gain.relative is not None:
            own[gain.cohort] = gain.relative
    return found


@apply_style
def draw_relative_performance(gains: Sequence[HostGain], *, label: str) -> Figure:
    """A dot per cohort and a line at the mean for every host; 1 is the plain host."""
    by_host = group_gains(gains)
    cohorts = dict.fromkeys(gain.cohort for gain in gains)
    looks: dict[str, Any] = {
        cohort: {
            "marker": MARKERS[number % len(MARKERS)],
            "color": GROUPS[number % len(GROUPS)],
            "linestyle": "",
        }
        for number, cohort in enumerate(cohorts)
    }
    figure = new_figure(1.1 + 0.36 * len(by_host))
    axes = draw_grid(figure.subplots(), grid="x")
    axes.axvline(1.0, color=INK, linewidth=0.9)
    for place, found in zip(label_rows(axes, list(by_host)), by_host.values(), strict=True):
        for cohort, value in found.items():
            axes.plot(value, place, markersize=6, **looks[cohort])
        if found:
            mean = np.mean(list(found.values()))
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=EVIDENCE_COLOR, linewidth=2.2)
    axes.set_xlabel(label)
    for cohort, look in looks.items():
        axes.plot([], [], label=shorten_label(cohort, 24), **look)
    axes.plot([], [], color=EVIDENCE_COLOR, linewidth=2.2, label="mean over cohorts")
    figure.legend(loc="outside lower left", ncols=5)
    return figure
