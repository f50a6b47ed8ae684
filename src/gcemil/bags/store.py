"""The only door to HDF5: features, coordinates, truth, anchors, evidence.

Files may come from strangers, so nothing in them is believed. Links, and data that lie in another file, are never
followed. A shape must be one that the bytes on the disk can hold. Bytes are taken from the file as they are only where
they are plain numbers inside its bounds (contiguous, or in chunks without filters), which reads 512 rows of a
(1, d)-chunked file without walking its chunk index row by row; everything else goes through h5py.

Files are written beside the target, read back, and renamed, without time stamps, so equal content gives equal bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from os import preadv
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gcemil.bags.strangers import REMEDY, look_at_texts, look_first
from gcemil.errors import GcemilError, StoreError, error_text
from gcemil.files import whole_file

Array = NDArray[Any]
Attributes = Mapping[str, str | int | float | bool]

FREE_BYTES = 64 * 2**20
"""Datasets up to this size are read whatever they claim."""
MAX_COMPRESSION = 32
"""Larger ones claim at most this many times the bytes on the disk where filters are at work; features compress to a half."""
MAX_ATTRIBUTE_BYTES = 2**20
MAX_ATTRIBUTE_TEXTS = 256
MAX_TEXT_BYTES = 2**20
BLOCK_BYTES = 8 * 2**20
NAMES_TOLD = 10
CHUNKS_WALKED = 20_000

FAULTS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    ArithmeticError,
    MemoryError,
    SystemError,
    AttributeError,
)
"""What h5py raises about damaged files, depending on where the damage lies."""


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
        return is_number_type(self.dtype)


def is_number_type(dtype: np.dtype[Any]) -> bool:
    """Real numbers of up to eight bytes: what every reader of gcemil can use."""
    return dtype.kind in "fiub" and dtype.itemsize <= 8


# Reading


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The file for reading; a missing or damaged one is a StoreError that names it."""
    with _translated(path):
        look_first(path)
        with h5py.File(path, "r") as file:
            yield file


def describe(path: Path) -> dict[str, Layout]:
    """Every top-level dataset of the file by name; one with links, or with data in another file, is refused."""
    with opened(path) as file:
        return {name: _layout(item) for name, item in _datasets(file, path)}


def attributes(path: Path, dataset: str | None = None) -> dict[str, Any]:
    """Attributes of the file root or of one dataset, as plain Python values."""
    with opened(path) as file:
        holder = file if dataset is None else _dataset(file, path, dataset)
        if any(holder.attrs.get_id(key).dtype.hasobject for key in holder.attrs):
            look_at_texts(path, _plain_extents(file, path))
        return {key: _attribute(holder, key, path) for key in holder.attrs}


def has(path: Path, dataset: str) -> bool:
    """Whether the file has this dataset itself; a link in its place is refused."""
    with opened(path) as file:
        return _found(file, path, dataset) is not None


def read(path: Path, dataset: str, rows: NDArray[np.integer[Any]] | None = None) -> Array:
    """A whole dataset of numbers, or some of its rows (sorted, distinct)."""
    with opened(path) as file:
        source = _Numbers(file, path, dataset)
        return source.read_all() if rows is None else source.read_rows(rows)


def read_beside(path: Path, dataset: str, other: str) -> tuple[Layout, Array | None]:
    """The layout of one dataset of numbers, and another one whole if the file has it, in one opening."""
    with opened(path) as file:
        layout = _Numbers(file, path, dataset).layout
        return layout, _Numbers(file, path, other).read_all() if _found(file, path, other) else None


def read_blocks(path: Path, dataset: str) -> Iterator[Array]:
    """The rows of a dataset of numbers in blocks of a few MB, so that no file has to fit into memory."""
    with opened(path) as file:
        yield from _Numbers(file, path, dataset).blocks()


def read_texts(path: Path, dataset: str) -> list[str]:
    """A list of texts, however they were stored: of fixed or variable length, as ASCII or UTF-8."""
    with opened(path) as file:
        source = _dataset(file, path, dataset)
        if source.dtype.hasobject:
            look_at_texts(path, _plain_extents(file, path))
        return _texts(source, path, dataset)


def walk(path: Path) -> None:
    """Everything that readers meet before values: names, types, attributes, chunk indexes, and some values.

    What the library says against the file is raised as it is; what only a reader can judge is left to the reader.
    """
    with h5py.File(path, "r") as file:
        _walk_attributes(file, path)
        for name in file:
            with suppress(StoreError, LookupError, ValueError, TypeError, AttributeError):
                if isinstance(item := _member(file, path, name), h5py.Dataset):
                    _refuse_elsewhere(item, path, name)
                    _walk_attributes(item, path)
                    if h5py.check_string_dtype(item.dtype):
                        _texts(item, path, name)
                    _walk_values(_Numbers(file, path, name))


# Writing


def write(
    path: Path,
    datasets: Mapping[str, Array],
    attributes: Attributes | None = None,
    *,
    dataset_attributes: Mapping[str, Attributes] | None = None,
) -> None:
    """Contiguous datasets in a new file that appears whole or not at all; attributes of the root, and by dataset."""
    own = dataset_attributes or {}
    with whole_file(path) as temporary:
        with _created(temporary, path) as file:
            for name, values in datasets.items():
                _create(file, name, values).attrs.update(own.get(name, {}))
            file.attrs.update(attributes or {})
        with _read_back(temporary, path) as file:
            for name, values in datasets.items():
                _verify(file, path, name, _cut(np.asarray(values)))
                _verify_attributes(file[name], own.get(name, {}), path)
            _verify_attributes(file, attributes or {}, path)


def repack(path: Path) -> bool:
    """Rewrite a badly chunked file contiguously, attributes and all; False when there was nothing to do."""
    if not any(layout.is_slow or layout.is_filtered for layout in describe(path).values()):
        return False
    with opened(path) as source:
        names = [name for name, _ in _datasets(source, path)]
        if len(names) != len(source):
            raise StoreError(
                f"{path} holds groups as well as datasets; repack only rewrites flat feature files."
            )
        datasets = {name: _Numbers(source, path, name) for name in names}
        with whole_file(path) as temporary:
            with _created(temporary, path) as file:
                _copy_attributes(source, file)
                for name, numbers in datasets.items():
                    _copy(numbers, file, name)
            with _read_back(temporary, path) as file:
                for name, numbers in datasets.items():
                    _verify(file, path, name, numbers.blocks())
    return True


# Private: what a file holds


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """What h5py and the system say about reading this file, as one sentence with a remedy."""
    try:
        if not path.is_file():
            what = "is no regular file, so it is not read" if path.exists() else "does not exist"
            raise StoreError(f"{path} {what}. Extract the slide, or remove it from slides.csv.")
        yield
    except GcemilError:
        raise
    except MemoryError as error:
        raise StoreError(f"{path} does not fit into memory ({error_text(error)}).") from error
    except PermissionError as error:
        raise StoreError(f"{path} may not be read. Check its permissions.") from error
    except FAULTS as error:
        raise StoreError(f"{path} cannot be read as HDF5 ({error_text(error)}). {REMEDY}") from error


def _datasets(file: h5py.File, path: Path) -> Iterator[tuple[str, h5py.Dataset]]:
    for name in file:
        item = _member(file, path, name)
        if isinstance(item, h5py.Dataset):
            _refuse_elsewhere(item, path, name)
            yield name, item


def _dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    item = _found(file, path, name)
    if item is None:
        names = [*file][: NAMES_TOLD + 1]
        listed = ", ".join(names[:NAMES_TOLD]) + (" …" if len(names) > NAMES_TOLD else "")
        raise StoreError(
            f"{path} has no dataset '{name}', only: {listed or 'nothing'}. Try 'gcemil inspect {path}'."
        )
    return item


def _found(file: h5py.File, path: Path, name: str) -> h5py.Dataset | None:
    """The dataset of this name, step by step down the groups it names, because every step could be a link."""
    item: Any = file
    for part in name.split("/"):
        if not isinstance(item, h5py.Group) or part in {"", "."} or not item.id.links.exists(part.encode()):
            return None
        item = _member(item, path, part)
    if not isinstance(item, h5py.Dataset):
        return None
    _refuse_elsewhere(item, path, name)
    return item


def _member(group: h5py.Group, path: Path, name: str) -> Any:
    # A link would make the file read another place, wherever it says: another file, or a pipe that never answers.
    if group.id.links.get_info(name.encode(errors="surrogateescape")).type != h5py.h5l.TYPE_HARD:
        raise StoreError(
            f"{path}: '{name}' is a link to another place, which is never followed. Copy the data into the file."
        )
    return group[name]


def _refuse_elsewhere(dataset: h5py.Dataset, path: Path, name: str) -> None:
    plan = dataset.id.get_create_plist()
    if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
        raise StoreError(
            f"{path}: '{name}' stores its data in another file, which is never followed. Copy it into the file."
        )


def _layout(dataset: h5py.Dataset) -> Layout:
    shape = dataset.shape
    is_filtered = dataset.id.get_create_plist().get_nfilters() > 0
    return Layout((0,) if shape is None else shape, dataset.dtype, dataset.chunks, is_filtered)


def _refuse_oversized(layout: Layout, path: Path, name: str) -> None:
    """A small file must not stand for more than memory holds: unwritten chunks, holes and constant data cost no disk."""
    claimed = max(math.prod(layout.shape), math.prod(layout.chunks or (0,))) * layout.dtype.itemsize
    if claimed <= FREE_BYTES:
        return
    held = _bytes_on_disk(path)
    if claimed > held * (MAX_COMPRESSION if layout.is_filtered else 1):
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


def _attribute(holder: Any, key: str, path: Path) -> Any:
    stated = holder.attrs.get_id(key)
    count = math.prod(stated.shape or ())
    many_texts = stated.dtype.kind == "O" and count > MAX_ATTRIBUTE_TEXTS
    if many_texts or count * stated.dtype.itemsize > MAX_ATTRIBUTE_BYTES:
        raise StoreError(f"{path}: its attribute '{key}' of shape {stated.shape} is too large to be read.")
    return _plain(holder.attrs[key])


def _texts(source: h5py.Dataset, path: Path, name: str) -> list[str]:
    layout = _layout(source)
    if h5py.check_string_dtype(layout.dtype) is None or len(layout.shape) != 1:
        raise StoreError(f"{path}: '{name}' is {layout.dtype} of shape {layout.shape}, not a list of texts.")
    _refuse_oversized(layout, path, name)
    texts: list[str] = []
    room = MAX_TEXT_BYTES
    # One by one: texts of variable length may all stand for the same huge one.
    for index in range(layout.shape[0]):
        value = source[index]
        texts.append(value.decode() if isinstance(value, bytes) else str(value))
        room -= 1 + len(texts[-1])
        if room < 0:
            raise StoreError(f"{path}: '{name}' holds more than {MAX_TEXT_BYTES:,} letters.")
    return texts


def _plain_extents(file: h5py.File, path: Path) -> list[tuple[int, int]]:
    """Where the bytes of contiguous numbers begin and end."""
    found = []
    for name in file:
        with suppress(StoreError, LookupError, TypeError):  # a link, or nothing that has a place
            item = _member(file, path, name)
            if isinstance(item, h5py.Dataset) and item.chunks is None and is_number_type(item.dtype):
                start = item.id.get_offset()
                found.append((start, start + item.id.get_storage_size()))
    return found


def _walk_attributes(holder: Any, path: Path) -> None:
    for key in holder.attrs:
        with suppress(StoreError, LookupError, ValueError, TypeError, AttributeError):
            _attribute(holder, key, path)


def _walk_values(source: _Numbers) -> None:
    shape, chunks = source.layout.shape, source.layout.chunks
    n_chunks = source.dataset.id.get_num_chunks() if chunks else 0
    if not shape or (n_chunks <= CHUNKS_WALKED and source.dataset.nbytes <= BLOCK_BYTES):
        source.read_all()
    elif shape[0]:
        source.read_rows(np.unique([0, shape[0] - 1]))


def _plain(value: Any) -> Any:
    """The value in Python's own types; text for what has none."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str | int | float) else str(value)


# Private: rows


class _Numbers:
    """A dataset of real numbers in an open file, which claims no more than the file can hold."""

    def __init__(self, file: h5py.File, path: Path, name: str) -> None:
        self.dataset = _dataset(file, path, name)
        self.layout = _layout(self.dataset)
        self.path, self.name = path, name
        if not self.layout.holds_numbers or self.dataset.shape is None:
            what = "nothing" if self.dataset.shape is None else str(self.layout.dtype)
            raise StoreError(f"{path}: '{name}' holds {what}, not real numbers. Write it again.")
        _refuse_oversized(self.layout, path, name)
        _refuse_unknown_filters(self.dataset, path, name)
        self._descriptor: int = file.id.get_vfd_handle()

    def read_all(self) -> Array:
        if not self.layout.shape:
            return _native(self.dataset[()])
        return self._read_range(0, self.layout.shape[0])

    def blocks(self) -> Iterator[Array]:
        """All rows in blocks of a few MB; of whole chunks, so that none is decompressed twice."""
        if not self.layout.shape:
            yield _native(self.dataset[()])
            return
        n_rows, chunk = self.layout.shape[0], self.layout.chunks[0] if self.layout.chunks else 1
        step = max(1, BLOCK_BYTES // max(1, self._row_bytes) // chunk) * chunk
        for start in range(0, n_rows, step):
            yield self._read_range(start, min(start + step, n_rows))

    def read_rows(self, rows: NDArray[np.integer[Any]]) -> Array:
        n_rows = self.layout.shape[0] if self.layout.shape else 0
        if len(rows) and (rows[0] < 0 or rows[-1] >= n_rows or bool((np.diff(rows) <= 0).any())):
            raise StoreError(
                f"{self.path}: rows to read must be sorted, distinct and below {n_rows}, got {rows[:5]} ... {rows[-1]}."
            )
        if not len(rows):
            return np.empty((0, *self.layout.shape[1:]), self.layout.dtype.newbyteorder("="))
        place = self._place_on_disk()
        return self._read_chunked(rows) if place is None else self._read_runs(place, rows)

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
        place = self._place_on_disk()
        if place is None:
            return _native(self.dataset[start:stop])
        result = np.empty((stop - start, *self.layout.shape[1:]), self.layout.dtype)
        self._fill(_bytes_of(result), place + start * self._row_bytes)
        return result

    def _read_runs(self, place: int, rows: NDArray[np.integer[Any]]) -> Array:
        """Rows of a plain contiguous dataset, one system call for every run of neighbours."""
        result = np.empty((len(rows), *self.layout.shape[1:]), self.layout.dtype)
        target, row_bytes, descriptor = _bytes_of(result), self._row_bytes, self._descriptor
        starts = np.concatenate(([0], np.flatnonzero(np.diff(rows) != 1) + 1))
        edges = [*(starts * row_bytes).tolist(), result.nbytes]
        places = (place + rows[starts].astype(np.int64) * row_bytes).tolist()
        for start, stop, offset in zip(edges, edges[1:], places, strict=False):
            run = target[start:stop]
            if preadv(descriptor, [run], offset) != stop - start:
                self._fill(run, offset)
        return result

    def _fill(self, target: memoryview, offset: int) -> None:
        """Bytes of the file into memory. Read, not mapped: a file that shrinks meanwhile would end the process."""
        done = 0
        while done < len(target):  # one call reads at most 2 GB
            found = preadv(self._descriptor, [target[done:]], offset + done)
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
            raw = self._raw_chunk((row, *(0,) * (len(shape) - 1))) if is_raw else None
            if raw is not None and len(raw) == chunks[0] * self._row_bytes:
                block = np.frombuffer(raw, dtype).reshape(chunks[0], *shape[1:])
            else:
                block = dataset[row : row + chunks[0]]
            result[start:stop] = block if len(block) == stop - start else block[rows[start:stop] - row]
        return _native(result)

    def _raw_chunk(self, place: tuple[int, ...]) -> bytes | None:
        try:
            return self.dataset.id.read_direct_chunk(place)[1]
        except (OSError, RuntimeError):  # never written, so h5py fills it, or damaged, which h5py will say
            return None


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _native(values: Any) -> Array:
    """In the byte order of this machine, and truth values that are 0 or 1, as torch needs them."""
    array = np.asarray(values)
    if array.dtype.kind == "b":
        return array.view(np.uint8) != 0
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


# Private: writing


@contextmanager
def _created(temporary: Path, path: Path) -> Iterator[h5py.File]:
    """A new file. What the disk refused on the way is raised at the end, with the number the system gave it."""
    with _Output(temporary) as output:
        try:
            with h5py.File(output, "w", libver="latest", track_order=False) as file:
                yield file
        except (OSError, RuntimeError) as error:
            output.raise_refused()
            raise _unwritten(path, error_text(error)) from error
        output.raise_refused()


class _Output(FileIO):
    """The file as h5py writes it.

    HDF5 keeps quiet about a disk that fills up while it closes a file, prints what it meets when objects are freed, and
    may crash afterwards. So it never hears of a refusal: that is kept here, and nothing more is written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._refused: OSError | None = None

    def raise_refused(self) -> None:
        if self._refused is not None:
            raise self._refused

    def write(self, content: Any) -> int:
        rest = memoryview(content)
        with self._kept_refusal():
            while len(rest) and self._refused is None:  # one call writes at most 2 GB
                rest = rest[super().write(rest) :]
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        with self._kept_refusal():
            super().truncate(size)
        return self.tell() if size is None else size

    @contextmanager
    def _kept_refusal(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._refused = self._refused or error


@contextmanager
def _read_back(temporary: Path, path: Path) -> Iterator[h5py.File]:
    """The file that was just written; whatever cannot be read was not written."""
    try:
        with h5py.File(temporary, "r") as file:
            yield file
    except GcemilError:
        raise
    except FAULTS as error:
        raise _unwritten(path, error_text(error)) from error


def _unwritten(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} cannot be written ({why}). Check free space and permissions.")


def _create(file: h5py.File, name: str, values: Array) -> h5py.Dataset:
    return file.create_dataset(name, data=values, track_times=False)


def _copy(source: _Numbers, file: h5py.File, name: str) -> None:
    target = file.create_dataset(name, source.layout.shape, source.layout.dtype, track_times=False)
    start = 0
    for block in source.blocks():
        stop = start + (len(block) if block.shape else 1)
        target[... if not block.shape else slice(start, stop)] = block
        start = stop
    _copy_attributes(source.dataset, target)


def _copy_attributes(source: Any, target: Any) -> None:
    for key, value in source.attrs.items():
        target.attrs[key] = value


def _cut(values: Array) -> Iterator[Array]:
    """The values in blocks of a few MB."""
    if not values.shape:
        yield values
        return
    step = max(1, BLOCK_BYTES * len(values) // max(1, values.nbytes))
    for start in range(0, len(values), step):
        yield values[start : start + step]


def _verify(file: h5py.File, path: Path, name: str, expected: Iterator[Array]) -> None:
    """The dataset holds these blocks, byte by byte."""
    dataset, start = file[name], 0
    for block in expected:
        stop = start + (len(block) if block.shape else 1)
        found = _native(dataset[start:stop] if dataset.shape else dataset[()])
        if found.shape != block.shape or found.tobytes() != _native(block).tobytes():
            raise _unwritten(path, f"'{name}' was not stored as it was given")
        start = stop


def _verify_attributes(holder: Any, expected: Mapping[str, Any], path: Path) -> None:
    for key, value in expected.items():
        if repr(_plain(holder.attrs[key])) != repr(_plain(value)):
            raise _unwritten(path, f"its attribute '{key}' was not stored as it was given")
