"""A grid as a list of work: cohorts, folds to train, folds to diagnose. Pure: the same grid gives the same plan.

One run folder per (cohort, host, arm or variant, seed), in the layout of any other run; the unit of work is its fold.
A wrapped fold is diagnosed once it is trained, and beside it the plain host's fold of the same cohort, host and seed and,
for stability, the same fold of the other seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from gcemil.benchmark.grid import PLAIN_ARMS, Arm, Grid
from gcemil.config import PAPER, EvidenceSettings, HostSettings, TrainSettings, with_overrides
from gcemil.errors import ConfigError, UsageError
from gcemil.hosts.own import folder_name
from gcemil.hosts.table import host_spec, with_preset
from gcemil.simulation.profile import load_profile, resolve_dials

LONG = 2
"""How many times the epochs of `host` the fairness control `host_long` trains."""


@dataclass(frozen=True)
class CohortKey:
    """A cohort that runs need."""

    cohort: str

    @property
    def path(self) -> PurePosixPath:
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
        return PurePosixPath("runs", self.cohort, folder_name(self.host), self.label, f"seed_{self.seed}")

    @property
    def path(self) -> PurePosixPath:
        return self.run_path / f"fold_{self.fold}"

    @property
    def is_plain(self) -> bool:
        return self.arm in PLAIN_ARMS


@dataclass(frozen=True)
class DiagnosisKey:
    """The diagnostics of one trained fold."""

    run: RunKey

    @property
    def cohort(self) -> str:
        return self.run.cohort

    @property
    def path(self) -> PurePosixPath:
        return self.run.path / "diagnostics"


Key = CohortKey | RunKey | DiagnosisKey


def plan_runs(grid: Grid) -> tuple[RunKey, ...]:
    """Every fold to train: by cohort, host and seed; within these plain arms first, a run's folds together."""
    check_names_exist(grid)
    return tuple(
        RunKey(cohort, host, arm, variant, seed, fold)
        for cohort in grid.cohorts
        for host in grid.hosts
        for seed in grid.seeds
        for arm, variant in arms_and_variants(grid)
        for fold in folds_of(grid, host)
    )


def plan_work(grid: Grid) -> tuple[Key, ...]:
    """Everything to do: each cohort ahead of its runs, the runs of a host and seed ahead of their diagnostics."""
    keys: dict[Key, None] = {}
    for (cohort, _, _), group in groupby(plan_runs(grid), lambda run: (run.cohort, run.host, run.seed)):
        runs = list(group)
        keys |= dict.fromkeys([CohortKey(cohort), *runs])
        keys |= dict.fromkeys(DiagnosisKey(run) for run in runs if fold_diagnostics(grid, run))
    return tuple(keys)


def list_needs(grid: Grid, key: Key) -> tuple[Key, ...]:
    """What is over and done with, well or badly, before this begins."""
    match key:
        case CohortKey():
            return ()
        case RunKey():
            return (CohortKey(key.cohort),)
        case DiagnosisKey(run):
            return tuple(
                run for run in (run, plain_rival(grid, run), *other_seeds(grid, run)) if run is not None
            )


def plain_rival(grid: Grid, run: RunKey) -> RunKey | None:
    """The plain host beside which a wrapped fold is diagnosed, where the grid has one."""
    return None if run.is_plain or "host" not in grid.arms else replace(run, arm="host", variant=None)


def other_seeds(grid: Grid, run: RunKey) -> tuple[RunKey, ...]:
    """The same fold trained from the other seeds, where stability is asked for."""
    if "stability" not in grid.diagnostics:
        return ()
    return tuple(replace(run, seed=seed) for seed in grid.seeds if seed != run.seed)


def fold_diagnostics(grid: Grid, run: RunKey) -> tuple[str, ...]:
    """A plain host has no evidence of its own; the wrapped runs show its rows beside theirs."""
    return () if run.is_plain else grid.diagnostics


def folds_of(grid: Grid, host: str) -> tuple[int, ...]:
    return grid.folds_by_host.get(host, grid.folds)


def arms_and_variants(grid: Grid) -> list[tuple[Arm, str | None]]:
    plain: list[tuple[Arm, str | None]] = [(arm, None) for arm in grid.arms if arm in PLAIN_ARMS]
    wrapped: list[tuple[Arm, str | None]] = [(arm, None) for arm in grid.arms if arm not in PLAIN_ARMS]
    return [*plain, *wrapped, *(("gce", variant) for variant in grid.variants)]


def run_settings(grid: Grid, key: RunKey) -> TrainSettings:
    """The settings of a run: its arm, then the preset, then what the grid and what the variant changes."""
    evidence = {"gce_paper": PAPER}.get(key.arm, EvidenceSettings())
    settings = TrainSettings(
        host=HostSettings(name=key.host),
        evidence=None if key.is_plain else evidence,
        seed=key.seed,
        device="cuda" if grid.resources.gpus else "cpu",
    )
    settings = with_preset(settings, grid.preset)
    changes = [
        (name, value)
        for name, value in grid.settings.items()
        if not (key.is_plain and name.startswith("evidence."))
    ]
    changes += grid.variants[key.variant].items() if key.variant else []
    settings = with_overrides(settings, assignments(changes))
    if key.arm == "host_long":
        return settings.model_copy(update={"epochs": LONG * settings.epochs})
    if key.arm == "gce_random_anchors":
        return with_overrides(settings, ["evidence.anchors=random"])
    return settings


def assignments(changes: Sequence[tuple[str, Any]]) -> list[str]:
    """key=value texts; JSON is read back by YAML as the same value."""
    return [f"{name}={json.dumps(value)}" for name, value in changes]


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
    for arm, variant in arms_and_variants(grid):
        try:
            run_settings(grid, RunKey("", grid.hosts[0], arm, variant, 0, 0))
        except ConfigError as error:
            raise ConfigError(f"Grid '{grid.name}', '{variant or arm}': {error}") from error
