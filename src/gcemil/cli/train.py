"""Make a run: gcemil train trains a host, gcemil adopt takes weights that you have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.console import print_json, print_table, progress, say
from gcemil.cli.options import (
    CONFIG,
    DEVICE,
    EPOCHS,
    FOLDS,
    GCE,
    HOST,
    JSON,
    PRECISION,
    PRESET,
    RECIPE,
    SETTING,
    TRUST_HOST,
    Precision,
    Preset,
    Recipe,
    Tracker,
    jobs_option,
    parse_folds,
    refuse_beside_config,
    require,
    resolve_settings,
    seed_option,
)
from gcemil.errors import UsageError
from gcemil.hosts.table import HOSTS

if TYPE_CHECKING:
    from gcemil.config import TrainSettings


def train(
    context: typer.Context,
    cohort: Path | None = typer.Argument(
        None, help="A cohort folder with folds (gcemil split); with --again the run folder."
    ),
    out: Path | None = typer.Option(
        None, help="The run folder; an existing run continues where it stopped."
    ),
    host: str = HOST,
    host_weights: Path | None = typer.Option(
        None,
        help="Start the host from these: a file as 'gcemil adopt' reads it, or a run, fold by fold.",
    ),
    freeze_host: bool = typer.Option(
        False, "--freeze-host", help="Never change the host; only find its evidence."
    ),
    host_from: Path | None = typer.Option(
        None,
        help="Take the trained hosts of this run of the same settings, and fit only the evidence; the result is the same.",
    ),
    gce: bool = GCE,
    recipe: Recipe = RECIPE,
    preset: Preset = PRESET,
    folds: str = FOLDS,
    config: Path | None = CONFIG,
    setting: list[str] = SETTING,
    epochs: int | None = EPOCHS,
    device: str | None = DEVICE,
    precision: Precision | None = PRECISION,
    jobs: int | None = jobs_option("folds"),
    keep_epochs: bool = typer.Option(
        False,
        "--keep-epochs",
        help="After every epoch store what the head sees of validation and test bags, for the report's t-SNE.",
    ),
    tracker: Tracker | None = typer.Option(
        None,
        help="Where the numbers of every epoch are drawn, beside history.jsonl; TensorBoard by default, if it is installed.",
    ),
    seed: int | None = seed_option(
        "weights and the order of bags, in place of the settings' seed", None
    ),
    again: bool = typer.Option(
        False,
        "--again",
        help="Train nothing: predict the validation and test bags of a run again, and rewrite its metrics and evidence.",
    ),
    print_config: bool = typer.Option(
        False,
        "--print-config",
        help="Train nothing: print every setting with its meaning, as a file for --config.",
    ),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Train, choose the epoch on validation, evaluate on test, write the evidence of the test slides.

    With --host-weights RUN --freeze-host it finds the evidence of a trained model without changing it.

    Example: gcemil train cohorts/bracs --host abmil --out runs/bracs_abmil
    """
    if again:
        _evaluate(require(cohort, "RUN", context), device, as_json)
        return
    refuse_beside_config(context, config)
    if not print_config:
        cohort, out = require(cohort, "COHORT", context), require(out, "--out", context)
    chose_host = (
        str(context.get_parameter_source("host")).endswith("COMMANDLINE") or config is not None
    )
    if host_weights is not None and host_weights.is_dir() and not chose_host:
        host = _read_host_name(host_weights)
    settings = resolve_settings(
        config=config,
        host=host,
        gce=gce,
        recipe=recipe,
        preset=preset,
        epochs=epochs,
        seed=seed,
        overrides=setting,
        device=device,
        precision=precision,
    )
    if keep_epochs:
        settings = settings.model_copy(update={"keep_epochs": True})
    settings = _set_host_weights(settings, host_weights, frozen=freeze_host)
    if cohort is None or out is None or print_config:
        typer.echo(settings.to_commented_yaml(), nl=False)
        return

    from gcemil.bags.cohort import Cohort
    from gcemil.bags.folds import fold_indices
    from gcemil.cli.training_progress import print_summary, show_training, suggest_next
    from gcemil.hosts.consent import remember_consent
    from gcemil.hosts.own import is_import_path
    from gcemil.training.run import planned_epochs, train_run

    if is_import_path(settings.host.name):
        # Who trains a host has named it; later commands on this run need not ask again.
        remember_consent(settings.host.name, out.resolve())
    chosen = parse_folds(folds) or fold_indices(cohort)
    n_epochs = planned_epochs(Cohort.load(cohort), settings, chosen)
    with show_training(chosen, n_epochs, out) as watch:
        summary = train_run(
            cohort, out, settings, folds=chosen, jobs=jobs, host_from=host_from, tracker=tracker,
            on_epoch=watch.epoch, on_bag=watch.bag,
        )  # fmt: skip
    if as_json:
        print_json(summary)
    else:
        print_summary(out, summary)
        suggest_next(out, is_wrapped=settings.evidence is not None)


def _evaluate(run: Path, device: str | None, as_json: bool) -> None:
    """Predict the bags of a trained run again."""
    from gcemil.cli.training_progress import print_summary
    from gcemil.training.run import evaluate_run

    with progress("evaluating folds") as advance:
        summary = evaluate_run(run, on_fold=advance, device=device)
    if as_json:
        print_json(summary)
    else:
        print_summary(run, summary)


def _read_host_name(run: Path) -> str:
    """The host whose weights a run has."""
    from gcemil.hosts.own import check_trust
    from gcemil.runs.folder import Run

    name = Run(run).card.settings.host.name
    check_trust(name, run, option="--host")
    return name


def _set_host_weights(
    settings: TrainSettings, source: Path | None, *, frozen: bool
) -> TrainSettings:
    """The settings with the weights that the host starts from."""
    from gcemil.config import HostWeights

    if source is None:
        if not frozen:
            return settings
        if settings.host.weights is None:
            raise UsageError(
                "--freeze-host needs the weights of a trained host: give --host-weights."
            )
        weights = settings.host.weights.model_copy(update={"frozen": True})
    else:
        weights = HostWeights(source=str(source), frozen=frozen)
    return settings.model_copy(
        update={"host": settings.host.model_copy(update={"weights": weights})}
    )


def adopt(
    weights: list[Path] = typer.Argument(
        help="A file of weights (torch or safetensors), or one per fold."
    ),
    host: str = typer.Option(
        ...,
        help=f"{', '.join(HOSTS)}; or a class of yours as package.module:Class, whose code is run.",
    ),
    cohort: Path = typer.Option(..., help="A cohort folder with folds (gcemil split)."),
    out: Path = typer.Option(..., help="The run folder."),
    folds: str = typer.Option(
        "all",
        "--folds",
        "--fold",
        help="all, or numbers such as 0,2: the splits these weights belong to.",
    ),
    setting: list[str] = typer.Option(
        [], "--set", help="What the weights do not tell, such as host.options.distillation=max."
    ),
    as_json: bool = JSON,
) -> None:
    """Turn the weights of a trained model into a run that every other command opens.

    Nothing in the file is executed. The result is the plain host; 'gcemil train --host-weights RUN --freeze-host' then
    learns its evidence without changing it.

    Example: gcemil adopt s_0_checkpoint.pt --host clam_sb --cohort cohorts/mine --folds 0 --out runs/clam
    """
    from gcemil.cli.training_progress import print_summary
    from gcemil.training.adopt import adopt_run

    settings = resolve_settings(host=host, gce=False, overrides=setting)
    with progress("adopting folds") as advance:
        adopted = adopt_run(
            weights, cohort, out, settings.host, folds=parse_folds(folds), on_fold=advance
        )
    if as_json:
        print_json(adopted.summary)
        return
    print_table(
        f"{host} {dict(adopted.settings.host.options) or ''}".strip(),
        ("fold", "weights", "judged on"),
        [
            (number, path, f"{len(parts.test)} test, {len(parts.val)} validation")
            for number, path, parts in adopted.folds
        ],
    )
    print_summary(out, adopted.summary)
    for note in adopted.notes:
        say(f"note: {note}")
    if len(adopted.folds) > 1 and len(weights) == 1:
        say(
            "note: One model is judged in every fold, on each slide once. If it was trained on one of these splits, say "
            "which with --folds, or the other folds judge it on its own training slides."
        )
