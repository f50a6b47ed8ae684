"""gcemil train: a host, with or without the evidence wrapper, over the folds of a cohort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gcemil.cli.options import (
    CONFIG,
    DEVICE,
    EPOCHS,
    FOLDS,
    GCE,
    HOST,
    PRESET,
    RECIPE,
    SETTING,
    TRUST_HOST,
    Preset,
    Recipe,
    jobs_option,
    parse_folds,
    refuse_beside_config,
    resolve_settings,
    seed_option,
)


def train(
    context: typer.Context,
    cohort: Path = typer.Argument(help="A cohort folder with folds (gcemil split)."),
    out: Path = typer.Option(..., help="The run folder; an existing run goes on where it stopped."),
    host: str = HOST,
    host_weights: Path | None = typer.Option(
        None, help="Start the host from these: a file as 'gcemil adopt' reads it, or a run, fold by fold."
    ),
    freeze_host: bool = typer.Option(
        False, "--freeze-host", help="Never change the host: only the evidence around it learns."
    ),
    gce: bool = GCE,
    recipe: Recipe = RECIPE,
    preset: Preset = PRESET,
    folds: str = FOLDS,
    config: Path | None = CONFIG,
    setting: list[str] = SETTING,
    epochs: int | None = EPOCHS,
    device: str | None = DEVICE,
    jobs: int | None = jobs_option("folds"),
    keep_epochs: bool = typer.Option(
        False,
        "--keep-epochs",
        help="After every epoch store what the head sees of validation and test bags, for the report's t-SNE.",
    ),
    seed: int | None = seed_option("weights and the order of bags, in place of the settings' seed", None),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Train, choose the epoch on validation, evaluate on test, write the evidence of the test slides.

    With --host-weights RUN --freeze-host the evidence of a model that is already trained is learned around it.

    Example: gcemil train cohorts/bracs --host abmil --out runs/bracs_abmil
    """
    from gcemil.bags.folds import fold_indices
    from gcemil.cli.console import print_json
    from gcemil.cli.training_progress import print_summary, show_training, suggest_next
    from gcemil.training.run import train_run

    refuse_beside_config(context, config)
    chose_host = str(context.get_parameter_source("host")).endswith("COMMANDLINE") or config is not None
    if host_weights is not None and host_weights.is_dir() and not chose_host:
        host = _read_host_name(host_weights)
    settings = resolve_settings(config, host, gce, recipe.value, preset.value, epochs, seed, setting, device)
    if keep_epochs:
        settings = settings.model_copy(update={"keep_epochs": True})
    settings = _set_host_weights(settings, host_weights, frozen=freeze_host)
    chosen = fold_indices(cohort) if folds == "all" else parse_folds(folds)
    with show_training(chosen, settings, out) as watch:
        summary = train_run(
            cohort, out, settings, folds=chosen, jobs=jobs, on_epoch=watch.epoch, on_bag=watch.bag
        )
    if as_json:
        print_json(summary)
    else:
        print_summary(out, summary)
        suggest_next(out, is_wrapped=settings.evidence is not None)


def _read_host_name(run: Path) -> str:
    """The host whose weights a run has."""
    from gcemil.hosts.own import check_trust
    from gcemil.runs.folder import read_run

    name = read_run(run).settings.host.name
    check_trust(name, run, option="--host")
    return name


def _set_host_weights(settings: Any, source: Path | None, *, frozen: bool) -> Any:
    """The settings with the weights that the host starts from."""
    from gcemil.config import HostWeights
    from gcemil.errors import UsageError

    if source is None:
        if frozen and settings.host.weights is None:
            raise UsageError("--freeze-host needs the weights of a trained host: give --host-weights.")
        if not frozen:
            return settings
        weights = settings.host.weights.model_copy(update={"frozen": True})
    else:
        weights = HostWeights(source=str(source), frozen=frozen)
    return settings.model_copy(update={"host": settings.host.model_copy(update={"weights": weights})})
