"""The network of a fold: how it is saved, and how it is built again from its checkpoint alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor, nn

from gcemil.bags.cohort import Cohort
from gcemil.bags.cohort import Task as CohortTask
from gcemil.config import LARGEST_SIZE, TrainSettings
from gcemil.errors import GcemilError, RunError, UsageError
from gcemil.evidence.anchors import AnchorBank
from gcemil.files import checked, is_file, read_record
from gcemil.hosts.own import check_trust
from gcemil.hosts.table import HOSTS, AnyHost, create_host, host_spec
from gcemil.model import GceMil
from gcemil.runs import checkpoint
from gcemil.runs.folder import PRETRAINED_CONFIG, PRETRAINED_WEIGHTS

PRETRAINED_FORMAT = "gcemil-pretrained-1"
EXPORT_AGAIN = "Export it again with 'gcemil export RUN --pretrained FOLDER'."
SUSPICIOUS_LAYER = 2**25
"""Weights; no layer of the hosts comes near."""


class _BankRecord(BaseModel):
    """The anchors a network was trained with, apart from their embeddings."""

    prompts: list[str] = Field(min_length=1)
    provenance: str


class NetworkRecord(BaseModel):
    """The header of a checkpoint: what is needed to build the network again without the cohort."""

    settings: TrainSettings
    in_dim: int = Field(ge=1, le=LARGEST_SIZE)
    n_outputs: int = Field(ge=1, le=LARGEST_SIZE)
    task: CohortTask
    classes: list[str]
    patch_size_level0: int | None = Field(ge=1)
    encoder: str
    bank: _BankRecord | None = None

    @property
    def largest_layer(self) -> int:
        """More weights than the largest layer of such a network can have."""
        evidence = self.settings.evidence
        sizes = [
            self.n_outputs,
            *(size for size in self.settings.host.options.values() if isinstance(size, int)),
        ]
        if evidence is not None:
            sizes += [evidence.hidden, evidence.adapter_rank, evidence.bridge_rank]
        return max(self.in_dim, *sizes) * max(sizes)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> NetworkRecord:
        if (self.settings.evidence is None) != (self.bank is None):
            raise ValueError("a wrapped host has anchors, a plain one has none")
        if len(self.classes) != (self.n_outputs if self.task == "classification" else 0):
            raise ValueError(f"{len(self.classes)} classes for {self.n_outputs} outputs")
        return self


class PretrainedConfig(BaseModel):
    """What config.json of an exported fold must say; the rest is for readers."""

    format: Literal["gcemil-pretrained-1"]
    network: dict[str, Any]


@dataclass(frozen=True)
class LoadedNetwork:
    """A network, trained or about to be: `model` is None for the plain host."""

    host: AnyHost
    model: GceMil | None
    reference: Tensor | None

    @property
    def network(self) -> nn.Module:
        """What is trained and saved: the wrapper with its host, or the plain host."""
        return self.model if self.model is not None else self.host


def save_network(path: Path, loaded: LoadedNetwork, cohort: Cohort, settings: TrainSettings) -> None:
    """Weights, and what is needed to build the network again without the cohort."""
    meta: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "in_dim": cohort.card.feature_dim,
        "n_outputs": cohort.n_outputs,
        "task": cohort.card.task,
        "classes": list(cohort.card.classes),
        "patch_size_level0": cohort.card.patch_size_level0,
        "encoder": cohort.card.encoder,
    }
    if loaded.model is not None:
        bank = loaded.model.bank
        meta["bank"] = {"prompts": list(bank.prompts), "provenance": bank.provenance, "hash": bank.hash}
    checkpoint.save(path, loaded.network.state_dict(), meta)


def load_network(path: Path, device: torch.device | str = "cpu") -> tuple[LoadedNetwork, dict[str, Any]]:
    """A trained network in evaluation mode and what it was saved with, from its checkpoint or from an exported fold."""
    if path.is_dir():
        path = path / PRETRAINED_WEIGHTS
    described, remedy = path, checkpoint.TRAIN_AGAIN
    if path.name == PRETRAINED_WEIGHTS:
        described, remedy = path.with_name(PRETRAINED_CONFIG), EXPORT_AGAIN
        meta = _read_config(described)
        tensors, _ = checkpoint.load(path, remedy=remedy)
    else:
        tensors, meta = checkpoint.load(path)
    record = checked(meta, NetworkRecord, described, error=RunError, remedy=remedy)
    _import_own_host(record.settings.host.name, path)
    try:
        if record.largest_layer > SUSPICIOUS_LAYER:
            # A few bytes can ask for a network of any size: its shapes are compared before memory is taken for them.
            with torch.device("meta"):
                _refuse_other_shapes(_build_network(record, tensors).network, tensors)
        loaded = _build_network(record, tensors)
        _load_tensors(loaded.network, tensors)
    except (GcemilError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunError(
            f"{path} does not hold the network its header describes ({error}). {remedy}"
        ) from error
    loaded.network.to(device).eval()
    return loaded, meta


def _read_config(path: Path) -> dict[str, Any]:
    """What config.json of an exported fold says of its network."""
    if not is_file(path):
        raise RunError(f"{path.parent} is no exported fold: it has no {path.name}. {EXPORT_AGAIN}")
    found = read_record(path, PretrainedConfig, error=RunError, remedy=EXPORT_AGAIN)
    return found.network


def _import_own_host(name: str, path: Path) -> None:
    """Before the checkpoint is blamed: the user may not trust the code of the host, or not have it."""
    if name in HOSTS:
        return
    check_trust(name, path)
    try:
        host_spec(name).load()
    except UsageError as error:
        raise RunError(f"{path} cannot be opened without its host. {error}") from error


def _build_network(record: NetworkRecord, tensors: Mapping[str, Tensor]) -> LoadedNetwork:
    settings = record.settings
    host = create_host(
        settings.host.name,
        in_dim=record.in_dim,
        n_outputs=record.n_outputs,
        gate_mode=settings.host.gate_mode,
        options=settings.host.options,
    )
    if settings.evidence is None or record.bank is None:
        return LoadedNetwork(host, None, None)
    bank = AnchorBank(tensors["anchors"], tuple(record.bank.prompts), record.bank.provenance)
    return LoadedNetwork(host, GceMil(host, bank, in_dim=record.in_dim, settings=settings.evidence), None)


def _load_tensors(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors into the network; where they are not its own, the first that differs is named."""
    try:
        network.load_state_dict(tensors)
    except RuntimeError:
        _refuse_other_shapes(network, tensors)
        raise


def _refuse_other_shapes(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name in sorted({*wanted, *tensors}):
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != wanted.get(name):
            if found is None or name not in wanted:
                raise ValueError(f"'{name}' is in the {'network' if found is None else 'file'} alone")
            raise ValueError(f"'{name}' has shape {found} in the file and {wanted[name]} in the network")
