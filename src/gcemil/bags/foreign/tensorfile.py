"""A bare tensor in a .pt file, loaded without unpickling anything else."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from gcemil.bags.bag import FeatureRows
from gcemil.bags.foreign.source import squeeze_bag
from gcemil.errors import StoreError
from gcemil.files import refuse_special

_MAX_BESIDE = 2**20


def read_tensor_shape(path: Path) -> tuple[int, ...]:
    """Shape of the tensor in a .pt file."""
    return tuple(_load_tensor(path).shape)


def read_tensor(path: Path) -> FeatureRows:
    """The tensor as rows of float16 or float32."""
    tensor = _load_tensor(path)
    half = str(tensor.dtype) == "torch.float16"
    rows: FeatureRows = squeeze_bag((tensor if half else tensor.float()).numpy().copy())
    return rows


def _load_tensor(path: Path) -> Any:
    import torch  # the folder is read without torch until a .pt file is met

    refuse_special(path)
    try:
        # Only the zip format can be mapped; the old one is read whole.
        is_mapped = zipfile.is_zipfile(path)
        if is_mapped:
            _refuse_ballast(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except StoreError:
        raise
    except Exception as error:
        # A damaged pickle makes torch raise almost anything, KeyError and AttributeError among them.
        raise StoreError(
            f"{path} cannot be read as a tensor: it is damaged, or holds Python objects, which are never unpickled."
        ) from error
    if isinstance(found, torch.Tensor) and not found.is_floating_point():
        raise StoreError(
            f"{path}: features are {found.dtype}, not floating point numbers. Point at the features of an encoder."
        )
    if not isinstance(found, torch.Tensor):
        raise StoreError(
            f"{path} holds a {type(found).__name__}, not one tensor of features. Save the tensor alone."
        )
    return found


def _refuse_ballast(path: Path) -> None:
    """Beside the numbers a tensor has a few hundred bytes; all that is there would be read, and checked, at every opening."""
    with zipfile.ZipFile(path) as archive:
        beside = sum(entry.file_size for entry in archive.infolist() if "/data/" not in entry.filename)
    if beside > _MAX_BESIDE:
        raise StoreError(
            f"{path} holds {beside:,} bytes beside its numbers; one tensor needs less than {_MAX_BESIDE:,}. Save the tensor alone."
        )
