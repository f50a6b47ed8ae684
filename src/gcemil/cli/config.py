"""gcemil config: every setting of a training with its meaning, as a file to start from."""

from __future__ import annotations

from pathlib import Path

import typer

from gcemil.cli.options import (
    CONFIG,
    EPOCHS,
    GCE,
    HOST,
    PRESET,
    RECIPE,
    SETTING,
    Preset,
    Recipe,
    refuse_beside_config,
    resolve_settings,
)


def config(
    context: typer.Context,
    host: str = HOST,
    gce: bool = GCE,
    recipe: Recipe = RECIPE,
    preset: Preset = PRESET,
    config: Path | None = CONFIG,
    setting: list[str] = SETTING,
    epochs: int | None = EPOCHS,
) -> None:
    """Print the settings that 'gcemil train' would use, each with what it means and what it accepts.

    Save them, change what you like, and give the file to 'gcemil train --config'. Whatever a file leaves out keeps its
    default.

    Example: gcemil config > settings.yaml
    """
    refuse_beside_config(context, config)
    settings = resolve_settings(config, host, gce, recipe.value, preset.value, epochs, None, setting)
    typer.echo(settings.to_commented_yaml(), nl=False)
