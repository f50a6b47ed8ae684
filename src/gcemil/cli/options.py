"""Options that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gcemil.hosts.table import host_spec, with_preset, with_recipe


def _trust_hosts(names: list[str]) -> list[str]:
    """Consent to import these classes where a run names them."""
    from gcemil.hosts.own import trust_host

    for name in names:
        trust_host(name)
    return names


TRUST_HOST: Any = typer.Option(
    [],
    "--trust-host",
    metavar="PACKAGE.MODULE:CLASS",
    callback=_trust_hosts,
    help="A run trained with a host of your own: let it import this class, which RUNS ITS CODE.",
)


def resolve_settings(
    config: Path | None,
    host: str,
    gce: bool,
    recipe: str,
    preset: Any,
    epochs: int | None,
    seed: int | None,
    overrides: list[str],
) -> Any:
    """Settings from the file or the preset, then the options, then the assignments."""
    from gcemil.config import HostSettings, TrainSettings, with_overrides
    from gcemil.errors import UsageError

    if config is not None and preset != "common":
        raise UsageError(f"--preset {preset} and --config both say how to train. Give one of them.")
    if config is not None:
        settings = TrainSettings.from_yaml(config)
    else:
        host_spec(host)
        settings = with_recipe(TrainSettings(host=HostSettings(name=host)), recipe, plain=not gce)
        settings = with_preset(settings, preset)
    changes = {"epochs": epochs, "seed": seed}
    settings = settings.model_copy(update={key: value for key, value in changes.items() if value is not None})
    settings = with_overrides(settings, overrides)
    host_spec(settings.host.name)
    return settings


def parse_folds(text: str) -> list[int]:
    """Numbers separated by commas."""
    from gcemil.errors import UsageError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--folds is 'all' or numbers such as 0,2; got '{text}'.") from error


def parse_parts(text: str) -> tuple[int, int, int]:
    """Sizes of the three parts of a split, from '90,30,300'."""
    from gcemil.errors import UsageError

    numbers = text.split(",")
    if len(numbers) != 3 or not all(number.strip().isdigit() for number in numbers):
        raise UsageError(f"--parts are three whole numbers such as 90,30,300, got '{text}'.")
    train, val, test = map(int, numbers)
    return train, val, test
