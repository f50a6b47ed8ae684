"""A fitted prefilter as one safetensors file: the student's weights, and everything else as JSON in its header.

It carries what predicting a new slide takes: how the student sees, which encoder and which patches, the keep rate and the limit of
doubt, and the hash of the model it was distilled from. Nothing is unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gcemil.errors import InputError, RunError, UsageError
from gcemil.features.origin import FeatureOrigin
from gcemil.features.prefilter import PrefilterSettings, Student
from gcemil.files import checked, is_file, parse_json, write_bytes

FILE = "prefilter.safetensors"
KEY = "gcemil_prefilter"


@dataclass(frozen=True, eq=False)
class FittedPrefilter:
    """A student, and how far it is to be trusted."""

    student: Student
    settings: PrefilterSettings
    origin: FeatureOrigin
    keep_rate: float
    doubt_limit: float | None
    """Predictions from kept patches up to this doubt are certified; None certifies nothing."""
    risk_deviation: float
    """Deviation of the training risks, the unit of doubt of a survival model."""
    model_hash: str
    """The checkpoint whose selector taught the student."""
    provenance: dict[str, Any] = field(default_factory=dict)

    def certifies(self, doubt: float) -> bool:
        return self.doubt_limit is not None and doubt <= self.doubt_limit


class PrefilterRecord(BaseModel):
    """The header of the file."""

    settings: PrefilterSettings
    origin: FeatureOrigin
    keep_rate: float = Field(gt=0, le=1)
    doubt_limit: float | None
    risk_deviation: float = Field(gt=0)
    model_hash: str
    provenance: dict[str, Any]


def save_prefilter(path: Path, fitted: FittedPrefilter) -> None:
    """A file that appears whole or not at all."""
    meta = {
        "settings": fitted.settings.model_dump(mode="json"),
        "settings_hash": fitted.settings.hash,
        "origin": asdict(fitted.origin),
        "keep_rate": fitted.keep_rate,
        "doubt_limit": fitted.doubt_limit,
        "risk_deviation": fitted.risk_deviation,
        "model_hash": fitted.model_hash,
        "provenance": fitted.provenance,
    }
    tensors = {name: tensor.contiguous() for name, tensor in fitted.student.state_dict().items()}
    write_bytes(path, save(tensors, metadata={KEY: json.dumps(meta, sort_keys=True)}))


def load_prefilter(path: Path) -> FittedPrefilter:
    """A prefilter as it was saved, its student in evaluation mode."""
    if not is_file(path):
        raise UsageError(
            f"{path} does not exist: no prefilter was fitted. Fit it with 'gcemil prefilter {path.parent.parent} SLIDES', "
            "or predict with --mode discrete."
        )
    remedy = "Fit it again with 'gcemil prefilter'."
    try:
        with safe_open(path, framework="pt") as file:
            meta = parse_json((file.metadata() or {})[KEY], path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = checked(meta, PrefilterRecord, path, error=RunError, remedy=remedy)
        student = Student(record.settings.width)
        student.load_state_dict(tensors)
    except (SafetensorError, InputError, KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
        raise RunError(f"{path} is no prefilter of gcemil ({error}). {remedy}") from error
    return FittedPrefilter(
        student=student.eval(),
        settings=record.settings,
        origin=record.origin,
        keep_rate=record.keep_rate,
        doubt_limit=record.doubt_limit,
        risk_deviation=record.risk_deviation,
        model_hash=record.model_hash,
        provenance=record.provenance,
    )
