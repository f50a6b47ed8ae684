"""A run of several targets as one page: every target beside the mean over all, and a link to the report of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gcemil.errors import RunError
from gcemil.files import read_json, write_bytes
from gcemil.findings import mean_and_deviation
from gcemil.report.html import render, render_page, render_section
from gcemil.report.run_data import read_run_data
from gcemil.runs.folder import Run, main_mode
from gcemil.tables import Column, Line, Table, metric_cell

MEAN = "mean over targets"
FIGURES = {"auc": "AUC", "macro_f1": "Macro-F1"}
EVIDENCE = {
    "both": "Sufficient and necessary",
    "evidence_fraction": "Size of the evidence",
    "precision": "Precision",
}
"""Of the test slides, as 'gcemil diagnose' measured them; precision where the truth is known."""


def tabulate_targets(run: Run) -> Table:
    """AUC and Macro-F1 of every target over the folds, of the host alone and of the main prediction, and its evidence."""
    summaries = {name: read_json(target.summary) for name, target in run.targets.items()}
    modes = list(dict.fromkeys(("full", main_mode(next(iter(summaries.values()))))))
    words = {"full": "host", "gce": "host and evidence"}
    columns = [
        Column(f"{mode} {figure}", label, figure, group=words[mode])
        for mode in modes
        for figure, label in FIGURES.items()
    ]
    folds = {
        name: [summary[mode][figure]["folds"] for mode in modes for figure in FIGURES]
        for name, summary in summaries.items()
    }
    evidence = {name: _measure_evidence(target.path) for name, target in run.targets.items()}
    measured = [
        key for key in EVIDENCE if any(one.get(key) is not None for one in evidence.values())
    ]
    columns += [Column(key, EVIDENCE[key], _METRIC[key], group="evidence") for key in measured]
    # The mean of a fold is over its targets, so that the deviation is that of the mean.
    means = [
        [_mean(values) for values in zip(*column, strict=False)]
        for column in zip(*folds.values(), strict=True)
    ]
    lines = [
        _line(name, values, [evidence[name].get(key) for key in measured])
        for name, values in folds.items()
    ]
    together = [_mean([one.get(key) for one in evidence.values()]) for key in measured]
    lines.append(_line(MEAN, means, together))
    return Table(
        "targets", "Targets, on test slides", "", ("target",), tuple(columns), tuple(lines)
    )


_METRIC = {"both": "both_share", "evidence_fraction": "evidence_fraction", "precision": "precision"}


def _measure_evidence(run: Path) -> dict[str, float | None]:
    """What was measured of the evidence of one target; nothing before 'gcemil diagnose'."""
    claim = read_run_data(run).claim
    if claim is None:
        return {}
    both = claim.own.both
    means = {name: claim.own.mean(name) for name in ("evidence_fraction", "precision")}
    return {"both": both.held / both.of if both.of else None, **means}


def _mean(values: Sequence[float | None]) -> float | None:
    return mean_and_deviation(values)[0]


def _line(
    name: str, folds: Sequence[Sequence[float | None]], evidence: Sequence[float | None]
) -> Line:
    cells: list[Any] = [metric_cell("auc", *mean_and_deviation(values)) for values in folds]
    cells += [
        metric_cell(key, value) for key, value in zip(_METRIC.values(), evidence, strict=False)
    ]
    return Line((name,), "ours", tuple(cells), role="own" if name == MEAN else "")


def write_targets_page(run: Run, out: Path, pages: dict[str, Path]) -> Path:
    """The page of a run, beside the reports of its targets."""
    if unfinished := [name for name in run.card.targets if name not in run.targets]:
        raise RunError(
            f"{run.path} has no run of target '{unfinished[0]}'. Train it with 'gcemil train'."
        )
    title = f"Several targets: {run.path.name or run.path}"
    facts = (
        f"{len(pages)} targets",
        f"host {run.card.settings.host.name}",
        f"{len(run.finished_folds())} folds",
    )
    notes = [f"{name}: {said}" for name, one in run.targets.items() if (said := one.model_warning)]
    lead = render("targets_lead.html", title=title, facts=facts, notes=notes)
    links = [(name, quote(page.name)) for name, page in pages.items()]
    section = render_section("targets", "Targets", table=tabulate_targets(run), links=links)
    return write_bytes(out, render_page(title, lead, [section]))
