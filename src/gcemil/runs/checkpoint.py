"""A training state as one safetensors file: tensors, and everything else as JSON in its header.

One file, written aside and renamed, so that a kill at any moment leaves the old state or the new one, never a mixture.
Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from gcemil.errors import InputError, RunError, StoreError, error_text
from gcemil.files import is_file, parse_json, whole_file

Meta = dict[str, Any]


def save(path: Path, tensors: Mapping[str, Tensor], meta: Meta) -> None:
    """Write tensors, and a record of plain values in the header."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with whole_file(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"gcemil": json.dumps(meta)})
        except SafetensorError as error:
            raise StoreError(
                f"{path} cannot be written ({error}). Free some space, or give a folder on another disk."
            ) from error


TRAIN_AGAIN = "Remove it to train the fold again."


def load(path: Path, *, remedy: str = TRAIN_AGAIN) -> tuple[dict[str, Tensor], Meta]:
    """Every tensor of a file and the record in its header."""
    if not is_file(path):
        there = sorted(one.parent.name for one in path.parent.parent.glob(f"fold_*/{path.name}"))
        known = f" Trained are: {', '.join(there)}." if there else ""
        raise RunError(
            f"{path} does not exist: the fold is not trained.{known} Train it with 'gcemil train'."
        )
    try:
        with safe_open(path, framework="pt") as file:
            meta = parse_json((file.metadata() or {})["gcemil"], path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not isinstance(meta, dict):
            raise TypeError(f"its header holds {type(meta).__name__}")
    # A file that claims more than the memory can map is no checkpoint either.
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        OSError,
        RuntimeError,
        MemoryError,
        InputError,
    ) as error:
        raise RunError(f"{path} is not a gcemil checkpoint ({error}). {remedy}") from error
    return tensors, meta


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Use what was loaded; a state of another network, or a damaged one, is a RunError that names the file."""
    try:
        yield
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError, IndexError) as error:
        raise RunError(
            f"{path} does not fit the network of this fold ({error_text(error)}). Remove it to train the fold again."
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
        f"optimizer.{index}.{name}": value for index, entry in state.items() for name, value in entry.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors that `optimizer_state` named back into an optimiser of the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for number, entry in state.items():
        for name, value in entry.items():
            # The optimiser itself would find out at its first step.
            if value.numel() > 1 and value.shape != parameters[number].shape:
                raise ValueError(f"'{name}' of parameter {number} has shape {tuple(value.shape)}")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
