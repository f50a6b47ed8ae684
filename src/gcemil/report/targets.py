"""A run of several targets as one page: a line per target, and links to their reports."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pandas as pd

from gcemil.errors import RunError
from gcemil.files import read_json, write_bytes
from gcemil.findings import mean_and_deviation
from gcemil.report.html import render, render_page, render_section
from gcemil.report.run_data import RunData
from gcemil.runs.folder import Run, main_mode
from gcemil.tables import Column, Line, Table, metric_cell

MEAN = "mean over targets"
FIGURES = {"auc": "AUC", "macro_f1": "Macro-F1"}
EVIDENCE = {
    "both_share": "Sufficient and necessary",
    "evidence_fraction": "Size of the evidence",
    "precision": "Precision",
}
"""Columns of the test slides from 'gcemil diagnose'; precision if the truth is known."""


def tabulate_targets(run: Run) -> Table:
    """AUC and Macro-F1 of every target, of the host alone and with evidence, and its evidence."""
    summaries = {name: read_json(target.summary) for name, target in run.targets.items()}
    modes = list(dict.fromkeys(("full", main_mode(next(iter(summaries.values()))))))
    evidence = pd.DataFrame(
        {name: _measure_evidence(target.path) for name, target in run.targets.items()}
    ).dropna(how="all")
    words = {"full": "host", "gce": "host and evidence"}
    columns, folds = [], {}
    for mode in modes:
        for figure, label in FIGURES.items():
            columns.append(Column(f"{mode} {figure}", label, figure, group=words[mode]))
            # One column per target, one line per fold.
            folds[mode, figure] = pd.DataFrame(
                {name: summary[mode][figure]["folds"] for name, summary in summaries.items()},
                dtype=float,
            )
    columns += [Column(key, EVIDENCE[key], key, group="evidence") for key in evidence.index]
    lines = []
    for name in (*summaries, MEAN):
        # The mean of a fold is over its targets, so that the deviation is that of the mean.
        cells = []
        for table in folds.values():
            values = table.mean(axis=1) if name == MEAN else table[name]
            cells.append(metric_cell("auc", *mean_and_deviation(values)))
        for key, values in evidence.iterrows():
            value = values.mean() if name == MEAN else values[name]
            cells.append(metric_cell(str(key), None if pd.isna(value) else float(value)))
        lines.append(Line((name,), "ours", tuple(cells), role="own" if name == MEAN else ""))
    title = "Targets, on test slides"
    return Table("targets", title, "", ("target",), tuple(columns), tuple(lines))


def _measure_evidence(run: Path) -> dict[str, float | None]:
    """The figures of EVIDENCE of one target; None before 'gcemil diagnose'."""
    claim = RunData(run).claim
    if claim is None:
        return dict.fromkeys(EVIDENCE)
    means = {name: claim.own.mean(name) for name in EVIDENCE}
    return {**means, "both_share": claim.own.both.share}


def write_targets_page(run: Run, out: Path, pages: dict[str, Path]) -> Path:
    """The page of a run, beside the reports of its targets."""
    if unfinished := [name for name in run.card.targets if name not in run.targets]:
        raise RunError(
            f"{run.path} has no run of target '{unfinished[0]}'. Train it with 'gcemil train'."
        )
    title = f"Several targets: {run.path.name or run.path}"
    host, folds = run.card.settings.host.name, len(run.finished_folds())
    facts = (f"{len(pages)} targets", f"host {host}", f"{folds} folds")
    notes = [
        f"{name}: {warning}"
        for name, target in run.targets.items()
        if (warning := target.model_warning)
    ]
    lead = render("targets_lead.html", title=title, facts=facts, notes=notes)
    links = [(name, quote(page.name)) for name, page in pages.items()]
    section = render_section("targets", "Targets", table=tabulate_targets(run), links=links)
    return write_bytes(out, render_page(title, lead, [section]))
