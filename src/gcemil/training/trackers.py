"""Where the figures of an epoch go beside history.jsonl: TensorBoard, MLflow or Weights & Biases.

A run keeps the name of its tracker and a fold the id it was given there, both in tracker.json, so
that training that is continued goes on in the same place. Servers and projects are those of the
trackers' own environment variables.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from gcemil.config import TrackerName, TrainSettings
from gcemil.errors import MissingExtraError, RunError
from gcemil.files import is_file, read_record, write_json

EXTRA_OF = {"tensorboard": "tracking", "mlflow": "mlflow", "wandb": "wandb"}
FILE = "tracker.json"
PROJECT = "gcemil"
"""In Weights & Biases, unless WANDB_PROJECT names another."""
Record = Mapping[str, Any]


class Tracker:
    """Takes the figures of every epoch; this one does nothing with them."""

    def __init__(self, fold: Path, settings: TrainSettings) -> None: ...

    def add(self, record: Record, step: int) -> None: ...

    def close(self) -> None: ...


def check_tracker(name: TrackerName | None) -> None:
    """Refuse a tracker that is not installed."""
    if name in EXTRA_OF:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise MissingExtraError(name, EXTRA_OF[name]) from error


def remember_tracker(run: Path, name: TrackerName | None) -> None:
    """Write the choice into the run; without one, the run keeps what it has."""
    if name is None:
        return
    write_json(run / FILE, {"tracker": name})
    if name == "mlflow":
        # Workers that begin at the same time would each create the experiment.
        with _explain("MLflow"):
            importlib.import_module("mlflow").set_experiment(run.name)


def open_tracker(fold: Path, settings: TrainSettings) -> Tracker:
    """The tracker of the run of this fold; by default TensorBoard, if it is installed."""
    name = _read(fold.parent, "tracker")
    if name is None:
        name = "tensorboard" if importlib.util.find_spec("tensorboard") is not None else "none"
    check_tracker(name)
    return TRACKERS[name](fold, settings)


class TensorBoard(Tracker):
    """Event files in fold_<k>/tensorboard."""

    def __init__(self, fold: Path, settings: TrainSettings) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(fold / "tensorboard"))

    def add(self, record: Record, step: int) -> None:
        for name, value in list_numbers(record).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Mlflow(Tracker):
    """A run of MLflow per fold, in an experiment named after the run folder."""

    def __init__(self, fold: Path, settings: TrainSettings) -> None:
        self._module = importlib.import_module("mlflow")
        known = _read(fold, "mlflow")
        with _explain("MLflow"):
            self._module.set_experiment(fold.parent.name)
            begun = self._module.start_run(run_id=known, run_name=fold.name)
            if known is None:
                self._module.log_params(list_settings(settings))
                write_json(fold / FILE, {"mlflow": begun.info.run_id})

    def add(self, record: Record, step: int) -> None:
        with _explain("MLflow"):
            self._module.log_metrics(list_numbers(record), step=step)

    def close(self) -> None:
        with _explain("MLflow"):
            self._module.end_run()


class WandB(Tracker):
    """A run of Weights & Biases per fold, grouped by the run folder."""

    def __init__(self, fold: Path, settings: TrainSettings) -> None:
        module = importlib.import_module("wandb")
        with _explain("Weights & Biases"):
            self._run = module.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                group=fold.parent.name,
                name=f"{fold.parent.name}-{fold.name}",
                dir=str(fold),
                config=list_settings(settings),
                id=_read(fold, "wandb"),
                resume="allow",
            )
        write_json(fold / FILE, {"wandb": self._run.id})

    def add(self, record: Record, step: int) -> None:
        # Without the step: stages begin again at epoch 0, and steps may not go back.
        with _explain("Weights & Biases"):
            self._run.log(list_numbers(record))

    def close(self) -> None:
        with _explain("Weights & Biases"):
            self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
    "wandb": WandB,
    "none": Tracker,
}


def list_numbers(record: Record) -> dict[str, float]:
    """The numbers of an epoch, loss terms under terms/."""
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
    return numbers | {f"terms/{name}": value for name, value in record["terms"].items()}


def list_settings(settings: TrainSettings) -> dict[str, Any]:
    """Every setting by its dotted name."""
    row: dict[str, Any] = pd.json_normalize(settings.model_dump(mode="json")).iloc[0].to_dict()
    return row


def _read(folder: Path, key: str) -> Any:
    """An entry of tracker.json; None without one."""
    path = folder / FILE
    if not is_file(path):
        return None
    return read_record(path, dict[str, str], error=RunError, remedy="Remove the file.").get(key)


@contextmanager
def _explain(name: str) -> Iterator[None]:
    """Turn the error of a tracker into one with a remedy: the epoch is on disk already."""
    try:
        yield
    except Exception as error:  # whatever its client and server raise
        raise RunError(
            f"{name} failed: {type(error).__name__}: {error}. Run the same command again when it "
            "answers, or with --tracker none."
        ) from error
