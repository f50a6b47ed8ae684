"""A grid file: which hosts on which cohorts in which arms, over which folds and seeds. Closed, bounded, documented."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gcemil.config import Preset, Settings

Arm = Literal["host", "gce", "host_long", "gce_random_anchors", "gce_paper"]
PLAIN_ARMS: tuple[Arm, ...] = ("host", "host_long")
"""Arms without the wrapper. They have no evidence; diagnostics see them beside the wrapped arms."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

SIMULATION: dict[str, Any] = {"size": "default", "seed": 0, "slides": None, "dim": None, "dials": {}}
"""What a cohort folder leaves at its default."""

Overrides = dict[str, Any]


class CohortSettings(Settings):
    """A cohort to simulate, or the folder of one that exists."""

    folder: Path | None = Field(
        None, description="An existing cohort with folds; relative to the grid file. In place of a profile."
    )
    profile: str | None = Field(None, description="The dataset whose stand-in is simulated.")
    size: Literal["tiny", "default", "wide", "full"] = Field(
        "default", description="Rung of the size ladder."
    )
    seed: int = Field(0, ge=0, description="Seed of the simulated world and of its folds.")
    slides: int | None = Field(None, ge=5, description="In place of the size's number of slides.")
    dim: int | None = Field(None, ge=8, description="In place of the size's feature width.")
    dials: dict[str, float | int] = Field(default_factory=dict, description="Dials of the simulator.")
    dataset: str | None = Field(
        None,
        description="The paper's dataset that this stands for; the profile, or the cohort's name, by default.",
    )
    encoder: str | None = Field(
        None, description="The encoder, or the one it stands in for, as tables shall name it."
    )

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> CohortSettings:
        if (self.folder is None) == (self.profile is None):
            raise ValueError("a cohort has either a folder or a profile")
        simulation = [name for name in SIMULATION if getattr(self, name) != SIMULATION[name]]
        if self.folder is not None and simulation:
            raise ValueError(f"a cohort folder is not simulated: remove {', '.join(simulation)}")
        return self


class Resources(Settings):
    """What one run is given. Every run computes on one thread, so that numbers do not depend on the machine."""

    cpus: float = Field(1.0, gt=0, description="Cores reserved per run.")
    gpus: float = Field(
        0.0, ge=0, description="Accelerators per run, also in fractions; 0 trains on the CPU."
    )
    memory_gb: float = Field(2.0, gt=0, description="Memory reserved per run.")


class Grid(Settings):
    """Hosts x cohorts x (arms and variants) x seeds x folds."""

    name: str = Field(description="Names the grid inside a results folder.")
    cohorts: dict[str, CohortSettings] = Field(min_length=1)
    hosts: tuple[str, ...] = Field(min_length=1)
    arms: tuple[Arm, ...] = Field(
        ("host", "gce"), description="Plain and wrapped hosts, and fairness controls."
    )
    variants: dict[str, Overrides] = Field(
        default_factory=dict, description="Ablations of the arm gce: name, then settings by dotted name."
    )
    folds: tuple[int, ...] = Field((0, 1, 2, 3, 4), min_length=1)
    folds_by_host: dict[str, tuple[int, ...]] = Field(
        default_factory=dict, description="In place of `folds` for hosts that take too long."
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="Seeds of training.")
    preset: Preset = Field(
        "common", description="The common recipe for all hosts, or how the authors of each train it."
    )
    settings: Overrides = Field(
        default_factory=dict,
        description="Training settings of all runs by dotted name; evidence.* leaves plain hosts alone.",
    )
    diagnostics: tuple[str, ...] = Field((), description="Made for every finished fold of a wrapped host.")
    diagnostic_options: dict[str, Overrides] = Field(
        default_factory=dict,
        description="Options of a diagnostic by name, such as budget: {budgets: [recovered]} for slow hosts.",
    )
    resources: Resources = Resources()

    @classmethod
    def load(cls, path: Path) -> Grid:
        """The grid in this file, its cohort folders made absolute."""
        grid = cls.from_yaml(path)
        cohorts = {
            name: cohort
            if cohort.folder is None
            else cohort.model_copy(update={"folder": Path(os.path.realpath(path.parent / cohort.folder))})
            for name, cohort in grid.cohorts.items()
        }
        return grid.model_copy(update={"cohorts": cohorts})

    @field_validator("hosts", "arms", "folds", "seeds", "diagnostics")
    @classmethod
    def _has_nothing_twice(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) < len(values):
            raise ValueError("an entry stands twice")
        return values

    @field_validator("folds", "seeds")
    @classmethod
    def _is_not_negative(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if min(values) < 0:
            raise ValueError("folds and seeds are 0 or more")
        return values

    @field_validator("folds_by_host")
    @classmethod
    def _names_folds(cls, values: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        for host, folds in values.items():
            if not folds or min(folds) < 0 or len(set(folds)) < len(folds):
                raise ValueError(f"folds of '{host}' are distinct numbers from 0 on, at least one")
        return values

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Grid:
        # Names become folders.
        check_names([self.name, *self.cohorts, *self.variants])
        if not self.arms and not self.variants:
            raise ValueError("a grid needs at least one arm or variant")
        if taken := sorted(set(self.variants) & {*PLAIN_ARMS, "gce", "gce_random_anchors", "gce_paper"}):
            raise ValueError(f"'{taken[0]}' is the name of an arm; name the variant otherwise")
        if unknown := sorted(set(self.folds_by_host) - set(self.hosts)):
            raise ValueError(f"folds_by_host names '{unknown[0]}', which is not among the hosts")
        for key in (key for changes in (self.settings, *self.variants.values()) for key in changes):
            if key in {"seed", "device", "host.name", "host", "evidence"}:
                raise ValueError(f"'{key}' follows from the grid itself (seeds, resources, hosts, arms)")
        return self


def check_names(names: Iterable[str]) -> None:
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"'{name}' cannot be a name: use letters, digits, '.', '_' and '-', and begin with a letter or digit"
            )
