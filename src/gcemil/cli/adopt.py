"""gcemil adopt: weights you already have become a run."""

from __future__ import annotations

from pathlib import Path

import typer

from gcemil.cli.options import parse_folds, resolve_settings
from gcemil.hosts.table import HOSTS


def adopt(
    weights: list[Path] = typer.Argument(help="A file of weights (torch or safetensors), or one per fold."),
    host: str = typer.Option(
        ..., help=f"{', '.join(HOSTS)}; or a class of yours as package.module:Class, whose code is run."
    ),
    cohort: Path = typer.Option(..., help="A cohort folder with folds (gcemil split)."),
    out: Path = typer.Option(..., help="The run folder."),
    folds: str = typer.Option(
        "all", "--folds", "--fold", help="all, or numbers such as 0,2: the splits these weights belong to."
    ),
    setting: list[str] = typer.Option(
        [], "--set", help="What weights do not tell, such as host.options.distillation=max."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Read a trained model, in its authors' naming or in ours, and make it a run that every other command opens.

    Nothing in the file is executed. The result is the plain host; 'gcemil train --host-weights RUN --freeze-host' then
    learns its evidence without changing it.

    Example: gcemil adopt s_0_checkpoint.pt --host clam_sb --cohort cohorts/mine --folds 0 --out runs/clam
    """
    from gcemil.cli.console import print_json, print_table, progress, say
    from gcemil.cli.training_progress import print_summary
    from gcemil.training.adopt import adopt_run

    settings = resolve_settings(None, host, False, "default", "common", None, None, setting)
    chosen = None if folds == "all" else parse_folds(folds)
    with progress("adopting folds") as advance:
        adopted = adopt_run(weights, cohort, out, settings.host, folds=chosen, on_fold=advance)
    if as_json:
        print_json(adopted.summary)
        return
    print_table(
        f"{host} {dict(adopted.settings.host.options)}",
        ("fold", "weights", "judged on"),
        [(one.fold, one.source, f"{one.n_test} test, {one.n_val} validation") for one in adopted.folds],
    )
    print_summary(out, adopted.summary)
    for note in adopted.notes:
        say(f"note: {note}")
    if len(adopted.folds) > 1 and len(weights) == 1:
        say(
            "note: One model is judged in every fold, on each slide once. If it was trained on one of these splits, say "
            "which with --folds, or the other folds judge it on its own training slides."
        )
