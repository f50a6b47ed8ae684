"""Small trained runs on a simulated cohort, for tests that read runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run


@dataclass(frozen=True)
class TrainedRuns:
    """A cohort with truth, a plain host and a wrapped one trained on its first fold."""

    cohort: Path
    host: Path
    gce: Path


def make_runs(
    folder: Path, profile: str = "nsclc", *, host: str = "abmil", epochs: int = 4, slides: int = 24
) -> TrainedRuns:
    """Both arms on fold 0 of a tiny cohort, a few seconds."""
    cohort = simulate(profile, folder / "cohort", size="tiny", slides=slides, seed=0)
    write_folds(cohort, make_folds(cohort, seed=0))
    for name, evidence in (("host", None), ("gce", EvidenceSettings())):
        settings = TrainSettings(
            host=HostSettings(name=host), evidence=evidence, epochs=epochs, seed=0
        )
        train_run(cohort.folder, folder / name, settings, folds=[0], jobs=1)
    return TrainedRuns(cohort.folder, folder / "host", folder / "gce")
