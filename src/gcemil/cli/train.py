"""Make a run: gcemil train trains a host, gcemil adopt takes weights that you have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_table, progress, say
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.config import TrainSettings

Preset = Literal["common", "published"]
"""Whose training recipe is followed."""
Tracker = Literal["tensorboard", "mlflow", "wandb", "none"]
"""Names of training.trackers.TRACKERS."""


def train(
    context: typer.Context,
    cohort: Path | None = typer.Argument(
        None, help="A cohort folder with folds (gcemil split); with --again the run folder."
    ),
    out: Path | None = typer.Option(None, help="The run folder; an existing run is continued."),
    host: str = typer.Option("abmil", metavar="NAME", help=options.HOST_HELP),
    host_weights: Path | None = typer.Option(
        None,
        help="Start the host from a file as 'gcemil adopt' reads it, or from a run, fold by fold.",
    ),
    freeze_host: bool = options.flag(
        "--freeze-host", "Never change the host; only find its evidence."
    ),
    host_from: Path | None = typer.Option(
        None,
        help="Take the trained hosts of this run of the same settings, and fit only the evidence.",
    ),
    gce: bool = typer.Option(True, "--gce/--no-gce", help="Wrap the host, or train it plain."),
    recipe: options.RecipeName = typer.Option(
        "default",
        help="default; joint (formerly taught): the evidence also trains the host; paper...: the "
        "paper read literally, with a free or a constrained bridge.",
    ),
    preset: Preset = typer.Option(
        "common", help="The common recipe, or that of the host's authors."
    ),
    folds: options.Folds = "all",
    config: Path | None = typer.Option(None, help="Settings from a YAML file, or those of a run."),
    setting: list[str] = typer.Option(
        [],
        "--set",
        metavar="KEY=VALUE",
        help="One setting, such as evidence.budget=0.1; may be repeated.",
    ),
    epochs: int | None = typer.Option(None, min=1, help="Passes over the training slides."),
    device: options.Device = None,
    precision: options.Precision = None,
    jobs: int | None = options.jobs("folds"),
    keep_epochs: bool = options.flag(
        "--keep-epochs", "Store the representations of every epoch, for the t-SNE."
    ),
    tracker: Tracker | None = typer.Option(
        None,
        help="Where the metrics of every epoch are logged; TensorBoard by default, if installed.",
    ),
    seed: int | None = options.seed("weights and the order of bags", None),
    again: bool = options.flag(
        "--again", "Train nothing: evaluate a run again, and rewrite its metrics and evidence."
    ),
    print_config: bool = options.flag(
        "--print-config", "Only print every setting with its meaning."
    ),
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Train a host with its evidence, and evaluate both on the test slides.

    The epoch is chosen on validation. With --host-weights RUN --freeze-host the evidence of a
    trained model is found without changing it.

    Example: gcemil train cohorts/bracs --host abmil --out runs/bracs_abmil
    """
    if again:
        from gcemil.cli.training_progress import print_summary
        from gcemil.training.run import evaluate_run

        run = options.require(cohort, "RUN", context)
        with progress("evaluating folds") as advance:
            summary = evaluate_run(run, on_fold=advance, device=device)
        if as_json:
            print_json(summary)
        else:
            print_summary(run, summary)
        return
    beside = {"host": "host.name=NAME", "gce": "evidence=null", "recipe": "evidence.KEY=VALUE"}
    for name, instead in beside.items():
        if config is not None and options.is_given(context, name):
            raise UsageError(
                f"--{name} and --config both set the training. Leave --{name} out, or change the "
                f"file's settings with --set {instead}."
            )
    if not print_config:
        cohort = options.require(cohort, "COHORT", context)
        out = options.require(out, "--out", context)
    chose_host = options.is_given(context, "host") or config is not None
    if host_weights is not None and host_weights.is_dir() and not chose_host:
        from gcemil.hosts.own import check_trust
        from gcemil.runs.folder import Run

        host = Run(host_weights).card.settings.host.name
        check_trust(host, host_weights, option="--host")
    settings = options.resolve_settings(
        config=config,
        host=host,
        gce=gce,
        recipe=recipe,
        preset=preset,
        overrides=setting,
        epochs=epochs,
        seed=seed,
        device=device,
        precision=precision,
        keep_epochs=keep_epochs or None,
    )
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
        # Training with a host is consent to it, also for later commands on this run.
        remember_consent(settings.host.name, out.resolve())
    chosen = options.parse_folds(folds) or fold_indices(cohort)
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


def _set_host_weights(
    settings: TrainSettings, source: Path | None, *, frozen: bool
) -> TrainSettings:
    """The settings with the weights that the host starts from."""
    from gcemil.config import HostWeights

    weights = settings.host.weights
    if source is not None:
        weights = HostWeights(source=str(source), frozen=frozen)
    elif not frozen:
        return settings
    elif weights is None:
        raise UsageError("--freeze-host needs the weights of a trained host: give --host-weights.")
    else:
        weights = weights.model_copy(update={"frozen": True})
    host = settings.host.model_copy(update={"weights": weights})
    return settings.model_copy(update={"host": host})


def adopt(
    weights: list[Path] = typer.Argument(
        help="A file of weights (torch or safetensors), or one per fold."
    ),
    host: str = typer.Option(..., help=options.HOST_HELP),
    cohort: Path = typer.Option(..., help="A cohort folder with folds (gcemil split)."),
    out: Path = typer.Option(..., help="The run folder."),
    folds: str = typer.Option(
        "all",
        "--folds",
        "--fold",
        help="all, or numbers such as 0,2: the splits these weights belong to.",
    ),
    setting: list[str] = typer.Option(
        [], "--set", help="What the weights do not state, such as host.options.distillation=max."
    ),
    as_json: options.Json = False,
) -> None:
    """Turn the weights of a trained model into a run that every other command opens.

    Nothing in the file is executed. The result is the plain host; 'gcemil train --host-weights RUN
    --freeze-host' then learns its evidence without changing it.

    Example: gcemil adopt s_0_checkpoint.pt --host clam_sb --cohort cohorts/mine --folds 0 --out r
    """
    from gcemil.cli.training_progress import print_summary
    from gcemil.training.adopt import adopt_run

    settings = options.resolve_settings(host=host, gce=False, overrides=setting)
    with progress("adopting folds") as advance:
        adopted = adopt_run(
            weights, cohort, out, settings.host, folds=options.parse_folds(folds), on_fold=advance
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
            "note: One model is judged in every fold, on each slide once. If it was trained on "
            "one of these splits, say which with --folds, or the other folds judge it on its own "
            "training slides."
        )
