"""The hosts, and how any host is made by its name. A new one is one file and one entry here.

A name is one of these, one that an installed package registers, or the import path of a class
(hosts/own.py).
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcemil.errors import ConfigError, InputError, UsageError
from gcemil.hosts import own
from gcemil.wording import did_you_mean

if TYPE_CHECKING:
    from gcemil.config import Preset, TrainSettings
    from gcemil.hosts.host import GateMode, MilHost

    AnyHost = MilHost[Any]
else:
    # The command line lists the hosts by name: settings and torch are loaded where they are used.
    GateMode, AnyHost, Preset, TrainSettings = str, object, str, object

Changes = Mapping[str, Any]

RATE_WIDTH = 128
"""Adam's steps move the outputs of wide layers further; the rate is that of this width or less."""


@dataclass(frozen=True)
class HostSpec:
    """An entry of `HOSTS`: the class of a host and its default settings.

    Example:
        >>> import gcemil
        >>> spec = gcemil.HOSTS["abmil"]
        >>> spec.class_name, spec.load().__name__
        ('Abmil', 'Abmil')
        >>> spec.default_rate(128), round(spec.default_rate(1024), 6)
        (0.0005, 0.000105)
    """

    module: str
    """The module of the class."""
    class_name: str
    """The name of the class."""
    default_gate_mode: GateMode | None = None
    """The better mode by measurement (docs/hosts.md); None: the default of the constructor."""
    learning_rate: float = 5e-4
    """By default, for features of up to `RATE_WIDTH` (see `default_rate`)."""
    rate_power: float = 0.75
    """How fast the rate falls with wider features; 0: the same at every width."""
    max_patches: int = 2048
    """Patches sampled from a training bag by default; a transformer takes fewer."""
    temperature_end: float = 0.1
    """Final temperature of its gates; lower for a host that attends evenly."""
    options: Changes = field(default_factory=dict)
    """Options in the common recipe, where those of the class do not learn (docs/training.md)."""
    parameters: int | None = None
    """Trainable parameters at width 1024 and two outputs; None: not counted."""
    published: Changes | None = None
    """How its authors train it, where that differs from the common recipe (docs/training.md)."""

    @property
    def is_own(self) -> bool:
        """Whether its code is not part of gcemil, so that it is checked before it is used."""
        return self.module.split(".")[0] != "gcemil"

    def default_rate(self, in_dim: int) -> float:
        """The learning rate unless one is set: wider features take smaller steps.

        Args:
            in_dim: Width of the features.

        Returns:
            learning_rate * (RATE_WIDTH / in_dim) ** rate_power, at most learning_rate.
        """
        return self.learning_rate * min(1.0, RATE_WIDTH / in_dim) ** self.rate_power

    def load(self) -> type[AnyHost]:
        """Import the class of the host.

        Returns:
            The class.

        Raises:
            UsageError: The module or the class cannot be imported.
        """
        if self.is_own:
            return own.import_class(f"{self.module}:{self.class_name}")
        host_class: type[AnyHost] = getattr(import_module(self.module), self.class_name)
        return host_class


ONE_BAG_A_STEP: Changes = {
    "optimizer": "adam",
    "schedule": "constant",
    "clip": None,
    "bags_per_step": 1,
    "max_patches": "all",
}
"""What all publications share."""

UNTIL_LOSS_RISES: Changes = {
    "epochs": 200,
    "chosen_from": 0.25,
    "chosen_by": "loss",
    "early_stopping": 20,
}
"""What CLAM's authors do, and those of HDMIL after them."""

HOSTS: dict[str, HostSpec] = {
    "abmil": HostSpec(
        "gcemil.hosts.abmil", "Abmil", "paper", parameters=657_283,
        published={
            "learning_rate": 5e-4, "weight_decay": 1e-4, "epochs": 20, "chosen_from": 1.0,
            "host.options": {"dropout": 0.0},
        },
    ),
    "clam_sb": HostSpec(
        "gcemil.hosts.clam", "ClamSb", "paper", parameters=790_791,
        published={
            "learning_rate": 2e-4, "weight_decay": 1e-5, **UNTIL_LOSS_RISES,
            "host.options": {"dropout": 0.25},
        },
    ),
    "transmil": HostSpec(
        "gcemil.hosts.transmil", "TransMil", "deletion",
        learning_rate=2e-4, rate_power=0, max_patches=512, parameters=2_672_146,
        published={
            "optimizer": "lookahead_radam", "learning_rate": 2e-4, "weight_decay": 1e-5,
            "epochs": 200, "chosen_from": 0.0, "chosen_by": "loss", "early_stopping": 10,
            "bags_per_step": 2, "host.options": {"dropout": 0.1},
        },
    ),
    "dsmil": HostSpec(
        "gcemil.hosts.dsmil", "Dsmil", "deletion", rate_power=0, temperature_end=0.001,
        parameters=153_860,
        published={
            "betas": (0.5, 0.9), "learning_rate": 1e-4, "weight_decay": 1e-3, "epochs": 50,
            "schedule": "cosine", "final_rate": 5e-6, "chosen_from": 0.0, "early_stopping": 10,
        },
    ),
    "dtfd": HostSpec(
        "gcemil.hosts.dtfd", "Dtfd", "deletion", parameters=789_254,
        published={
            "learning_rate": 1e-4, "weight_decay": 1e-4, "epochs": 200, "schedule": "step",
            "clip": 5.0, "chosen_from": 0.8,
        },
    ),
    "ibmil": HostSpec(
        "gcemil.hosts.ibmil", "Ibmil", "paper", parameters=723_971,
        published={
            "betas": (0.5, 0.9), "learning_rate": 1e-4, "weight_decay": 1e-4, "epochs": 50,
            "schedule": "cosine", "final_rate": 5e-6, "chosen_from": 1.0,
            "host.options": {"dropout": 0.0},
        },
    ),
    "mhim": HostSpec(
        "gcemil.hosts.mhim", "Mhim", "deletion", parameters=591_490,
        published={
            "learning_rate": 2e-4, "weight_decay": 1e-5, "epochs": 200, "schedule": "cosine",
            "chosen_from": 0.65, "early_stopping": 30,
            "host.options": {"dropout": 0.25, "momentum": 0.9999},
        },
    ),
    "camil": HostSpec(
        "gcemil.hosts.camil", "Camil", "deletion",
        learning_rate=2e-4, rate_power=0, max_patches=512, parameters=2_231_178,
        published={
            "learning_rate": 2e-4, "weight_decay": 0.0, "epochs": 30,
            "chosen_from": 0.0, "chosen_by": "loss", "early_stopping": 20,
        },
    ),
    "hdmil": HostSpec(
        "gcemil.hosts.hdmil", "Hdmil", "deletion", options={"degree": 3}, parameters=827_906,
        published={
            "learning_rate": 3e-4, "weight_decay": 1e-5, **UNTIL_LOSS_RISES,
            "host.options": {"degree": 12, "dropout": 0.25, "normalisation": "joint"},
        },
    ),
    "clam_mb": HostSpec(
        "gcemil.hosts.clam", "ClamMb", "paper", parameters=791_048,
        published={
            "learning_rate": 2e-4, "weight_decay": 1e-5, **UNTIL_LOSS_RISES,
            "host.options": {"dropout": 0.25},
        },
    ),
    "acmil": HostSpec(
        "gcemil.hosts.acmil", "Acmil", "paper", parameters=662_417,
        published={
            "optimizer": "adamw", "learning_rate": 1e-4, "weight_decay": 1e-5, "epochs": 100,
            "schedule": "cosine", "chosen_from": 0.0,
        },
    ),
    "additive": HostSpec("gcemil.hosts.additive", "Additive", "paper", parameters=787_843),
    "mean": HostSpec("gcemil.hosts.baselines", "Mean", "paper", parameters=525_826),
    "max": HostSpec("gcemil.hosts.baselines", "Max", "paper", parameters=525_826),
    "linear": HostSpec("gcemil.hosts.baselines", "Linear", "paper", parameters=2_050),
}  # fmt: skip


def host_spec(name: str) -> HostSpec:
    """What is known of a host by its name; nothing is imported."""
    if name in HOSTS:
        return HOSTS[name]
    if (path := own.registered_path(name)) is not None:
        return HostSpec(*path)
    if own.is_import_path(name):
        return HostSpec(*own.split_path(name, "Host"))
    raise UsageError(
        f"Unknown host '{name}'.{did_you_mean(name, HOSTS)} Choose one of: "
        f"{', '.join([*HOSTS, *own.registered_names()])}; "
        "or name a class of your own as package.module:Class."
    )


def create_host(
    name: str,
    *,
    in_dim: int,
    n_outputs: int,
    gate_mode: GateMode | None = None,
    options: Mapping[str, object] | None = None,
) -> AnyHost:
    """Make a host with fresh weights.

    Args:
        name: One of `HOSTS`, a host that an installed package registers, or "package.module:Class".
        in_dim: Width of the features.
        n_outputs: Number of classes; 1 for a risk or a value.
        gate_mode: Where gates act; None takes the default of the host.
        options: Further arguments of its class.

    Returns:
        The host in training mode.

    Raises:
        UsageError: The name is unknown, or an option does not exist.

    Example:
        >>> import gcemil, torch
        >>> host = gcemil.create_host("abmil", in_dim=8, n_outputs=2)
        >>> host(torch.randn(5, 8)).logits.shape
        torch.Size([2])
    """
    from gcemil.config import LARGEST_SIZE

    spec = host_spec(name)
    options = dict(options or {})
    for key, value in options.items():
        if isinstance(value, int) and value > LARGEST_SIZE:
            raise UsageError(
                f"Host '{name}': option '{key}' is at most {LARGEST_SIZE:,}, got {value}."
            )
    host_class = spec.load()
    mode = gate_mode or spec.default_gate_mode
    given = {"in_dim": in_dim, "n_outputs": n_outputs, "gate_mode": mode}
    if name not in HOSTS and own.is_import_path(name):
        # Naming a class in a call is consent to run its code, also for runs that name the same
        # class.
        own.trust_host(name)
    # Torch comes with the adapters, which a list of names must not need.
    make = import_module("gcemil.hosts.adapters").create_own if spec.is_own else construct
    host: AnyHost = make(name, host_class, given, options)
    vars(host)["drawn_weights"] = mark_weights(host)
    return host


def construct(
    name: str, host_class: type, given: Mapping[str, Any], options: Mapping[str, object]
) -> Any:
    """An object of the class: `given` as far as its constructor takes it, and every option."""
    parameters = inspect.signature(host_class).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    accepted = [
        key for key, one in parameters.items() if one.kind not in variadic and key not in given
    ]
    if unknown := sorted(option for option in options if option not in accepted and not takes_all):
        raise UsageError(
            f"Host '{name}' has no option '{unknown[0]}'. "
            f"It accepts: {', '.join(accepted) or 'none'}."
        )
    taken = {key: value for key, value in given.items() if key in parameters or takes_all}
    if given.get("gate_mode") is not None and "gate_mode" not in taken:
        raise UsageError(f"Host '{name}' takes no gate_mode. Leave host.gate_mode empty.")
    if taken.get("gate_mode", "") is None:
        del taken["gate_mode"]
    arguments = {**taken, **options}
    for key in accepted:
        if parameters[key].default is inspect.Parameter.empty and key not in arguments:
            raise UsageError(
                f"Host '{name}' cannot be made: its constructor needs '{key}'. gcemil gives "
                "in_dim, n_outputs and gate_mode under these names; give the rest with "
                f"--set host.options.{key}=VALUE."
            )
    try:
        return host_class(**arguments)
    except (TypeError, ValueError, RuntimeError, ArithmeticError, AssertionError) as error:
        made_with = f"the options {dict(options)}" if options else "its default options"
        raise UsageError(
            f"Host '{name}' cannot be made with {made_with} ({describe_failure(error)})."
        ) from error


def describe_failure(error: BaseException) -> str:
    """What went wrong in a host, and in which line of which file."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def mark_weights(host: AnyHost) -> tuple[float, ...] | None:
    """A sum per weight, by which a trained host is known; None on the meta device."""
    weights = [one.detach() for one in host.parameters()]
    if any(one.is_meta for one in weights):
        return None
    return tuple(float(one.double().sum()) for one in weights)


def is_untrained(host: object) -> bool:
    """Whether a host of `create_host` still has the weights it was created with."""
    drawn = getattr(host, "drawn_weights", None)
    return bool(drawn) and drawn == mark_weights(host)  # type: ignore[arg-type]


def patch_limit(settings: TrainSettings) -> int | None:
    """Patches that are sampled from a training bag; None takes all."""
    if settings.max_patches == "host":
        return host_spec(settings.host.name).max_patches
    return None if settings.max_patches == "all" else settings.max_patches


def with_recipe(settings: TrainSettings, name: str, *, plain: bool = False) -> TrainSettings:
    """The settings under a recipe; `plain` leaves the evidence out."""
    from gcemil.config import RECIPES

    recipe = RECIPES[name]
    # A host that is not built in has no grouping in the paper.
    gate_mode = recipe.gate_mode if settings.host.name in HOSTS else None
    host = settings.host.model_copy(update={"gate_mode": gate_mode or settings.host.gate_mode})
    evidence = None if plain else recipe.evidence
    return settings.model_copy(update={**recipe.training, "evidence": evidence, "host": host})


def with_preset(settings: TrainSettings, preset: Preset) -> TrainSettings:
    """The settings as they are, or with everything that the host's authors train otherwise.

    A wrapped host is never chosen before its gates have cooled, however early its authors would
    stop.
    """
    from gcemil.config import EARLIEST_SELECTABLE_EPOCH

    if preset == "common":
        return settings
    published = host_spec(settings.host.name).published
    if published is None:
        having = [name for name, spec in HOSTS.items() if spec.published is not None]
        raise ConfigError(
            f"Host '{settings.host.name}' has no published settings. "
            f"Those with: {', '.join(having)}."
        )
    changes = {**ONE_BAG_A_STEP, **published}
    options = {**changes.pop("host.options", {}), **settings.host.options}
    if settings.evidence is not None:
        changes["chosen_from"] = max(changes["chosen_from"], EARLIEST_SELECTABLE_EPOCH)
    host = settings.host.model_copy(update={"options": options})
    return settings.model_copy(update={**changes, "host": host})


def with_overrides(settings: TrainSettings, overrides: list[str]) -> TrainSettings:
    """The settings with dotted assignments applied, such as evidence.budget=0.1."""
    from pydantic import ValidationError

    from gcemil.config import TrainSettings
    from gcemil.files import parse_yaml
    from gcemil.wording import describe_unknown_setting, readable

    values = settings.model_dump(mode="json")
    for text in overrides:
        path, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"A setting is written key=value, such as epochs=20; got '{text}'.")
        *parents, last = path.split(".")
        if fault := describe_unknown_setting(path, TrainSettings):
            raise ConfigError(fault)
        target: Any = values
        for parent in parents:
            target = target[parent] if isinstance(target, dict) else None
            if target is None:
                raise ConfigError(
                    f"'{path}' cannot be set: '{'.'.join(parents)}' is switched off "
                    "in these settings."
                )
        try:
            target[last] = parse_yaml(value, f"The value of '{path}'")
        except InputError as error:
            raise ConfigError(str(error)) from error
    try:
        return TrainSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{readable(error, TrainSettings)}.") from error
