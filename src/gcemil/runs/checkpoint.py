"""Checkpoints: the network of a fold and a training state as safetensors files, and the network built again from its file alone.

Tensors, and everything else as JSON in the header. One file, written aside and renamed, so that a kill at any moment leaves
the old state or the new one, never a mixture. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from gcemil.bags.cohort import Cohort
from gcemil.bags.cohort import Task as CohortTask
from gcemil.config import LARGEST_SIZE, HostSettings, Precision, TrainSettings
from gcemil.device import pick_device
from gcemil.errors import GcemilError, InputError, RunError, StoreError, UsageError, error_text
from gcemil.evidence.anchors import AnchorBank, BankKind
from gcemil.files import atomic_write, is_file, parse_json, read_record, validate_as
from gcemil.hosts.host import MilHost
from gcemil.hosts.own import check_trust
from gcemil.hosts.table import HOSTS, AnyHost, create_host, host_spec
from gcemil.model import GceMil
from gcemil.runs.folder import PRETRAINED_CONFIG, PRETRAINED_WEIGHTS

Meta = dict[str, Any]
PRETRAINED_FORMAT = "gcemil-pretrained-1"
EXPORT_AGAIN = "Export it again with 'gcemil export RUN --pretrained FOLDER'."
TRAIN_AGAIN = "Remove it to train the fold again."
MISREAD = (
    SafetensorError,
    KeyError,
    TypeError,
    ValueError,
    OSError,
    RuntimeError,
    MemoryError,
    InputError,
)
"""What reading a damaged or foreign file raises."""


# The network of a fold


class _BankRecord(BaseModel):
    """The anchors a network was trained with, apart from their embeddings."""

    prompts: list[str] = Field(min_length=1)
    provenance: str
    kind: BankKind

    @model_validator(mode="before")
    @classmethod
    def _has_a_kind(cls, values: Any) -> Any:
        # Checkpoints written before the field existed tell the kind only in the words of the provenance.
        if isinstance(values, dict) and "kind" not in values:
            words = str(values.get("provenance"))
            first: dict[str, BankKind] = {"prototypes": "prototypes", "examples": "examples"}
            kind = next((kind for word, kind in first.items() if words.startswith(word)), "text")
            return {
                **values,
                "kind": "prompt_patches" if "met in training patches" in words else kind,
            }
        return values


class NetworkRecord(BaseModel):
    """The header of a checkpoint: what is needed to build the network again without the cohort."""

    settings: TrainSettings
    in_dim: int = Field(ge=1, le=LARGEST_SIZE)
    n_outputs: int = Field(ge=1, le=LARGEST_SIZE)
    task: CohortTask
    classes: list[str]
    label_mean: float = 0.0
    label_deviation: float = Field(1.0, gt=0)
    """Of the training labels of regression, in which the network counts."""
    patch_size_level0: int | None = Field(ge=1)
    encoder: str
    bank: _BankRecord | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> NetworkRecord:
        if (self.settings.evidence is None) != (self.bank is None):
            raise ValueError("a wrapped host has anchors, a plain one has none")
        is_number = self.task in ("survival", "regression")
        if len(self.classes) != (0 if is_number else self.n_outputs):
            raise ValueError(f"{len(self.classes)} classes for {self.n_outputs} outputs")
        return self


class PretrainedConfig(BaseModel):
    """The part of config.json of an exported fold that is read; the rest is for people."""

    format: Literal["gcemil-pretrained-1"]
    network: dict[str, Any]


@dataclass(frozen=True)
class LoadedNetwork:
    """A network, trained or about to be: `model` is None for the plain host."""

    host: AnyHost
    model: GceMil | None = None
    reference: Tensor | None = None
    """Patches of training slides by which the responses are calibrated; None once training is over."""
    label_scale: tuple[float, float] = (0.0, 1.0)
    """Mean and deviation of the training labels, in which a network of regression counts."""

    @property
    def network(self) -> nn.Module:
        """What is trained and saved: the wrapper with its host, or the plain host."""
        return self.model if self.model is not None else self.host


def save_network(
    path: Path, loaded: LoadedNetwork, cohort: Cohort, settings: TrainSettings
) -> None:
    """Weights, and what is needed to build the network again without the cohort."""
    save_tensors(path, loaded.network.state_dict(), describe_network(loaded, cohort, settings))


def describe_network(loaded: LoadedNetwork, cohort: Cohort, settings: TrainSettings) -> Meta:
    """The header of a checkpoint, as `NetworkRecord` reads it."""
    meta: Meta = {
        "settings": settings.model_dump(mode="json"),
        "in_dim": cohort.card.feature_dim,
        "n_outputs": cohort.n_outputs,
        "task": cohort.card.task,
        "classes": list(cohort.card.classes),
        "label_mean": loaded.label_scale[0],
        "label_deviation": loaded.label_scale[1],
        "patch_size_level0": cohort.card.patch_size_level0,
        "encoder": cohort.card.encoder,
    }
    if loaded.model is not None:
        bank = loaded.model.bank
        meta["bank"] = {
            "prompts": list(bank.prompts),
            "provenance": bank.provenance,
            "kind": bank.kind,
            "hash": bank.hash,
        }
    return meta


def open_network(
    path: Path | str, device: str = "cpu", precision: Precision = "32"
) -> tuple[LoadedNetwork, dict[str, Any]]:
    """A trained network that embeds and pools on this device, in this precision, and answers on the CPU."""
    loaded, meta = load_network(path)
    loaded.host.precision = precision
    # A class of the user's own need not be placed: it computes where its weights are.
    if isinstance(loaded.host, MilHost):
        loaded.host.place(pick_device(device))
    return loaded, meta


def load_network(
    path: Path | str, device: torch.device | str = "cpu"
) -> tuple[LoadedNetwork, dict[str, Any]]:
    """A trained network in evaluation mode and what it was saved with, from its checkpoint or from an exported fold."""
    path = Path(path)
    if path.is_dir():
        path = path / PRETRAINED_WEIGHTS
    described, remedy = path, TRAIN_AGAIN
    if path.name == PRETRAINED_WEIGHTS:
        described, remedy = path.with_name(PRETRAINED_CONFIG), EXPORT_AGAIN
        if not is_file(described):
            raise RunError(
                f"{path.parent} is not an exported fold: it has no {described.name}. {remedy}"
            )
        meta = read_record(described, PretrainedConfig, error=RunError, remedy=remedy).network
        tensors, _ = load_tensors(path, remedy=remedy)
    else:
        tensors, meta = load_tensors(path)
    record = validate_as(meta, NetworkRecord, described, error=RunError, remedy=remedy)
    _import_own_host(record.settings.host.name, path)
    try:
        loaded = _build_network(record, tensors)
        loaded.network.load_state_dict(tensors)
    except (
        GcemilError,
        RuntimeError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
    ) as error:
        raise RunError(
            f"{path} does not hold the network its header describes ({error_text(error)}). {remedy}"
        ) from error
    loaded.network.to(device).eval()
    return loaded, meta


def _import_own_host(name: str, path: Path) -> None:
    """Before the checkpoint is blamed: the user may not trust the code of the host, or not have it."""
    if name in HOSTS:
        return
    check_trust(name, path)
    try:
        host_spec(name).load()
    except UsageError as error:
        raise RunError(f"{path} cannot be opened without its host. {error}") from error


def build_host(settings: HostSettings, *, in_dim: int, n_outputs: int) -> AnyHost:
    """The host that the settings name, with fresh weights."""
    return create_host(
        settings.name,
        in_dim=in_dim,
        n_outputs=n_outputs,
        gate_mode=settings.gate_mode,
        options={**host_spec(settings.name).options, **settings.options},
    )


def _build_network(record: NetworkRecord, tensors: Mapping[str, Tensor]) -> LoadedNetwork:
    settings = record.settings
    host = build_host(settings.host, in_dim=record.in_dim, n_outputs=record.n_outputs)
    scale = record.label_mean, record.label_deviation
    if settings.evidence is None or record.bank is None:
        return LoadedNetwork(host, label_scale=scale)
    known = record.bank
    bank = AnchorBank(tensors["anchors"], tuple(known.prompts), known.provenance, known.kind)
    model = GceMil(
        host,
        bank,
        in_dim=record.in_dim,
        settings=settings.evidence,
        explains_host=settings.host.is_frozen,
        task=record.task,
    )
    return LoadedNetwork(host, model, label_scale=scale)


# Tensors in a file


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Meta) -> None:
    """Write tensors, and a record of plain values in the header."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"gcemil": json.dumps(meta)})
        except SafetensorError as error:
            raise StoreError(
                f"{path} cannot be written ({error}). Free some space, or give a folder on another disk."
            ) from error


def load_tensors(path: Path, *, remedy: str = TRAIN_AGAIN) -> tuple[dict[str, Tensor], Meta]:
    """Every tensor of a file and the record in its header."""
    if not is_file(path):
        folds = sorted(
            other.parent.name for other in path.parent.parent.glob(f"fold_*/{path.name}")
        )
        trained = f" Trained are: {', '.join(folds)}." if folds else ""
        raise RunError(
            f"{path} does not exist: the fold is not trained.{trained} Train it with 'gcemil train'."
        )
    try:
        tensors, meta = read_safetensors(path, "gcemil")
        if not isinstance(meta, dict):
            raise TypeError(f"its header holds {type(meta).__name__}")
    except MISREAD as error:
        raise RunError(f"{path} is not a gcemil checkpoint ({error}). {remedy}") from error
    return tensors, meta


def read_safetensors(path: Path, key: str) -> tuple[dict[str, Tensor], Any]:
    """Every tensor of a file, and the JSON that stands under this key of its header."""
    with safe_open(path, framework="pt") as file:
        meta = parse_json((file.metadata() or {})[key], path)
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118


@contextmanager
def refuse_misfit(path: Path) -> Iterator[None]:
    """Use what was loaded; a state of another network, or a damaged one, is a RunError that names the file."""
    try:
        yield
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError, IndexError) as error:
        raise RunError(
            f"{path} does not fit the network of this fold ({error_text(error)}). {TRAIN_AGAIN}"
        ) from error


def module_state(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Parameters and buffers of several modules, each under its own name."""
    return {
        f"{owner}.{name}": tensor
        for owner, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def load_modules(modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors that `module_state` named back into the modules."""
    for owner, module in modules.items():
        prefix = f"{owner}."
        module.load_state_dict(
            {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        )


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state, numbered by parameter."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{name}": value
        for index, entry in state.items()
        for name, value in entry.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors that `optimizer_state` named back into an optimiser of the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )
