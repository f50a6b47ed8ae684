"""The text files of a run folder as checked values: config.yaml, metrics.json, history.jsonl. No torch.

Everything that reads a run reads these files here, so that a damaged one is one sentence wherever it is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gcemil.config import TrainSettings
from gcemil.errors import InputError, RunError
from gcemil.files import checked, is_file, parse_json, read_json, read_text, read_yaml

Record = dict[str, Any]
Figures = dict[str, float | None]
MODES = ("full", "soft", "discrete")
"""How a bag is seen: all patches, all of them gated, the evidence alone."""


class RunConfig(BaseModel):
    """What config.yaml of a run says."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cohort: str = Field(min_length=1)
    settings: TrainSettings
    cohort_fingerprint: str | None = None
    settings_hash: str | None = None


class FoldDetails(BaseModel):
    """What training says of a fold besides its figures."""

    model_config = ConfigDict(frozen=True, extra="allow")

    best_epoch: int | None = None
    validation: float | None = None
    warnings: list[str] = Field(default_factory=list)
    caveats: list[str] = Field(default_factory=list)
    anchors: str | None = None
    risk_mean: float = 0.0
    risk_deviation: float = Field(1.0, gt=0)


class FoldMetrics(BaseModel):
    """metrics.json of a finished fold; a plain host has the full bag alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    full: Figures = Field(min_length=1)
    soft: Figures | None = None
    discrete: Figures | None = None
    details: FoldDetails = FoldDetails()

    @property
    def modes(self) -> dict[str, Figures]:
        """The figures by how the bag was seen."""
        return {mode: found for mode in MODES if (found := getattr(self, mode)) is not None}


class EpochLine(BaseModel):
    """What every line of history.jsonl has; metrics beside it depend on the task."""

    model_config = ConfigDict(extra="allow")

    stage: str
    epoch: int
    terms: dict[str, float]
    warnings: list[str]


def read_config(run: Path) -> RunConfig:
    """config.yaml of a run folder."""
    path = run / "config.yaml"
    if not is_file(path):
        raise RunError(f"{run} is no run: it has no config.yaml. Make one with 'gcemil train'.")
    remedy = "Restore it, or train into another folder with 'gcemil train'."
    try:
        values = read_yaml(path)
    except InputError as error:
        raise RunError(f"{error} {remedy}") from error
    return checked(values, RunConfig, path, error=RunError, remedy=remedy)


def finished_folds(run: Path) -> list[Path]:
    """The folders of the folds that have their metrics, in order of their numbers."""
    found = {fold_number(path.parent): path.parent for path in run.glob("fold_*/metrics.json")}
    return [found[number] for number in sorted(number for number in found if number is not None)]


def fold_number(folder: Path) -> int | None:
    """The number in fold_<k>; None for a folder of another name."""
    number = folder.name.removeprefix("fold_")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def read_metrics(fold: Path) -> FoldMetrics:
    """metrics.json of a fold."""
    path = fold / "metrics.json"
    if not is_file(path):
        raise RunError(f"{path} does not exist: the fold is not finished. Train it with 'gcemil train'.")
    remedy = "Make it again with 'gcemil evaluate'."
    try:
        values = read_json(path)
    except InputError as error:
        raise RunError(f"{error} {remedy}") from error
    return checked(values, FoldMetrics, path, error=RunError, remedy=remedy)


def read_history(fold: Path) -> list[Record]:
    """A record per epoch; none where training wrote none yet."""
    path = fold / "history.jsonl"
    if not is_file(path):
        return []
    try:
        lines = [line for line in read_text(path).split("\n") if line.strip()]
        records = [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    except InputError as error:
        raise RunError(f"{error} Remove the file; training writes it again.") from error
    # Losses may be NaN where training went wrong, which is what the file is there to show.
    return checked_lines(records, path)


def checked_lines(records: Sequence[Any], path: Path) -> list[Record]:
    for number, record in enumerate(records, start=1):
        checked(
            record,
            EpochLine,
            f"{path}, line {number}",
            error=RunError,
            remedy="Remove the file.",
            finite=False,
        )
    return list(records)
