"""gcemil evaluate: the task metrics of a run, computed again from its checkpoints."""

from __future__ import annotations

from pathlib import Path

import typer

from gcemil.cli.options import TRUST_HOST


def evaluate(
    run: Path = typer.Argument(help="A run folder."),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Predict the validation and test bags of every trained fold again and rewrite its metrics and evidence.

    Example: gcemil evaluate runs/bracs_abmil
    """
    from gcemil.cli.console import print_json, progress
    from gcemil.cli.training_progress import print_summary
    from gcemil.training.run import evaluate_run

    with progress("evaluating folds") as advance:
        summary = evaluate_run(run, on_fold=advance)
    if as_json:
        print_json(summary)
    else:
        print_summary(run, summary)
