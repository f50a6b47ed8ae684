"""Options that several commands share: one name, one meaning, one default.

--seed       the random seed; the same seed gives the same result
--jobs       how many pieces of the work run in parallel
--device     where the network computes: auto, cpu, cuda, cuda:1 or mps
--precision  in which numbers: 32 or bf16

A shared option is a type: `device: options.Device = None`. Names of settings stand here a second
time, because --help must not wait for the modules that define them; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from gcemil.errors import UsageError
from gcemil.hosts.table import HOSTS, host_spec, with_overrides, with_preset, with_recipe

if TYPE_CHECKING:
    from gcemil.config import TrainSettings

T = TypeVar("T")


def flag(name: str, what: str) -> Any:
    """An option without a value, off by default."""
    return typer.Option(False, name, help=what)


def seed(what: str, default: int | None = 0) -> Any:
    """--seed, which means the same everywhere; `what` is what it decides here."""
    text = f"Random seed ({what}); the same seed gives the same result."
    return typer.Option(default, "--seed", min=0, help=text)


def jobs(
    what: str, *, default: int | None = None, otherwise: str = "one per core", old: str = ""
) -> Any:
    """--jobs, which means the same everywhere; `what` is what runs in parallel here."""
    names = ("--jobs", *([old] if old else []))
    tail = f"; {otherwise} by default" if default is None else ""
    return typer.Option(default, *names, min=1, help=f"How many run in parallel: {what}{tail}.")


def _refuse_targets(run: Path | None) -> Path | None:
    from gcemil.runs.folder import Run

    if run is not None:
        Run(run).refuse_targets()
    return run


def run_argument(what: str, default: Any = ...) -> Any:
    """A run folder; a run of several targets is refused."""
    return typer.Argument(default, help=what, callback=_refuse_targets)


def _trust_hosts(names: list[str] | None) -> list[str] | None:
    """Consent to import these classes where a run names them."""
    from gcemil.hosts.own import trust_in_command

    for name in names or ():
        trust_in_command(name)
    return names


HEATMAPS = ("evidence", "gate", "attention", "marginal_gain", "fold_share", "class")
"""Measurements that can be drawn as a heat map (exports.evidence.HEATMAPS)."""
_LONG_NAMES = {"evidence": "evidence_score", "attention": "attention_score"}


def _read_heatmaps(names: list[str] | None) -> tuple[str, ...]:
    """The measurements, by their full names."""
    known = (*HEATMAPS, *_LONG_NAMES.values())
    for name in names or ():
        if name not in known:
            raise UsageError(f"--heatmap is one of {', '.join(HEATMAPS)}; got '{name}'.")
    return tuple(dict.fromkeys(_LONG_NAMES.get(name, name) for name in names or ()))


RunFolder = Annotated[Path, typer.Argument(help="A run folder.", callback=_refuse_targets)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TrustHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE.MODULE:CLASS",
        callback=_trust_hosts,
        help="A run trained with a host of your own: let it import this class, which RUNS ITS "
        "CODE. Remembered for this run.",
    ),
]

Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where the network computes: auto, cpu, cuda, cuda:1 or mps; auto takes a GPU where "
        "there is one.",
    ),
]
Precision = Annotated[
    Literal["32", "bf16"] | None,
    typer.Option(
        help="Numbers of the matrix products: float32, or bfloat16 where the processor has it; "
        "weights and losses stay in float32."
    ),
]
Engine = Annotated[
    Literal["local", "ray"],
    typer.Option(help="Processes on this machine, or tasks on a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray: the address of an existing cluster; without it a local one is started."
    ),
]
Folds = Annotated[str, typer.Option(metavar="NUMBERS", help="all, or numbers such as 0,2.")]

HOST_HELP = f"{', '.join(HOSTS)}; or a class of yours as package.module:Class, whose code is run."
RecipeName = Literal["default", "joint", "taught", "paper", "paper_constrained", "paper_budget"]

Weights = Annotated[
    Path | None,
    typer.Option(help="A local copy of the encoder's page, in place of the hub."),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run the Python code that comes with the encoder's page."
    ),
]

Task = Annotated[
    Literal["classification", "survival", "regression", "multilabel"] | None,
    typer.Option(
        help="What the table is read for, where it allows several; regression predicts numbers."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="The label table (CSV, TSV, XLSX), in any of the known dialects."),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="The label column, where there are several; with --task multilabel all of them: "
        "ER,PR,HER2."
    ),
]
Classes = Annotated[str | None, typer.Option(help="Class names in order, separated by commas.")]

UnitName = Literal["patch", "region"]
Unit = Annotated[
    UnitName,
    typer.Option(
        help="region: every connected region of the evidence is kept and removed by itself too."
    ),
]
HeatMaps = Annotated[
    list[str] | None,
    typer.Option(
        "--heatmap",
        metavar="|".join(HEATMAPS),
        callback=_read_heatmaps,
        help="Also write this measurement of all patches as a pyramidal OME-TIFF aligned with the "
        "slide (class: a map of every class); may be given several times.",
    ),
]
Sufficiency = Annotated[
    float, typer.Option(min=0, help="Largest change that still counts as sufficient.")
]
Necessity = Annotated[float, typer.Option(min=0, help="Smallest change that counts as necessary.")]
Recoverability = Annotated[
    float, typer.Option(min=0, help="Largest gap between gates and evidence.")
]


def find_cluster(engine: str, address: str | None) -> str | None:
    """The address of the Ray cluster, "local" for a new one on this machine; None for processes."""
    if address is not None and engine != "ray":
        raise UsageError("--address is the address of a Ray cluster: add --engine ray.")
    return (address or "local") if engine == "ray" else None


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    return str(context.get_parameter_source(name)).endswith("COMMANDLINE")


def require(value: T | None, name: str, context: typer.Context) -> T:
    """An argument or option that only one mode of a command does not need."""
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
    overrides: Sequence[str] = (),
    **options: Any,
) -> TrainSettings:
    """Settings from the file or the preset, then the options given, then the assignments."""
    from gcemil.config import HostSettings, TrainSettings, read_train_settings
    from gcemil.hosts.own import check_trust

    if config is not None and preset != "common":
        raise UsageError(f"--preset {preset} and --config both set the training. Give one of them.")
    if config is not None:
        settings, is_run = read_train_settings(config)
        if is_run:
            # A class that a run names is not the word of who reads the run.
            check_trust(settings.host.name, config)
    else:
        host_spec(host)
        settings = with_recipe(TrainSettings(host=HostSettings(name=host)), recipe, plain=not gce)
        settings = with_preset(settings, preset)
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    settings = with_overrides(settings, [*given, *overrides])
    host_spec(settings.host.name)
    return settings


def parse_folds(text: str) -> list[int] | None:
    """Numbers separated by commas; None for all."""
    return None if text == "all" else parse_numbers(text, "--folds is 'all' or numbers such as 0,2")


def parse_numbers(text: str, form: str) -> list[int]:
    """Whole numbers separated by commas; `form` shows how they are written."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{form}; got '{text}'.") from error


def parse_pairs(texts: list[str], form: str, read: Callable[[str], T]) -> dict[str, T]:
    """Options written NAME=VALUE, by name; `form` shows how they are written."""
    pairs = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            if not name:
                raise ValueError
            pairs[name] = read(value)
        except ValueError as error:
            raise UsageError(f"{form}, got '{text}'.") from error
    return pairs


def parse_parts(text: str) -> tuple[int, int, int]:
    """Sizes of the three parts of a split, from '90,30,300'."""
    form = "--parts are three whole numbers such as 90,30,300"
    numbers = parse_numbers(text, form)
    if len(numbers) != 3 or min(numbers) < 0:
        raise UsageError(f"{form}; got '{text}'.")
    train, val, test = numbers
    return train, val, test
