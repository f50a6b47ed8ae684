"""What an HDF5 file holds, read without believing it: its datasets, their layouts, attributes and rows.

Files may come from anywhere. Links, and data that lie in another file, are never followed. A shape must be one that the
bytes on the disk can hold. Bytes are taken from the file as they are only where they are plain numbers inside its bounds
(contiguous, or in chunks without filters), which reads a (1, d)-chunked file without asking its chunk index row by row;
everything else goes through h5py.

Whoever wants data asks `store`, which opens files and says in words what is wrong with them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gcemil.errors import StoreError

Array = NDArray[Any]

FREE_BYTES = 64 * 2**20
"""Datasets up to this size are read whatever they claim."""
_MAX_COMPRESSION = 32
"""Larger ones claim at most this many times the bytes on the disk where filters are at work; features compress to a half."""
_FREE_CHUNKS = 65_536
"""The library keeps a record of every chunk it reads, written or not; beyond these each takes a byte on the disk at least."""
MAX_ATTRIBUTE_BYTES = 2**20
_MAX_ATTRIBUTE_TEXTS = 256
BLOCK_BYTES = 8 * 2**20
"""Rows are read and compared in blocks of about this size."""
_NAMES_SHOWN = 10


@dataclass(frozen=True)
class Layout:
    """What a dataset looks like without reading it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    is_filtered: bool
    """Compressed, or changed by another filter on its way to the disk."""

    @property
    def is_slow(self) -> bool:
        """One row per chunk, as CLAM and TRIDENT write: reads an order of magnitude slower."""
        return self.chunks is not None and len(self.shape) == 2 and self.shape[0] > 1 and self.chunks[0] < 64

    @property
    def holds_numbers(self) -> bool:
        """Whether readers of gcemil can use the values."""
        return is_number_type(self.dtype)


def is_number_type(dtype: np.dtype[Any]) -> bool:
    """Real numbers of up to eight bytes: what every reader of gcemil can use."""
    return dtype.kind in "fiub" and dtype.itemsize <= 8


# Datasets and attributes


def list_datasets(file: h5py.File, path: Path) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every top-level dataset with its name; links are refused."""
    for name in file:
        item = get_member(file, path, name)
        if isinstance(item, h5py.Dataset):
            refuse_external_data(item, path, name)
            yield name, item


def get_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """The dataset of this name; a missing one is an error that names those there are."""
    item = find_dataset(file, path, name)
    if item is None:
        names = [*file][: _NAMES_SHOWN + 1]
        listed = ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")
        raise StoreError(
            f"{path} has no dataset '{name}', only: {listed or 'nothing'}. Try 'gcemil inspect {path}'."
        )
    return item


def find_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset | None:
    """The dataset of this name, step by step down the groups it names, because every step could be a link."""
    item: Any = file
    for part in name.split("/"):
        if not isinstance(item, h5py.Group) or part in {"", "."} or not item.id.links.exists(part.encode()):
            return None
        item = get_member(item, path, part)
    if not isinstance(item, h5py.Dataset):
        return None
    refuse_external_data(item, path, name)
    return item


def get_member(group: h5py.Group, path: Path, name: str) -> Any:
    """A member of a group that is stored in this very file."""
    # A link would make the file read another place, wherever it says: another file, or a pipe that never answers.
    if group.id.links.get_info(name.encode(errors="surrogateescape")).type != h5py.h5l.TYPE_HARD:
        raise StoreError(
            f"{path}: '{name}' is a link to another place, which is never followed. Copy the data into the file."
        )
    return group[name]


def refuse_external_data(dataset: h5py.Dataset, path: Path, name: str) -> None:
    """Refuse a dataset whose values lie in another file."""
    plan = dataset.id.get_create_plist()
    if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
        raise StoreError(
            f"{path}: '{name}' stores its data in another file, which is never followed. Copy it into the file."
        )


def layout_of(dataset: h5py.Dataset) -> Layout:
    """What a dataset looks like, without reading it."""
    shape = dataset.shape
    is_filtered = dataset.id.get_create_plist().get_nfilters() > 0
    return Layout((0,) if shape is None else shape, dataset.dtype, dataset.chunks, is_filtered)


def refuse_oversized(layout: Layout, path: Path, name: str) -> None:
    """A small file must not stand for more than memory holds: unwritten chunks, holes and constant data cost no disk."""
    claimed = max(math.prod(layout.shape), math.prod(layout.chunks or (0,))) * layout.dtype.itemsize
    n_chunks = math.prod(
        -(-length // side) for length, side in zip(layout.shape, layout.chunks or (), strict=False)
    )
    if claimed <= FREE_BYTES and n_chunks <= _FREE_CHUNKS:
        return
    held = _bytes_on_disk(path)
    if n_chunks > max(held, _FREE_CHUNKS):
        raise StoreError(
            f"{path}: '{name}' of shape {layout.shape} claims {n_chunks:,} chunks, but the file has {held:,} bytes on the "
            "disk. It is damaged or made to exhaust memory; extract it again."
        )
    if claimed > max(FREE_BYTES, held * (_MAX_COMPRESSION if layout.is_filtered else 1)):
        raise StoreError(
            f"{path}: '{name}' of shape {layout.shape} claims {claimed:,} bytes, but the file has {held:,} on the disk. "
            "It is damaged or made to exhaust memory; extract it again."
        )


def _refuse_unknown_filters(dataset: h5py.Dataset, path: Path, name: str) -> None:
    plan = dataset.id.get_create_plist()
    for index in range(plan.get_nfilters()):
        number, _, _, label = plan.get_filter(index)
        if not h5py.h5z.filter_avail(number):
            raise StoreError(
                f"{path}: '{name}' is compressed by a filter that is not installed here ({number} {label.decode(errors='replace')}). "
                "Write it again without compression or with gzip."
            )


def _bytes_on_disk(path: Path) -> int:
    """The size of a file without its holes."""
    held, place = 0, 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while place < size:
            try:
                start = os.lseek(file.fileno(), place, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                break
            place = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            held += place - start
    return held


def read_attribute(holder: h5py.HLObject, key: str, path: Path) -> Any:
    """One attribute as a plain Python value; a huge one is refused."""
    stated = holder.attrs.get_id(key)
    count = math.prod(stated.shape or ())
    many_texts = stated.dtype.kind == "O" and count > _MAX_ATTRIBUTE_TEXTS
    if many_texts or count * stated.dtype.itemsize > MAX_ATTRIBUTE_BYTES:
        raise StoreError(f"{path}: its attribute '{key}' of shape {stated.shape} is too large to be read.")
    return to_plain_value(holder.attrs[key])


def to_plain_value(value: Any) -> Any:
    """The value in Python's own types; text for what has none."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [to_plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str | int | float) else str(value)


# Rows


class NumberDataset:
    """A dataset of real numbers in an open file, which claims no more than the file can hold."""

    def __init__(self, file: h5py.File, path: Path, name: str) -> None:
        self.dataset = get_dataset(file, path, name)
        self.layout = layout_of(self.dataset)
        self.path, self.name = path, name
        if not self.layout.holds_numbers or self.dataset.shape is None:
            what = "nothing" if self.dataset.shape is None else str(self.layout.dtype)
            raise StoreError(f"{path}: '{name}' holds {what}, not real numbers. Write it again.")
        refuse_oversized(self.layout, path, name)
        _refuse_unknown_filters(self.dataset, path, name)
        self._descriptor: int = file.id.get_vfd_handle()

    def read_all(self) -> Array:
        """The whole dataset."""
        if not self.layout.shape:
            return to_native(self.dataset[()])
        return self._read_range(0, self.layout.shape[0])

    def blocks(self) -> Iterator[Array]:
        """All rows in blocks of a few MB; of whole chunks, so that none is decompressed twice."""
        if not self.layout.shape:
            yield to_native(self.dataset[()])
            return
        n_rows, chunk = self.layout.shape[0], self.layout.chunks[0] if self.layout.chunks else 1
        step = max(1, BLOCK_BYTES // max(1, self._row_bytes) // chunk) * chunk
        for start in range(0, n_rows, step):
            yield self._read_range(start, min(start + step, n_rows))

    def read_rows(self, rows: NDArray[np.integer[Any]]) -> Array:
        """Some rows (sorted, distinct)."""
        n_rows = self.layout.shape[0] if self.layout.shape else 0
        if len(rows) and (rows[0] < 0 or rows[-1] >= n_rows or bool((np.diff(rows) <= 0).any())):
            raise StoreError(
                f"{self.path}: rows to read must be sorted, distinct and below {n_rows}, got {rows[:5]} ... {rows[-1]}."
            )
        if not len(rows):
            return np.empty((0, *self.layout.shape[1:]), self.layout.dtype.newbyteorder("="))
        place = self._place_on_disk()
        if place is None:
            return self._read_chunked(rows)
        places = place + rows.astype(np.int64) * self._row_bytes
        return self._read_runs(places, np.ones(len(rows), np.int64))

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.layout.shape[1:]) * self.layout.dtype.itemsize

    @property
    def _is_plain(self) -> bool:
        """The bytes on the disk are the numbers themselves; h5py reads some stored types as others."""
        dtype = self.layout.dtype
        if dtype.kind not in "fiu" or not dtype.isnative or self.layout.is_filtered:
            return False
        return bool(self.dataset.id.get_type().equal(h5py.h5t.py_create(dtype)))

    def _place_on_disk(self) -> int | None:
        """Where the bytes of a plain contiguous dataset begin; None where h5py has to read it."""
        length = self._row_bytes * self.layout.shape[0]
        offset = self.dataset.id.get_offset() if self.layout.chunks is None and length else None
        if offset is None or not self._is_plain:
            return None
        size = os.fstat(self._descriptor).st_size
        if offset + length > size:
            raise StoreError(
                f"{self.path} is truncated: '{self.name}' ends at byte {offset + length:,} of {size:,}. Extract it again."
            )
        return int(offset)

    def _read_range(self, start: int, stop: int) -> Array:
        place, chunks = self._place_on_disk(), self.layout.chunks
        if place is not None:
            return self._read_runs(np.array([place + start * self._row_bytes]), np.array([stop - start]))
        if self._chunk_places is None or chunks is None:
            return to_native(self.dataset[start:stop])
        numbers = np.arange(start // chunks[0], -(-stop // chunks[0]))
        first = numbers * chunks[0]
        low, high = np.maximum(first, start), np.minimum(first + chunks[0], stop)
        return self._read_runs(self._chunk_places[numbers] + (low - first) * self._row_bytes, high - low)

    @cached_property
    def _chunk_places(self) -> NDArray[np.int64] | None:
        """Where each chunk of whole rows begins, from one walk over the index; None where h5py has to read them."""
        shape, chunks = self.layout.shape, self.layout.chunks
        if chunks is None or chunks[1:] != shape[1:] or not (self.dataset.nbytes and self._is_plain):
            return None
        n_chunks, chunk_bytes = -(-shape[0] // chunks[0]), chunks[0] * self._row_bytes
        size = os.fstat(self._descriptor).st_size
        # Some were never written, and a small file can claim millions of them.
        if n_chunks * chunk_bytes > size:
            return None
        places = np.full(n_chunks, -1, np.int64)

        def note(stored: Any) -> None:
            if stored.size == chunk_bytes and not stored.filter_mask and stored.byte_offset is not None:
                places[stored.chunk_offset[0] // chunks[0]] = stored.byte_offset

        try:
            self.dataset.id.chunk_iter(note)
        except (OSError, RuntimeError, LookupError):  # a damaged index, which h5py will say
            return None
        # A chunk that was never written, or lies outside the file, is h5py's to fill or to refuse.
        return places if bool(((places >= 0) & (places <= size - chunk_bytes)).all()) else None

    def _read_runs(self, places: NDArray[np.int64], counts: NDArray[np.int64]) -> Array:
        """So many rows from each of these bytes of the file on; one system call for what lies side by side."""
        result = np.empty((int(counts.sum()), *self.layout.shape[1:]), self.layout.dtype)
        target, sizes = _bytes_of(result), counts * self._row_bytes
        starts = np.concatenate(([0], np.flatnonzero(places[1:] != places[:-1] + sizes[:-1]) + 1))
        edges = [*(np.cumsum(sizes) - sizes)[starts].tolist(), result.nbytes]
        for start, stop, offset in zip(edges, edges[1:], places[starts].tolist(), strict=False):
            self._fill(target[start:stop], offset)
        return result

    def _fill(self, target: memoryview, offset: int) -> None:
        """Bytes of the file into memory. Read, not mapped: a file that shrinks meanwhile would end the process."""
        done = 0
        while done < len(target):  # one call reads at most 2 GB
            found = os.preadv(self._descriptor, [target[done:]], offset + done)
            if not found:
                raise StoreError(f"{self.path} became shorter while it was read. Extract it again.")
            done += found

    def _read_chunked(self, rows: NDArray[np.integer[Any]]) -> Array:
        """Rows of any other dataset, chunk by chunk: far cheaper than one hyperslab union over all rows."""
        dataset, shape, chunks, dtype = self.dataset, self.layout.shape, self.layout.chunks, self.layout.dtype
        if chunks is None or len(rows) * chunks[0] > 0.5 * shape[0]:
            return self.read_all()[rows]
        result = np.empty((len(rows), *shape[1:]), dtype)
        is_raw = chunks[1:] == shape[1:] and self._is_plain
        numbers, first = np.unique(rows // chunks[0], return_index=True)
        edges = [*first.tolist(), len(rows)]
        for number, start, stop in zip(numbers.tolist(), edges, edges[1:], strict=False):
            row = number * chunks[0]
            raw = self._read_raw_chunk((row, *(0,) * (len(shape) - 1))) if is_raw else None
            if raw is not None and len(raw) == chunks[0] * self._row_bytes:
                block = np.frombuffer(raw, dtype).reshape(chunks[0], *shape[1:])
            else:
                block = dataset[row : row + chunks[0]]
            result[start:stop] = block if len(block) == stop - start else block[rows[start:stop] - row]
        return to_native(result)

    def _read_raw_chunk(self, place: tuple[int, ...]) -> bytes | None:
        try:
            return self.dataset.id.read_direct_chunk(place)[1]
        except (OSError, RuntimeError):  # never written, so h5py fills it, or damaged, which h5py will say
            return None


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def to_native(values: Any) -> Array:
    """In the byte order of this machine, and truth values that are 0 or 1, as torch needs them."""
    array = np.asarray(values)
    if array.dtype.kind == "b":
        return array.view(np.uint8) != 0
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
