"""Checkpoints: the network of a fold, or the state of a training, as a safetensors file.

The header of a network holds what is needed to build it again without its run and its cohort; for
an exported fold config.json holds it (runs/pretrained.py). Files are written atomically, and
nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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


class _BankRecord(BaseModel):
    """The anchors a network was trained with, apart from their embeddings."""

    prompts: list[str] = Field(min_length=1)
    provenance: str
    kind: BankKind


class NetworkRecord(BaseModel):
    """The header of a checkpoint: what is needed to build the network again without the cohort."""

    settings: TrainSettings
    in_dim: int = Field(ge=1, le=LARGEST_SIZE)
    n_outputs: int = Field(ge=1, le=LARGEST_SIZE)
    task: CohortTask
    classes: list[str]
    label_mean: float = 0.0
    label_deviation: float = Field(1.0, gt=0)
    """Deviation of the training labels of regression, the unit of the network."""
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
    network: Meta


@dataclass(frozen=True)
class LoadedNetwork:
    """A network, trained or about to be: `model` is None for the plain host."""

    host: AnyHost
    model: GceMil | None = None
    reference: Tensor | None = None
    """Patches of training slides by which the responses are calibrated; None after training."""
    label_scale: tuple[float, float] = (0.0, 1.0)
    """Mean and deviation of the training labels, in which a network of regression counts."""

    @property
    def network(self) -> nn.Module:
        """The wrapper with its host, or the plain host."""
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
) -> tuple[LoadedNetwork, Meta]:
    """A trained network that embeds and pools on this device; its outputs are on the CPU."""
    loaded, meta = load_network(path)
    loaded.host.precision = precision
    # A class of the user's own need not be placed: it computes where its weights are.
    if isinstance(loaded.host, MilHost):
        loaded.host.place(pick_device(device))
    return loaded, meta


def load_network(
    path: Path | str, device: torch.device | str = "cpu"
) -> tuple[LoadedNetwork, Meta]:
    """Open a checkpoint, or the folder of an exported fold; nothing in it is executed.

    Args:
        path: fold_<k>/checkpoint.safetensors, or a folder of `save_pretrained`.
        device: Where the network is put.

    Returns:
        The network in evaluation mode, whose `host` and `model` (None for a plain host) it has,
        and its header: settings, sizes, classes and anchors.

    Raises:
        RunError: The file does not exist, is damaged, or needs a host that is not installed.
        UsageError: It names a host of your own that is not trusted, see `trust_host`.

    Example:
        >>> import gcemil, pathlib, tempfile, torch
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
        >>> model = gcemil.fit(bags, [0, 1] * 6, epochs=1, out=folder)
        >>> loaded, header = gcemil.load_network(folder / "checkpoint.safetensors")
        >>> header["in_dim"], loaded.network.training
        (8, False)
    """
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
    if (name := record.settings.host.name) not in HOSTS:
        # First, as the user may not trust the code of the host, or not have it.
        check_trust(name, path)
        try:
            host_spec(name).load()
        except UsageError as error:
            raise RunError(f"{path} cannot be opened without its host. {error}") from error
    with refuse_misfit(path, "the network its header describes", remedy):
        loaded = _build_network(record, tensors)
        loaded.network.load_state_dict(tensors)
    loaded.network.to(device).eval()
    return loaded, meta


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


def join_hashes(hashes: Sequence[str]) -> str:
    """The hash of one file, or one for several."""
    if len(set(hashes)) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


# Tensors in a file


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Meta) -> None:
    """Write tensors, and a record of plain values in the header."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"gcemil": json.dumps(meta)})
        except SafetensorError as error:
            raise StoreError(
                f"{path} cannot be written ({error}). Free some space, or give a folder on another "
                "disk."
            ) from error


def load_tensors(path: Path, *, remedy: str = TRAIN_AGAIN) -> tuple[dict[str, Tensor], Meta]:
    """Every tensor of a file and the record in its header."""
    if not is_file(path):
        there = sorted(one.parent.name for one in path.parent.parent.glob(f"fold_*/{path.name}"))
        trained = f" Trained are: {', '.join(there)}." if there else ""
        raise RunError(
            f"{path} does not exist: the fold is not trained.{trained} Train it with "
            "'gcemil train'."
        )
    try:
        tensors, meta = read_safetensors(path, "gcemil")
        if not isinstance(meta, dict):
            raise TypeError(f"its header holds {type(meta).__name__}")
    except MISREAD as error:
        raise RunError(f"{path} is not a gcemil checkpoint ({error}). {remedy}") from error
    return tensors, meta


def read_safetensors(path: Path, key: str) -> tuple[dict[str, Tensor], Any]:
    """Every tensor of a file, and the JSON under this key of its header."""
    with safe_open(path, framework="pt") as file:
        meta = parse_json((file.metadata() or {})[key], path)
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118


@contextmanager
def refuse_misfit(
    path: Path, what: str = "the state of this fold", remedy: str = TRAIN_AGAIN
) -> Iterator[None]:
    """Use what was loaded; a state of another network, or a damaged one, is a RunError."""
    try:
        yield
    except (GcemilError, LookupError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise RunError(f"{path} does not hold {what} ({error_text(error)}). {remedy}") from error


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state, numbered by parameter."""
    return {
        f"optimizer.{index}.{name}": value
        for index, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of `optimizer_state` back into an optimiser of the same parameters."""
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state[int(index)][name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(state)})
