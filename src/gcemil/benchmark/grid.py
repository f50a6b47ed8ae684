"""A grid file: which hosts on which cohorts in which arms, over which folds and seeds.

A grid becomes a list of work: cohorts, folds to train, folds to diagnose; the same grid gives the
same plan. One run folder per (cohort, host, arm or variant, seed); the unit of work is its fold. A
wrapped fold is diagnosed once it is trained, and beside it the plain host's fold of the same
cohort, host and seed and, for stability, the same fold of the other seeds.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, NonNegativeInt, model_validator

from gcemil.config import RECIPES as RECIPE_TABLE
from gcemil.config import HostSettings, Preset, Settings, TrainSettings
from gcemil.errors import ConfigError, UsageError
from gcemil.hosts.own import folder_name
from gcemil.hosts.table import host_spec, with_overrides, with_preset, with_recipe
from gcemil.simulation.profile import load_profile, resolve_dials

Arm = Literal[
    "host",
    "gce",
    "host_long",
    "gce_random_anchors",
    "host_paper",
    "gce_paper",
    "gce_paper_constrained",
]
PLAIN_ARMS: tuple[Arm, ...] = ("host", "host_long", "host_paper")
"""Arms without the wrapper, and so without evidence."""
RECIPES: dict[Arm, str] = {
    "host_paper": "paper",
    "gce_paper": "paper",
    "gce_paper_constrained": "paper_constrained",
}
"""Arms of another recipe than the default; host_paper is the plain host on the paper's schedule."""
LONG = 2
"""How many times the epochs of `host` the fairness control `host_long` trains."""
RECIPE = "recipe"
"""Key of a variant that names a recipe in place of the default one."""
MOST_TRIALS = 64
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SIMULATION = ("size", "seed", "slides", "parts", "dim", "dials")
"""Settings of a simulated cohort alone."""


def _check_distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("an entry is listed twice")
    return values


def _check_some(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("at least one entry is needed")
    return values


Overrides = dict[str, Any]
Numbers = Annotated[
    tuple[NonNegativeInt, ...], AfterValidator(_check_some), AfterValidator(_check_distinct)
]
Names = Annotated[tuple[str, ...], AfterValidator(_check_distinct)]


class CohortSettings(Settings):
    """A cohort to simulate, or the folder of one that exists."""

    folder: Path | None = None
    """An existing cohort with folds, relative to the grid file; in place of a profile."""
    profile: str | None = None
    """The dataset whose stand-in is simulated."""
    size: Literal["tiny", "default", "wide", "full"] = "default"
    """Rung of the size ladder."""
    seed: int = Field(0, ge=0)
    """Seed of the simulated world and of its folds."""
    slides: int | None = Field(None, ge=5)
    """In place of the size's number of slides."""
    parts: tuple[int, int, int] | None = None
    """Slides to train, validate and test on, in place of slides and of five folds: fold 0 alone."""
    dim: int | None = Field(None, ge=8)
    """In place of the size's feature width."""
    dials: dict[str, float | int] = Field(default_factory=dict)
    """Dials of the simulator."""
    dataset: str | None = None
    """The paper's dataset that this stands for; by default the profile, or the cohort's name."""
    encoder: str | None = None
    """The encoder, or the one it stands in for, as it is named in tables."""

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> CohortSettings:
        if (self.folder is None) == (self.profile is None):
            raise ValueError("a cohort has either a folder or a profile")
        changed = self.model_dump(exclude_defaults=True)
        simulation = [name for name in SIMULATION if name in changed]
        if self.folder is not None and simulation:
            raise ValueError(f"a cohort folder is not simulated: remove {', '.join(simulation)}")
        if self.parts is not None and (self.slides is not None or min(self.parts) < 1):
            raise ValueError(
                f"parts are three numbers of slides in place of 'slides', got {self.parts}"
            )
        return self

    @property
    def n_slides(self) -> int | None:
        """Slides to simulate; None leaves it to the size."""
        return self.slides if self.parts is None else sum(self.parts)


class Resources(Settings):
    """What one run is given; it computes on one thread."""

    cpus: float = Field(1.0, gt=0)
    """Cores reserved per run."""
    gpus: float = Field(0.0, ge=0)
    """Accelerators per run, also in fractions; 0 trains on the CPU."""
    memory_gb: float = Field(2.0, gt=0)
    """Memory reserved per run."""


class Grid(Settings):
    """Hosts x cohorts x (arms and variants) x seeds x folds."""

    name: str
    """Names the grid inside a results folder."""
    cohorts: dict[str, CohortSettings] = Field(min_length=1)
    hosts: Names = Field(min_length=1)
    arms: Annotated[tuple[Arm, ...], AfterValidator(_check_distinct)] = ("host", "gce")
    """Plain and wrapped hosts, and fairness controls."""
    variants: dict[str, Overrides] = Field(default_factory=dict)
    """Ablations of gce: name, then settings by dotted name; 'recipe' names one to start from."""
    search: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """A sweep: settings with the values to try; the best on validation is chosen fold by fold."""
    folds: Numbers = (0, 1, 2, 3, 4)
    folds_by_host: dict[str, Numbers] = Field(default_factory=dict)
    """In place of `folds` for hosts that take too long."""
    seeds: Numbers = (0,)
    """Seeds of training."""
    preset: Preset = "common"
    """The common recipe for all hosts, or how the authors of each train it."""
    settings: Overrides = Field(default_factory=dict)
    """Training settings of all runs by dotted name; evidence.* leaves plain hosts alone."""
    settings_by_host: dict[str, Overrides] = Field(default_factory=dict)
    """The same for one host, after `settings`; such as a smaller size of a host with tokens."""
    diagnostics: Names = ()
    """Made for every finished fold of a wrapped host."""
    diagnostics_by_cohort: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """In place of `diagnostics` for a cohort, such as one with lesions."""
    diagnostic_options: dict[str, Overrides] = Field(default_factory=dict)
    """Options of a diagnostic by name, such as budget: {budgets: [recovered]} for slow hosts."""
    resources: Resources = Resources()

    @property
    def trials(self) -> dict[str, Overrides]:
        """Every combination of the sweep by its name."""
        combinations = product(*self.search.values()) if self.search else ()
        return {
            f"search_{i:02d}": dict(zip(self.search, values, strict=True))
            for i, values in enumerate(combinations)
        }

    @property
    def searched_arm(self) -> Arm:
        """The arm whose settings the sweep changes."""
        return "host" if self.arms and set(self.arms) <= set(PLAIN_ARMS) else "gce"

    @classmethod
    def load(cls, path: Path) -> Grid:
        """The grid in this file, its cohort folders made absolute."""
        grid, cohorts = cls.from_yaml(path), {}
        for name, cohort in grid.cohorts.items():
            folder = cohort.folder and Path(os.path.realpath(path.parent / cohort.folder))
            cohorts[name] = cohort.model_copy(update={"folder": folder})
        return grid.model_copy(update={"cohorts": cohorts})

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Grid:
        for name in (self.name, *self.cohorts, *self.variants):
            # It becomes a folder.
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"'{name}' cannot be a name: use letters, digits, '.', '_' and '-', and begin "
                    "with a letter or digit"
                )
        if not self.arms and not self.variants and not self.search:
            raise ValueError("a grid needs at least one arm, variant or search")
        if empty := [name for name, values in self.search.items() if not values]:
            raise ValueError(f"search lists no value for '{empty[0]}'")
        if len(self.trials) > MOST_TRIALS:
            raise ValueError(
                f"search has {len(self.trials)} combinations, and at most {MOST_TRIALS} are tried: "
                "more would fit the validation part by chance; list fewer values"
            )
        if taken := sorted(name for name in self.variants if name.startswith("search")):
            raise ValueError(f"'{taken[0]}' is kept for the sweep; name the variant otherwise")
        if taken := sorted(set(self.variants) & set(get_args(Arm))):
            raise ValueError(f"'{taken[0]}' is the name of an arm; name the variant otherwise")
        by_name = ("folds_by_host", "settings_by_host", "diagnostics_by_cohort")
        for name, whole in zip(by_name, ("hosts", "hosts", "cohorts"), strict=True):
            if unknown := sorted(set(getattr(self, name)) - set(getattr(self, whole))):
                raise ValueError(f"{name} names '{unknown[0]}', which is not among the {whole}")
        for name, values in self.variants.items():
            if (recipe := values.get(RECIPE, "default")) not in RECIPE_TABLE:
                raise ValueError(
                    f"variant '{name}' names the recipe '{recipe}'; there are: "
                    f"{', '.join(RECIPE_TABLE)}"
                )
        changes = (*self.settings_by_host.values(), *self.variants.values())
        for key in (key for one in (self.settings, *changes, self.search) for key in one):
            if key in {"seed", "device", "host.name", "host", "evidence"}:
                raise ValueError(
                    f"'{key}' follows from the grid itself (seeds, resources, hosts, arms)"
                )
        return self


@dataclass(frozen=True)
class CohortKey:
    """A cohort that runs need."""

    cohort: str

    @property
    def path(self) -> PurePosixPath:
        """Its folder in the results."""
        return PurePosixPath("cohorts", self.cohort)


@dataclass(frozen=True)
class RunKey:
    """One fold of one run."""

    cohort: str
    host: str
    arm: Arm
    variant: str | None
    """An ablation of the arm, None for the arm itself."""
    seed: int
    fold: int

    @property
    def label(self) -> str:
        """The folder of the arm or variant."""
        return self.variant or self.arm

    @property
    def run_path(self) -> PurePosixPath:
        """The folder of the run in the results."""
        return PurePosixPath(
            "runs", self.cohort, folder_name(self.host), self.label, f"seed_{self.seed}"
        )

    @property
    def path(self) -> PurePosixPath:
        """The folder of the fold."""
        return self.run_path / f"fold_{self.fold}"

    @property
    def is_plain(self) -> bool:
        """Whether it is a host without evidence."""
        return self.arm in PLAIN_ARMS


@dataclass(frozen=True)
class DiagnosisKey:
    """The diagnostics of one trained fold."""

    run: RunKey

    @property
    def cohort(self) -> str:
        """The cohort of its run."""
        return self.run.cohort

    @property
    def path(self) -> PurePosixPath:
        """The folder of its findings."""
        return self.run.path / "diagnostics"


Key = CohortKey | RunKey | DiagnosisKey


def plan_runs(grid: Grid) -> tuple[RunKey, ...]:
    """Every fold to train: by cohort, host and seed, plain arms first, a run's folds together."""
    check_names_exist(grid)
    return tuple(
        RunKey(cohort, host, arm, variant, seed, fold)
        for cohort in grid.cohorts
        for host in grid.hosts
        for seed in grid.seeds
        for arm, variant in _arms_and_variants(grid)
        for fold in grid.folds_by_host.get(host, grid.folds)
    )


def plan_work(grid: Grid) -> tuple[Key, ...]:
    """Everything to do: cohorts ahead of their runs, runs ahead of their diagnostics."""
    keys: dict[Key, None] = {}
    for (cohort, _, _), group in groupby(
        plan_runs(grid), lambda run: (run.cohort, run.host, run.seed)
    ):
        runs = list(group)
        keys |= dict.fromkeys([CohortKey(cohort), *runs])
        keys |= dict.fromkeys(DiagnosisKey(run) for run in runs if fold_diagnostics(grid, run))
    return tuple(keys)


def plain_rival(grid: Grid, run: RunKey) -> RunKey | None:
    """The plain host beside which a wrapped fold is diagnosed, where the grid has one."""
    if run.is_plain or "host" not in grid.arms:
        return None
    return replace(run, arm="host", variant=None)


def other_seeds(grid: Grid, run: RunKey) -> tuple[RunKey, ...]:
    """The same fold trained from the other seeds, where stability is measured."""
    if "stability" not in fold_diagnostics(grid, run):
        return ()
    return tuple(replace(run, seed=seed) for seed in grid.seeds if seed != run.seed)


def fold_diagnostics(grid: Grid, run: RunKey) -> tuple[str, ...]:
    """The diagnostics of a fold; none for a plain host, and for a trial of a sweep."""
    if run.is_plain or run.variant in grid.trials:
        return ()
    return grid.diagnostics_by_cohort.get(run.cohort, grid.diagnostics)


def _arms_and_variants(grid: Grid) -> list[tuple[Arm, str | None]]:
    plain_first = sorted(grid.arms, key=lambda arm: arm not in PLAIN_ARMS)
    variants: list[tuple[Arm, str | None]] = [("gce", variant) for variant in grid.variants]
    trials: list[tuple[Arm, str | None]] = [(grid.searched_arm, trial) for trial in grid.trials]
    return [*((arm, None) for arm in plain_first), *variants, *trials]


def run_settings(grid: Grid, key: RunKey) -> TrainSettings:
    """The settings of a run: its arm, preset, and the changes of the grid and the variant."""
    settings = TrainSettings(
        host=HostSettings(name=key.host),
        seed=key.seed,
        device="cuda" if grid.resources.gpus else "cpu",
    )
    own = {**grid.variants, **grid.trials}[key.variant] if key.variant else {}
    recipe = own.get(RECIPE, RECIPES.get(key.arm, "default"))
    settings = with_recipe(settings, recipe, plain=key.is_plain)
    settings = with_preset(settings, grid.preset)
    changes = {**grid.settings, **grid.settings_by_host.get(key.host, {})}
    if key.is_plain:
        changes = {k: value for k, value in changes.items() if not k.startswith("evidence.")}
    changes |= {name: value for name, value in own.items() if name != RECIPE}
    # JSON is read back by YAML as the same value.
    settings = with_overrides(
        settings, [f"{name}={json.dumps(value)}" for name, value in changes.items()]
    )
    if key.arm == "host_long":
        # Whichever of the three sets the length of the training.
        lengths = ("epochs", "min_steps", "min_epochs")
        values = {name: getattr(settings, name) for name in lengths}
        return settings.model_copy(update={k: LONG * value for k, value in values.items() if value})
    if key.arm == "gce_random_anchors":
        return with_overrides(settings, ["evidence.anchors=random"])
    return settings


def check_names_exist(grid: Grid) -> None:
    """Hosts, profiles, dials and settings that do not exist are found before anything runs."""
    for host in grid.hosts:
        try:
            host_spec(host)
        except UsageError as error:
            raise ConfigError(f"Grid '{grid.name}': {error}") from error
    for cohort in grid.cohorts.values():
        if cohort.profile is not None:
            resolve_dials(load_profile(cohort.profile).dials, cohort.dials)
    for arm, variant in _arms_and_variants(grid):
        for host in dict.fromkeys((grid.hosts[0], *grid.settings_by_host)):
            try:
                run_settings(grid, RunKey("", host, arm, variant, 0, 0))
            except ConfigError as error:
                raise ConfigError(
                    f"Grid '{grid.name}', '{variant or arm}' of {host}: {error}"
                ) from error
