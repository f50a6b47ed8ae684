"""gcemil diagnose: every measurement of a trained run, written beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.options import FOLDS, TRUST_HOST, jobs_option, parse_folds, seed_option

if TYPE_CHECKING:
    from gcemil.findings import Finding

WIDEST = 9
"""Columns of figures a terminal shows; the JSON has all of them."""


def diagnose(
    runs: list[Path] = typer.Argument(help="A run folder; further runs of other seeds add to its stability."),
    against: Path | None = typer.Option(
        None, help="The run of the plain host on the same cohort: more rivals."
    ),
    only: str | None = typer.Option(None, help="Names such as snr,budget; all by default."),
    folds: str = FOLDS,
    jobs: int | None = jobs_option("diagnostics"),
    again: bool = typer.Option(False, "--again", help="Measure again what is already there."),
    seed: int = seed_option("random subsets and perturbations"),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print the joined findings as JSON."),
) -> None:
    """Measure sufficiency, necessity, recoverability and more by intervention; oracle and random beside every rule.

    Example: gcemil diagnose runs/bracs_gce --against runs/bracs_host --only snr,budget
    """
    from gcemil.cli.console import print_json, progress, say
    from gcemil.diagnostics.diagnose import Comparison, diagnose_run
    from gcemil.files import without_nan

    comparison = Comparison(runs[0], against, tuple(runs[1:]), seed)
    with progress("diagnosing") as advance:
        found = diagnose_run(
            comparison,
            names=None if only is None else only.split(","),
            folds=None if folds == "all" else parse_folds(folds),
            again=again,
            jobs=jobs,
            on_done=advance,
        )
    if as_json:
        print_json(without_nan({finding.name: finding.to_json() for finding in found}))
        return
    for finding in found:
        print_finding(finding)
    say(
        f"Findings of each fold, slide by slide: {runs[0]}/fold_<k>/diagnostics; joined: {runs[0]}/diagnostics"
    )


def print_finding(finding: Finding) -> None:
    """Its rows as a table, arrows saying which way is better, and its notes below."""
    from gcemil.cli.console import print_table, say
    from gcemil.metrics import METRICS
    from gcemil.tables import format_spread

    labels = list(dict.fromkeys(name for row in finding.rows for name in row.labels))
    figures = list(dict.fromkeys(name for row in finding.rows for name in row.values))
    rows = [
        (
            *(row.labels.get(name, "") for name in labels),
            *(
                format_spread(row.values.get(name), row.deviations.get(name) or None)
                for name in figures[:WIDEST]
            ),
        )
        for row in finding.rows
    ]
    columns = [f"{METRICS[name].label} {METRICS[name].arrow}".strip() for name in figures[:WIDEST]]
    print_table(finding.name, (*labels, *columns), rows)
    for note in finding.notes:
        say(f"  note: {note}")
    if len(figures) > WIDEST:
        say(f"  {len(figures) - WIDEST} more figures per row in the JSON.")
