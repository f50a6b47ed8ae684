"""Reading and writing of HDF5 files: features, coordinates, truth, anchors, evidence.

Files are opened with h5py. Links, and datasets whose values lie in another file, are refused. A missing, truncated,
mistyped or otherwise damaged file raises a StoreError with one sentence that names it. Rows of plain numbers are read
from their byte positions, which avoids one index lookup per row in the (1, d)-chunked files of CLAM and TRIDENT.

Files are made in memory and written in one atomic step, without time stamps: equal content gives equal bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gcemil.errors import GcemilError, StoreError, error_text
from gcemil.files import write_bytes
from gcemil.wording import near_path

Array = NDArray[Any]
Rows = NDArray[np.integer[Any]]
Attributes = Mapping[str, Any]

BLOCK_BYTES = 8 * 2**20
"""Rows that h5py has to convert are read in blocks of about this size."""
_NAMES_SHOWN = 10


@dataclass(frozen=True)
class DatasetInfo:
    """Shape, type and storage of a dataset."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    is_filtered: bool
    """Compressed, or changed by another filter on its way to the disk."""

    @property
    def is_slow(self) -> bool:
        """Few rows per chunk, as in files of CLAM and TRIDENT, which h5py reads an order of magnitude slower."""
        return (
            self.chunks is not None
            and len(self.shape) == 2
            and self.shape[0] > 1
            and self.chunks[0] < 64
        )


def is_number_type(dtype: np.dtype[Any]) -> bool:
    """True for real numbers of up to eight bytes."""
    return dtype.kind in "fiub" and dtype.itemsize <= 8


# Reading


def describe(path: Path) -> dict[str, DatasetInfo]:
    """Shape, type and storage of every top-level dataset by name."""
    with _open_file(path) as file:
        members = {name: _get_member(file, path, name) for name in file}
        return {
            name: _describe(item)
            for name, item in members.items()
            if isinstance(item, h5py.Dataset)
        }


def attributes(path: Path, dataset: str | None = None) -> dict[str, Any]:
    """Attributes of the file root or of one dataset, as plain Python values."""
    with _open_file(path) as file:
        holder = file if dataset is None else _get_dataset(file, path, dataset)
        return {key: _to_plain_value(value) for key, value in holder.attrs.items()}


def has(path: Path, dataset: str) -> bool:
    """Whether the file has this dataset; a link in its place is refused."""
    with _open_file(path) as file:
        return isinstance(_get_member(file, path, dataset), h5py.Dataset)


def read(path: Path, dataset: str, rows: Rows | None = None) -> Array:
    """A whole dataset of numbers, or some of its rows (sorted, distinct)."""
    with _open_file(path) as file:
        source = _get_numbers(file, path, dataset)
        if rows is not None and len(rows):
            n_rows = source.shape[0]
            if rows[0] < 0 or rows[-1] >= n_rows or (np.diff(rows) <= 0).any():
                raise StoreError(
                    f"{path}: rows to read must be sorted, distinct and below {n_rows}, got {rows}."
                )
        return _read_rows(source, rows)


def read_beside(path: Path, dataset: str, other: str) -> tuple[DatasetInfo, Array | None]:
    """The description of one dataset of numbers, and the values of another one if the file has it."""
    with _open_file(path) as file:
        info = _describe(_get_numbers(file, path, dataset))
        is_missing = _get_member(file, path, other) is None
        return info, None if is_missing else _read_rows(_get_numbers(file, path, other))


def read_texts(path: Path, dataset: str) -> list[str]:
    """A list of texts, stored with fixed or variable length, as ASCII or UTF-8."""
    with _open_file(path) as file:
        source = _get_dataset(file, path, dataset)
        if h5py.check_string_dtype(source.dtype) is None or len(source.shape or ()) != 1:
            raise StoreError(
                f"{path}: '{dataset}' is {source.dtype} of shape {source.shape}, not a list of texts."
            )
        return [value.decode() if isinstance(value, bytes) else str(value) for value in source[:]]


@contextmanager
def _open_file(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; whatever h5py and the system raise meanwhile becomes a StoreError."""
    try:
        if not path.is_file():
            raise StoreError(describe_absence(path))
        with h5py.File(path, "r") as file:
            yield file
    except GcemilError:
        raise
    except (MemoryError, PermissionError) as error:
        raise StoreError(f"{path} cannot be read ({error_text(error)}).") from error
    # The type depends on where the damage lies: OSError, KeyError, ValueError, RuntimeError, TypeError and others.
    except Exception as error:
        raise StoreError(
            f"{path} cannot be read as HDF5 ({error_text(error)}). "
            "It is truncated, damaged or not HDF5; extract it again."
        ) from error


def describe_absence(path: Path) -> str:
    """Why there is no file to read, and what to do about it."""
    if path.exists():
        return f"{path} is not a regular file, so it is not read. Put the file back, or extract the slide."
    if path.is_symlink():
        return (
            f"{path} is a link to {os.fsdecode(path.readlink())}, which is not there: the source moved. "
            "Import it again from where it is now with 'gcemil import', or put it back."
        )
    return f"{path} does not exist.{near_path(path)} Check the path; a slide without features is extracted."


def _get_numbers(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """A dataset of real numbers."""
    dataset = _get_dataset(file, path, name)
    if dataset.shape is None or not is_number_type(dataset.dtype):
        content = "nothing" if dataset.shape is None else str(dataset.dtype)
        raise StoreError(f"{path}: '{name}' holds {content}, not real numbers. Write it again.")
    return dataset


def _get_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """The dataset of this name; a missing one is an error that lists those present."""
    item = _get_member(file, path, name)
    if not isinstance(item, h5py.Dataset):
        listed = ", ".join([*file][:_NAMES_SHOWN]) + (" …" if len(file) > _NAMES_SHOWN else "")
        raise StoreError(
            f"{path} has no dataset '{name}', only: {listed or 'nothing'}. Try 'gcemil inspect {path}'."
        )
    return item


def _get_member(file: h5py.File, path: Path, name: str) -> Any:
    """A member that is stored in this very file, None without one: links and data elsewhere are never followed."""
    link = file.get(name, getlink=True)
    if link is None:
        return None
    item = file[name] if isinstance(link, h5py.HardLink) else None
    if item is None or (isinstance(item, h5py.Dataset) and (item.external or item.is_virtual)):
        raise StoreError(
            f"{path}: '{name}' leads to data in another place, which is never followed. Copy the data into the file."
        )
    return item


def _describe(dataset: h5py.Dataset) -> DatasetInfo:
    is_filtered = dataset.id.get_create_plist().get_nfilters() > 0
    return DatasetInfo(
        (0,) if dataset.shape is None else dataset.shape, dataset.dtype, dataset.chunks, is_filtered
    )


def _to_plain_value(value: Any) -> Any:
    """The value in Python's own types; text for what has none."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_to_plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str | int | float) else str(value)


def _to_native(values: Any) -> Array:
    """In the byte order of this machine, with truth values that are 0 or 1, as torch needs them."""
    array = np.asarray(values)
    if array.dtype.kind == "b":
        return array.view(np.uint8) != 0
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


# Rows


def _block_rows(dataset: h5py.Dataset) -> int:
    """How many rows make about BLOCK_BYTES, in whole chunks."""
    chunk = dataset.chunks[0] if dataset.chunks else 1
    return max(1, BLOCK_BYTES // max(1, _row_bytes(dataset)) // chunk) * chunk


def _row_bytes(dataset: h5py.Dataset) -> int:
    return math.prod(dataset.shape[1:]) * int(dataset.dtype.itemsize)


def _read_rows(dataset: h5py.Dataset, rows: Rows | None = None) -> Array:
    """All rows or some (sorted, distinct), from their byte positions, or through h5py where it has to convert them."""
    if not dataset.shape:
        return _to_native(dataset[()])
    rows = np.arange(len(dataset)) if rows is None else rows
    positions = _row_positions(dataset)
    if positions is not None:
        return _read_positions(dataset, positions[rows])
    if len(rows) and len(rows) == rows[-1] - rows[0] + 1:
        return _to_native(dataset[int(rows[0]) : int(rows[-1]) + 1])
    # Block by block: h5py is far slower with a list of rows.
    blocks = [np.empty((0, *dataset.shape[1:]), dataset.dtype)]
    for own in np.split(rows, np.flatnonzero(np.diff(rows // _block_rows(dataset))) + 1):
        if len(own):
            blocks.append(dataset[int(own[0]) : int(own[-1]) + 1][own - own[0]])
    return _to_native(np.concatenate(blocks))


def _row_positions(dataset: h5py.Dataset) -> NDArray[np.int64] | None:
    """Byte position of every row of unfiltered native numbers; None where h5py has to read them."""
    shape, chunks, row_bytes = dataset.shape or (0,), dataset.chunks, _row_bytes(dataset)
    size = os.fstat(dataset.file.id.get_vfd_handle()).st_size
    # h5py reads some stored types as others.
    is_plain = dataset.dtype.kind in "fiu" and dataset.id.get_type().equal(
        h5py.h5t.py_create(dataset.dtype)
    )
    is_plain = is_plain and dataset.dtype.isnative and not _describe(dataset).is_filtered
    if not is_plain or not 0 < shape[0] * row_bytes <= size:
        return None
    if chunks is None:
        start = dataset.id.get_offset()
        return None if start is None else start + np.arange(shape[0]) * row_bytes
    if chunks[1:] != shape[1:]:
        return None
    starts = np.full(-(-shape[0] // chunks[0]), -1, np.int64)

    def keep_start(stored: Any) -> None:
        if not stored.filter_mask and stored.byte_offset is not None:
            starts[stored.chunk_offset[0] // chunks[0]] = stored.byte_offset

    dataset.id.chunk_iter(keep_start)
    if bool((starts < 0).any()):  # never written, so h5py fills them
        return None
    rows = np.arange(shape[0])
    return starts[rows // chunks[0]] + rows % chunks[0] * row_bytes


def _read_positions(dataset: h5py.Dataset, positions: NDArray[np.int64]) -> Array:
    """Rows at these byte positions, with one system call for neighbours."""
    descriptor, row_bytes = dataset.file.id.get_vfd_handle(), _row_bytes(dataset)
    result = np.empty((len(positions), *dataset.shape[1:]), dataset.dtype)
    target = result.reshape(-1).view(np.uint8).data
    edges = np.flatnonzero(np.diff(positions, prepend=positions[:1], append=-1) != row_bytes)
    for first, stop in zip(edges.tolist(), edges[1:].tolist(), strict=False):
        part, start = target[first * row_bytes : stop * row_bytes], int(positions[first])
        while part:  # one call reads at most 2 GB
            count = os.preadv(descriptor, [part], start)
            if not count:
                raise OSError("it ends before its data")
            part, start = part[count:], start + count
    return result


# Writing


def write(
    path: Path,
    datasets: Mapping[str, Array],
    attributes: Attributes | None = None,
    *,
    dataset_attributes: Mapping[str, Attributes] | None = None,
) -> None:
    """Write contiguous datasets to a new file in one atomic step; attributes of the root, and by dataset."""
    by_dataset = dataset_attributes or {}
    with _file_in_memory(path) as file:
        for name, values in datasets.items():
            file.create_dataset(name, data=values, track_times=False).attrs.update(
                by_dataset.get(name, {})
            )
        file.attrs.update(attributes or {})


def repack(path: Path) -> bool:
    """Rewrite a badly chunked or compressed file contiguously, with its attributes; False if it was neither."""
    layouts = describe(path)
    if not any(layout.is_slow or layout.is_filtered for layout in layouts.values()):
        return False
    with _open_file(path) as source:
        if len(layouts) != len(source):
            raise StoreError(
                f"{path} holds groups as well as datasets; repack only rewrites flat feature files."
            )
        numbers = {name: _get_numbers(source, path, name) for name in layouts}
        with _file_in_memory(path) as file:
            file.attrs.update(source.attrs)
            for name, dataset in numbers.items():
                made = file.create_dataset(
                    name, data=_read_rows(dataset), dtype=dataset.dtype, track_times=False
                )
                made.attrs.update(dataset.attrs)
    return True


@contextmanager
def _file_in_memory(path: Path) -> Iterator[h5py.File]:
    """A new file that is written to `path` at the end: HDF5 itself does not report every failure of a full disk."""
    buffer = BytesIO()
    with h5py.File(buffer, "w", libver="latest", track_order=False) as file:
        yield file
    write_bytes(path, buffer.getbuffer())
