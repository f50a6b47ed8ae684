"""Options that several commands share: one name, one meaning, one default.

--seed     the random seed; the same seed gives the same result
--jobs     how many pieces of the work run in parallel
--device   where the network computes: auto, cpu, cuda, cuda:1 or mps
--precision   in which numbers: 32 or bf16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import typer

from gcemil.errors import UsageError
from gcemil.hosts.table import HOSTS, host_spec, with_overrides, with_preset, with_recipe

if TYPE_CHECKING:
    from gcemil.config import TrainSettings

T = TypeVar("T")


Recipe = Literal["default", "joint", "taught", "paper", "paper_constrained", "paper_budget"]
"""Names of config.RECIPES."""


Preset = Literal["common", "published"]
"""Whose training recipe is followed."""


Tracker = Literal["tensorboard", "mlflow", "wandb", "none"]
"""Names of training.trackers.TRACKERS."""


def _trust_hosts(names: list[str]) -> list[str]:
    """Consent to import these classes where a run names them."""
    from gcemil.hosts.own import trust_in_command

    for name in names:
        trust_in_command(name)
    return names


TRUST_HOST: Any = typer.Option(
    [],
    "--trust-host",
    metavar="PACKAGE.MODULE:CLASS",
    callback=_trust_hosts,
    help="A run trained with a host of your own: let it import this class, which RUNS ITS CODE. Remembered for this run.",
)
HOST: Any = typer.Option(
    "abmil",
    metavar="NAME",
    help=f"{', '.join(HOSTS)}; or a class of yours as package.module:Class, whose code is run.",
)
GCE: Any = typer.Option(
    True, "--gce/--no-gce", help="Wrap the host with evidence, or train it plain."
)
RECIPE: Any = typer.Option(
    "default",
    help="default; joint (formerly taught): the evidence also trains the host; paper...: the paper read literally, with a free or a constrained bridge.",
)
PRESET: Any = typer.Option(
    "common", help="The common recipe, or how the authors of the host train it."
)
CONFIG: Any = typer.Option(
    None,
    help="Settings from a YAML file (see --print-config), or those of a run: RUN or RUN/config.yaml.",
)
SETTING: Any = typer.Option(
    [],
    "--set",
    metavar="KEY=VALUE",
    help="One setting, such as evidence.budget=0.1; may be repeated.",
)
EPOCHS: Any = typer.Option(
    None,
    min=1,
    help="Passes over the training slides, in place of the number that the settings give.",
)
FOLDS: Any = typer.Option("all", metavar="NUMBERS", help="all, or numbers such as 0,2.")
DEVICE: Any = typer.Option(
    None,
    metavar="NAME",
    help="Where the network computes: auto, cpu, cuda, cuda:1 or mps; auto takes a GPU where there is one.",
)
Precision = Literal["32", "bf16"]
"""Names of config.Precision, which is not imported for --help."""
PRECISION: Any = typer.Option(
    None,
    help="Numbers of the matrix products: float32, or bfloat16 where the processor has it; weights and losses stay in float32.",
)


def one_target(run: Path | None) -> Path | None:
    """Refuse a run of several targets."""
    from gcemil.runs.folder import Run

    if run is not None:
        Run(run).refuse_targets()
    return run


RUN: Any = typer.Argument(help="A run folder.", callback=one_target)
JSON: Any = typer.Option(False, "--json", help="Print the result as JSON.")
WEIGHTS: Any = typer.Option(None, help="A local copy of the encoder's page, in place of the hub.")
TRUST_REMOTE_CODE: Any = typer.Option(
    False, "--trust-remote-code", help="Run the Python code that comes with the encoder's page."
)
LABELS: Any = typer.Option(
    None, help="The label table (CSV, TSV, XLSX), in any of the known dialects."
)
TARGET: Any = typer.Option(
    None,
    help="The label column, where there are several; with --task multilabel all of them: ER,PR,HER2.",
)
CLASSES: Any = typer.Option(None, help="Class names in order, separated by commas.")
SUFFICIENCY: Any = typer.Option(0.05, min=0, help="Largest change that still counts as sufficient.")
NECESSITY: Any = typer.Option(0.05, min=0, help="Smallest change that counts as necessary.")
RECOVERABILITY: Any = typer.Option(0.01, min=0, help="Largest gap between gates and evidence.")


Engine = Literal["local", "ray"]
"""Where jobs are done."""
ENGINE: Any = typer.Option("local", help="Processes on this machine, or tasks on a Ray cluster.")
ADDRESS: Any = typer.Option(
    None, help="Ray: the address of an existing cluster; without it a local one is started."
)


def find_cluster(engine: Engine, address: str | None) -> str | None:
    """The address of the Ray cluster, "local" for a new one on this machine; None for processes."""
    if address is not None and engine != "ray":
        raise UsageError("--address is the address of a Ray cluster: add --engine ray.")
    return (address or "local") if engine == "ray" else None


def seed_option(what: str, default: int | None = 0) -> Any:
    """--seed, which means the same everywhere; `what` is what it decides here."""
    return typer.Option(
        default, "--seed", min=0, help=f"Random seed ({what}); the same seed gives the same result."
    )


def jobs_option(
    what: str, *, default: int | None = None, otherwise: str = "one per core", old: str = ""
) -> Any:
    """--jobs, which means the same everywhere; `what` is what runs in parallel here."""
    names = ("--jobs", *([old] if old else []))
    tail = f"; {otherwise} by default" if default is None else ""
    return typer.Option(default, *names, min=1, help=f"How many run in parallel: {what}{tail}.")


def refuse_beside_config(context: typer.Context, config: Path | None) -> None:
    """Refuse options that contradict a settings file."""
    settings = {"host": "host.name=NAME", "gce": "evidence=null", "recipe": "evidence.KEY=VALUE"}
    for name, instead in settings.items():
        if config is not None and str(context.get_parameter_source(name)).endswith("COMMANDLINE"):
            raise UsageError(
                f"--{name} and --config both say how to train. Leave --{name} out, or change the file's settings with --set {instead}."
            )


Task = Literal["classification", "survival", "regression", "multilabel"]
"""What a label table is read for."""


TASK: Any = typer.Option(
    None, help="What the table is read for, where it allows several; regression predicts numbers."
)


Unit = Literal["patch", "region"]
"""What is kept and removed (exports.explain.Unit)."""


class HeatMapName(StrEnum):
    """Measurements that can be drawn as a heat map (exports.slide_export.HEATMAPS); typer has no lists of Literal."""

    evidence = "evidence"
    gate = "gate"
    attention = "attention"
    marginal_gain = "marginal_gain"
    fold_share = "fold_share"
    class_ = "class"
    evidence_score = "evidence_score"
    attention_score = "attention_score"

    @property
    def measurement(self) -> str:
        """The measurement, also of the short names."""
        return f"{self.value}_score" if self.value in ("evidence", "attention") else self.value


UNIT: Any = typer.Option(
    "patch",
    help="region: every connected region of the evidence is kept and removed by itself too.",
)
HEATMAP: Any = typer.Option(
    [],
    "--heatmap",
    help="Also write this measurement of all patches as a pyramidal OME-TIFF that lies on the slide (class: a map of every class); may be given several times.",
)


def require(value: T | None, name: str, context: typer.Context) -> T:
    """An argument or option that a command can do without in one of its modes only."""
    if value is None:
        raise UsageError(f"{name} is missing. See '{context.command_path} --help'.")
    return value


def resolve_settings(
    *,
    config: Path | None = None,
    host: str = "abmil",
    gce: bool = True,
    recipe: str = "default",
    preset: Any = "common",
    epochs: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    device: str | None = None,
    precision: str | None = None,
) -> TrainSettings:
    """Settings from the file or the preset, then the options, then the assignments."""
    from gcemil.config import HostSettings, TrainSettings, read_train_settings
    from gcemil.hosts.own import check_trust

    if config is not None and preset != "common":
        raise UsageError(f"--preset {preset} and --config both say how to train. Give one of them.")
    if config is not None:
        settings, is_run = read_train_settings(config)
        if is_run:
            # A class that a run names is not the word of who reads the run.
            check_trust(settings.host.name, config)
    else:
        host_spec(host)
        settings = with_recipe(TrainSettings(host=HostSettings(name=host)), recipe, plain=not gce)
        settings = with_preset(settings, preset)
    changes = {"epochs": epochs, "seed": seed}
    settings = settings.model_copy(
        update={key: value for key, value in changes.items() if value is not None}
    )
    given = {"device": device, "precision": precision}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    settings = with_overrides(settings, [*overrides, *options])
    host_spec(settings.host.name)
    return settings


def parse_folds(text: str) -> list[int] | None:
    """Numbers separated by commas; None for all."""
    return None if text == "all" else parse_numbers(text, "--folds is 'all' or numbers such as 0,2")


def parse_numbers(text: str, form: str) -> list[int]:
    """Whole numbers separated by commas; `form` says how they are written."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{form}; got '{text}'.") from error


def parse_pairs(texts: list[str], form: str, read: Callable[[str], T]) -> dict[str, T]:
    """Options written NAME=VALUE, by name; `form` says how they are written where `read` raises a ValueError."""
    found = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            if not name:
                raise ValueError
            found[name] = read(value)
        except ValueError as error:
            raise UsageError(f"{form}, got '{text}'.") from error
    return found


def parse_parts(text: str) -> tuple[int, int, int]:
    """Sizes of the three parts of a split, from '90,30,300'."""
    form = "--parts are three whole numbers such as 90,30,300"
    numbers = parse_numbers(text, form)
    if len(numbers) != 3 or min(numbers) < 0:
        raise UsageError(f"{form}; got '{text}'.")
    train, val, test = numbers
    return train, val, test
