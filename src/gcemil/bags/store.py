"""The only door to HDF5: features, coordinates, truth, anchors, evidence.

Files are read through `hdf5`, which believes nothing in them, and those that could harm this process only after another
one has looked at them (`untrusted`). Whatever is wrong with a file is one sentence that names it.

Files are written beside the target, read back, and renamed, without time stamps, so equal content gives equal bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gcemil.bags.hdf5 import (
    BLOCK_BYTES,
    Array,
    Layout,
    NumberDataset,
    find_dataset,
    get_dataset,
    get_member,
    is_number_type,
    layout_of,
    list_datasets,
    read_attribute,
    refuse_external_data,
    refuse_oversized,
    to_native,
    to_plain_value,
)
from gcemil.bags.untrusted import REMEDY, examine_first, examine_texts
from gcemil.errors import GcemilError, StoreError, error_text
from gcemil.files import whole_file
from gcemil.wording import near_path

__all__ = [
    "Array",
    "Attributes",
    "Layout",
    "attributes",
    "describe",
    "has",
    "is_number_type",
    "read",
    "read_beside",
    "read_blocks",
    "read_texts",
    "repack",
    "walk",
    "write",
]

Attributes = Mapping[str, str | int | float | bool]

MAX_TEXT_BYTES = 2**20
_CHUNKS_WALKED = 20_000

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


# Reading


@contextmanager
def _open_file(path: Path) -> Iterator[h5py.File]:
    """The file for reading; a missing or damaged one is a StoreError that names it."""
    with _translate_faults(path):
        examine_first(path)
        with h5py.File(path, "r") as file:
            yield file


def describe(path: Path) -> dict[str, Layout]:
    """Every top-level dataset of the file by name; one with links, or with data in another file, is refused."""
    with _open_file(path) as file:
        return {name: layout_of(item) for name, item in list_datasets(file, path)}


def attributes(path: Path, dataset: str | None = None) -> dict[str, Any]:
    """Attributes of the file root or of one dataset, as plain Python values."""
    with _open_file(path) as file:
        holder = file if dataset is None else get_dataset(file, path, dataset)
        if any(holder.attrs.get_id(key).dtype.hasobject for key in holder.attrs):
            examine_texts(path, _find_plain_extents(file, path))
        return {key: read_attribute(holder, key, path) for key in holder.attrs}


def has(path: Path, dataset: str) -> bool:
    """Whether the file has this dataset itself; a link in its place is refused."""
    with _open_file(path) as file:
        return find_dataset(file, path, dataset) is not None


def read(path: Path, dataset: str, rows: NDArray[np.integer[Any]] | None = None) -> Array:
    """A whole dataset of numbers, or some of its rows (sorted, distinct)."""
    with _open_file(path) as file:
        source = NumberDataset(file, path, dataset)
        return source.read_all() if rows is None else source.read_rows(rows)


def read_beside(path: Path, dataset: str, other: str) -> tuple[Layout, Array | None]:
    """The layout of one dataset of numbers, and another one whole if the file has it, in one opening."""
    with _open_file(path) as file:
        layout = NumberDataset(file, path, dataset).layout
        has_other = find_dataset(file, path, other) is not None
        return layout, NumberDataset(file, path, other).read_all() if has_other else None


def read_blocks(path: Path, dataset: str) -> Iterator[Array]:
    """The rows of a dataset of numbers in blocks of a few MB, so that no file has to fit into memory."""
    with _open_file(path) as file:
        yield from NumberDataset(file, path, dataset).blocks()


def read_texts(path: Path, dataset: str) -> list[str]:
    """A list of texts, however they were stored: of fixed or variable length, as ASCII or UTF-8."""
    with _open_file(path) as file:
        source = get_dataset(file, path, dataset)
        if source.dtype.hasobject:
            examine_texts(path, _find_plain_extents(file, path))
        return _read_text_list(source, path, dataset)


def walk(path: Path) -> None:
    """Everything that readers meet before values: names, types, attributes, chunk indexes, and some values.

    What the library says against the file is raised as it is; what only a reader can judge is left to the reader.
    """
    with h5py.File(path, "r") as file:
        _walk_attributes(file, path)
        for name in file:
            with suppress(StoreError, LookupError, ValueError, TypeError, AttributeError):
                if isinstance(item := get_member(file, path, name), h5py.Dataset):
                    refuse_external_data(item, path, name)
                    _walk_attributes(item, path)
                    if h5py.check_string_dtype(item.dtype):
                        _read_text_list(item, path, name)
                    _walk_values(NumberDataset(file, path, name))


@contextmanager
def _translate_faults(path: Path) -> Iterator[None]:
    """What h5py and the system say about reading this file, as one sentence with a remedy."""
    try:
        if not path.is_file():
            raise StoreError(describe_absence(path))
        yield
    except GcemilError:
        raise
    except MemoryError as error:
        raise StoreError(f"{path} does not fit into memory ({error_text(error)}).") from error
    except PermissionError as error:
        raise StoreError(f"{path} may not be read. Check its permissions.") from error
    except FAULTS as error:
        raise StoreError(f"{path} cannot be read as HDF5 ({error_text(error)}). {REMEDY}") from error


def describe_absence(path: Path) -> str:
    """Why there is no file to read, and what to do about it."""
    if path.is_dir():
        return f"{path} is a folder. Give a file."
    if path.exists():
        return (
            f"{path} is no regular file, so it is not read. Extract the slide, or remove it from slides.csv."
        )
    if path.is_symlink():
        return (
            f"{path} is a link to {os.fsdecode(path.readlink())}, which is not there: the source moved. "
            "Import it again from where it is now with 'gcemil import', or put it back."
        )
    return f"{path} does not exist.{near_path(path)} Check the path; a slide of a cohort without features is extracted, or removed from slides.csv."


def _read_text_list(source: h5py.Dataset, path: Path, name: str) -> list[str]:
    layout = layout_of(source)
    if h5py.check_string_dtype(layout.dtype) is None or len(layout.shape) != 1:
        raise StoreError(f"{path}: '{name}' is {layout.dtype} of shape {layout.shape}, not a list of texts.")
    refuse_oversized(layout, path, name)
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


def _find_plain_extents(file: h5py.File, path: Path) -> list[tuple[int, int]]:
    """Where the bytes of contiguous numbers begin and end."""
    found = []
    for name in file:
        with suppress(StoreError, LookupError, TypeError):  # a link, or nothing that has a place
            item = get_member(file, path, name)
            if isinstance(item, h5py.Dataset) and item.chunks is None and is_number_type(item.dtype):
                start = item.id.get_offset()
                found.append((start, start + item.id.get_storage_size()))
    return found


def _walk_attributes(holder: h5py.HLObject, path: Path) -> None:
    for key in holder.attrs:
        with suppress(StoreError, LookupError, ValueError, TypeError, AttributeError):
            read_attribute(holder, key, path)


def _walk_values(source: NumberDataset) -> None:
    shape, chunks = source.layout.shape, source.layout.chunks
    n_chunks = source.dataset.id.get_num_chunks() if chunks else 0
    if not shape or (n_chunks <= _CHUNKS_WALKED and source.dataset.nbytes <= BLOCK_BYTES):
        source.read_all()
    elif shape[0]:
        source.read_rows(np.unique([0, shape[0] - 1]))


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
        with _create_file(temporary, path) as file:
            for name, values in datasets.items():
                file.create_dataset(name, data=values, track_times=False).attrs.update(own.get(name, {}))
            file.attrs.update(attributes or {})
        with _reopen_file(temporary, path) as file:
            for name, values in datasets.items():
                _verify_dataset(file, path, name, _cut_blocks(np.asarray(values)))
                _verify_attributes(file[name], own.get(name, {}), path)
            _verify_attributes(file, attributes or {}, path)


def repack(path: Path) -> bool:
    """Rewrite a badly chunked file contiguously, attributes and all; False when there was nothing to do."""
    if not any(layout.is_slow or layout.is_filtered for layout in describe(path).values()):
        return False
    with _open_file(path) as source:
        names = [name for name, _ in list_datasets(source, path)]
        if len(names) != len(source):
            raise StoreError(
                f"{path} holds groups as well as datasets; repack only rewrites flat feature files."
            )
        datasets = {name: NumberDataset(source, path, name) for name in names}
        with whole_file(path) as temporary:
            with _create_file(temporary, path) as file:
                file.attrs.update(source.attrs)
                for name, numbers in datasets.items():
                    _copy_dataset(numbers, file, name)
            with _reopen_file(temporary, path) as file:
                for name, numbers in datasets.items():
                    _verify_dataset(file, path, name, numbers.blocks())
    return True


@contextmanager
def _create_file(temporary: Path, path: Path) -> Iterator[h5py.File]:
    """A new file. What the disk refused on the way is raised at the end, with the number the system gave it."""
    with _OutputFile(temporary) as output:
        try:
            with h5py.File(output, "w", libver="latest", track_order=False) as file:
                yield file
        except (OSError, RuntimeError) as error:
            output.raise_refused()
            raise _write_error(path, error_text(error)) from error
        output.raise_refused()


class _OutputFile(FileIO):
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
        with self._keep_refusal():
            while len(rest) and self._refused is None:  # one call writes at most 2 GB
                rest = rest[super().write(rest) :]
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        with self._keep_refusal():
            super().truncate(size)
        return self.tell() if size is None else size

    @contextmanager
    def _keep_refusal(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._refused = self._refused or error


@contextmanager
def _reopen_file(temporary: Path, path: Path) -> Iterator[h5py.File]:
    """The file that was just written; whatever cannot be read was not written."""
    try:
        with h5py.File(temporary, "r") as file:
            yield file
    except GcemilError:
        raise
    except FAULTS as error:
        raise _write_error(path, error_text(error)) from error


def _write_error(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} cannot be written ({why}). Check free space and permissions.")


def _copy_dataset(source: NumberDataset, file: h5py.File, name: str) -> None:
    target = file.create_dataset(name, source.layout.shape, source.layout.dtype, track_times=False)
    for place, block in _place_blocks(source.blocks()):
        target[place] = block
    target.attrs.update(source.dataset.attrs)


def _cut_blocks(values: Array) -> Iterator[Array]:
    """The values in blocks of a few MB."""
    if not values.shape:
        yield values
        return
    step = max(1, BLOCK_BYTES * len(values) // max(1, values.nbytes))
    for start in range(0, len(values), step):
        yield values[start : start + step]


def _verify_dataset(file: h5py.File, path: Path, name: str, expected: Iterator[Array]) -> None:
    """The dataset holds these blocks, byte by byte."""
    for place, block in _place_blocks(expected):
        found = to_native(file[name][place])
        if found.shape != block.shape or not _holds_same_bytes(found, to_native(block)):
            raise _write_error(path, f"'{name}' was not stored as it was given")


def _place_blocks(blocks: Iterator[Array]) -> Iterator[tuple[Any, Array]]:
    """Each block with its place in the dataset: the rows that it is, or all of a single number."""
    start = 0
    for block in blocks:
        yield (slice(start, start + len(block)), block) if block.shape else ((), block)
        start += len(block) if block.shape else 1


def _holds_same_bytes(found: Array, given: Array) -> bool:
    # Texts of variable length are references, which differ where the texts do not.
    if found.dtype.hasobject:
        first, second = (
            [one if isinstance(one, bytes) else str(one).encode() for one in array.flat]
            for array in (found, given)
        )
        return first == second
    return found.tobytes() == given.tobytes()


def _verify_attributes(holder: h5py.HLObject, expected: Mapping[str, Any], path: Path) -> None:
    for key, value in expected.items():
        if repr(to_plain_value(holder.attrs[key])) != repr(to_plain_value(value)):
            raise _write_error(path, f"its attribute '{key}' was not stored as it was given")
