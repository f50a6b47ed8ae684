"""A fitted prefilter as one safetensors file: the student's weights, and everything else as JSON in its header.

It carries what predicting a new slide takes: how the student sees, which encoder and which patches, the keep rate and the limit of
doubt, and the hash of the model it was distilled from. Nothing is unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gcemil.errors import RunError, UsageError
from gcemil.features.origin import FeatureOrigin
from gcemil.features.prefilter import PrefilterSettings, Student
from gcemil.files import write_bytes
from gcemil.slides.grid import PatchSettings

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
    if not path.is_file():
        raise UsageError(
            f"{path} does not exist: no prefilter was fitted. Fit it with 'gcemil prefilter {path.parent.parent} SLIDES', "
            "or predict with --mode discrete."
        )
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        settings = PrefilterSettings.model_validate(meta["settings"])
        student = Student(settings.width)
        student.load_state_dict(tensors)
        origin = meta["origin"]
        return FittedPrefilter(
            student=student.eval(),
            settings=settings,
            origin=FeatureOrigin(**{**origin, "patches": PatchSettings(**origin["patches"])}),
            keep_rate=float(meta["keep_rate"]),
            doubt_limit=meta["doubt_limit"],
            risk_deviation=float(meta["risk_deviation"]),
            model_hash=str(meta["model_hash"]),
            provenance=meta["provenance"],
        )
    except (SafetensorError, ValidationError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(
            f"{path} is no prefilter of gcemil ({reason}). Fit it again with 'gcemil prefilter'."
        ) from error
