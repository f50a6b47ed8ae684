"""HDF5 files of a cohort and of other tools: features, coordinates, truth, anchors, pairs.

  coords    (n, 2)  level-0 pixels from the corner of the slide: whole numbers from 0 to 1e9
  features  (n, d)  floating point numbers
  truth     (n,)    evidence 0 or 1 · region and concept whole numbers from 0 · overlap from 0 to 1
  anchors   (m, a)  finite, one prompt each
  pairs     (p, d) and (p, a), finite: the same patches in feature space and in anchor space

Links, and datasets whose values lie in another file, are refused. A missing, truncated, mistyped or
otherwise damaged file raises a StoreError with one sentence that names it. Rows of plain numbers
are read from their byte positions, which avoids one index lookup per row in the (1, d)-chunked
files of CLAM and TRIDENT. Files are made in memory and written in one atomic step, without time
stamps: equal content gives equal bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
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
Bounds = tuple[int, int]

_NAMES_SHOWN = 10
_LARGEST_COORDINATE = 10**9
"""Thousands of times the longest side of a scanned slide."""
_BOUNDS_KEYS = (("openslide.bounds-x", "openslide.bounds-y"), ("bounds_x", "bounds_y"))
"""Attributes of a feature file for the origin of the image that QuPath shows."""
_TRUTH_RANGES = {
    # An overlap is a quotient of areas, which rounding may carry past 1.
    "overlap": (1.001, False, "a share from 0 to 1"),
    "evidence": (1, True, "0 or 1"),
}
"""Column of a truth file → its largest value, whether it is whole, and its meaning."""


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
        """Few rows per chunk, as in files of CLAM and TRIDENT: read ten times slower by h5py."""
        is_matrix = len(self.shape) == 2 and self.shape[0] > 1
        return is_matrix and self.chunks is not None and self.chunks[0] < 64


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
    """Attributes of the file root, or of one dataset if it is there, as plain Python values."""
    with _open_file(path) as file:
        holder = file if dataset is None else _get_member(file, path, dataset)
        attrs = {} if holder is None else holder.attrs
        return {key: _to_plain_value(value) for key, value in attrs.items()}


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


def read_texts(path: Path, dataset: str) -> list[str]:
    """A list of texts, stored with fixed or variable length, as ASCII or UTF-8."""
    with _open_file(path) as file:
        source = _get_dataset(file, path, dataset)
        if h5py.check_string_dtype(source.dtype) is None or len(source.shape or ()) != 1:
            raise StoreError(
                f"{path}: '{dataset}' is {source.dtype} of shape {source.shape}, "
                "not a list of texts."
            )
        return [value.decode() if isinstance(value, bytes) else str(value) for value in source[:]]


def read_patch_layout(path: Path) -> tuple[int, NDArray[np.int64] | None]:
    """The number of patches in a feature file, and their coordinates if it has any."""
    with _open_file(path) as file:
        shape = _get_numbers(file, path, "features").shape
        if not shape:
            raise StoreError(
                f"{path}: 'features' is one number, not (patches, dimension). "
                "Extract the slide again."
            )
        if _get_member(file, path, "coords") is None:
            return shape[0], None
        return shape[0], check_coords(_read_rows(_get_numbers(file, path, "coords")), path)


def read_coords(path: Path) -> NDArray[np.int64]:
    """The coordinates of a feature or patch file."""
    return check_coords(read(path, "coords"), path)


def read_truth(path: Path, name: str, n_patches: int) -> Array:
    """One column of a truth file for these many patches."""
    values = read(path, name)
    if values.ndim != 1 or len(values) != n_patches:
        raise StoreError(
            f"{path}: '{name}' has shape {values.shape} for {n_patches} patches in the features. "
            "Write the truth again."
        )
    largest, is_whole, meaning = _TRUTH_RANGES.get(
        name, (_LARGEST_COORDINATE, True, "a whole number from 0")
    )
    is_valid = (values >= 0) & (values <= largest)
    if is_whole:
        is_valid &= values == np.round(values)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise StoreError(
            f"{path}: '{name}' is {values[row]:g} at patch {row}, but it is {meaning}. "
            "Write the truth again."
        )
    return values


def read_anchors(path: Path) -> tuple[NDArray[np.float32], list[str]]:
    """Embeddings (m, a) and their prompts."""
    remedy = "Write it again with 'gcemil anchors'."
    embeddings = _read_matrix(path, "embeddings", remedy)
    prompts = read_texts(path, "prompts")
    if len(prompts) != len(embeddings):
        raise StoreError(
            f"{path}: {len(prompts)} prompts for {len(embeddings)} embeddings. {remedy}"
        )
    return embeddings, prompts


def read_pairs(path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The same patches in feature space and in anchor space."""
    remedy = "Write it again with 'gcemil anchors pairs'."
    features = _read_matrix(path, "features", remedy)
    anchor_space = _read_matrix(path, "anchor_space", remedy)
    if len(features) != len(anchor_space):
        raise StoreError(
            f"{path}: {len(features)} features for {len(anchor_space)} rows in anchor space. "
            f"{remedy}"
        )
    return features, anchor_space


def _read_matrix(path: Path, name: str, remedy: str) -> NDArray[np.float32]:
    values = read(path, name)
    if values.ndim != 2 or not values.size:
        raise StoreError(
            f"{path}: '{name}' has shape {values.shape}, not (rows, columns). {remedy}"
        )
    # What single precision cannot hold becomes infinite and is refused with the rest.
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if problem := nan_problem(narrow, f"'{name}'", "rows"):
        raise StoreError(f"{path}: {problem}. {remedy}")
    return narrow


# Checks


def nan_problem(values: Array, what: str = "features", unit: str = "patches") -> str | None:
    """How many rows have NaN or infinite numbers, and the first of them; None without any."""
    finite = np.isfinite(values).all(axis=1)
    if finite.all():
        return None
    first = int(np.argmin(finite))
    return f"{(~finite).sum()} {unit} have NaN or infinite {what}, the first is row {first}"


def check_coords(coords: Array, path: Path) -> NDArray[np.int64]:
    """Coordinates as int64; ones that no patch of a slide can have are refused."""
    if problem := coords_problem(coords):
        raise StoreError(
            f"{path}: {problem}. Extract the slide again, or convert it with 'gcemil import'."
        )
    return coords.astype(np.int64)


def coords_problem(coords: Array) -> str | None:
    """Why these cannot be level-0 pixels; None when they can."""
    if coords.ndim != 2 or coords.shape[1] != 2:
        return f"coordinates have shape {coords.shape}, not (patches, 2)"
    if coords.dtype.kind not in "fiu":
        return f"coordinates are {coords.dtype}, not whole numbers"
    if not len(coords):
        return None
    if coords.dtype.kind == "f":
        if problem := nan_problem(coords, "coordinates"):
            return problem
        if not np.array_equal(coords, np.round(coords)):
            return (
                f"coordinates are fractions such as {coords.max():.2f}: they look like micrometres"
            )
    if (low := coords.min()) < 0:
        return f"a coordinate is {low:g}, but level-0 pixels count from the corner of the slide"
    if (high := coords.max()) > _LARGEST_COORDINATE:
        return f"a coordinate is {high:g}, farther than any slide reaches"
    return None


def features_problem(shape: Sequence[int], dtype: np.dtype[Any]) -> str | None:
    """Why this dataset cannot be features; None when it can. Its values are not looked at."""
    if dtype.kind != "f" or not is_number_type(dtype):
        return f"features are {dtype}, not float16 or float32"
    if len(shape) != 2:
        return f"features have shape {shape}, not (patches, dimension)"
    return None


def stated_number(attributes: Attributes, name: str) -> float | None:
    """An attribute that is a number above 0, such as a size or a magnification; else None."""
    value = attributes.get(name)
    try:
        # TRIDENT writes None as a text, and numbers sometimes too.
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if 0 < number <= _LARGEST_COORDINATE else None


def stated_bounds(attributes: Attributes, where: str) -> Bounds | None:
    """The bounds among the attributes of a feature file; None where it has none."""
    for across, down in _BOUNDS_KEYS:
        # TRIDENT writes None as a string.
        if attributes.get(across) in (None, "None") or attributes.get(down) in (None, "None"):
            continue
        try:
            return int(attributes[across]), int(attributes[down])
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(
                f"{where}: '{across}' is '{attributes[across]}' and '{down}' is "
                f"'{attributes[down]}'; both must be whole pixels. "
                "Give --bounds-x and --bounds-y instead."
            ) from error
    return None


# Files and datasets


@contextmanager
def _open_file(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; whatever h5py and the system raise becomes a StoreError."""
    try:
        if not path.is_file():
            raise StoreError(describe_absence(path))
        with h5py.File(path, "r") as file:
            yield file
    except GcemilError:
        raise
    except (MemoryError, PermissionError) as error:
        raise StoreError(f"{path} cannot be read ({error_text(error)}).") from error
    # The type depends on where the damage lies: OSError, KeyError, ValueError, RuntimeError, …
    except Exception as error:
        raise StoreError(
            f"{path} cannot be read as HDF5 ({error_text(error)}). "
            "It is truncated, damaged or not HDF5; extract it again."
        ) from error


def describe_absence(path: Path) -> str:
    """Why there is no file to read, and the remedy."""
    if path.exists():
        return (
            f"{path} is not a regular file, so it is not read. "
            "Put the file back, or extract the slide."
        )
    if path.is_symlink():
        return (
            f"{path} is a link to {os.fsdecode(path.readlink())}, which is not there: "
            "the source moved. "
            "Import it again from where it is now with 'gcemil import', or put it back."
        )
    return (
        f"{path} does not exist.{near_path(path)} "
        "Check the path; a slide without features is extracted."
    )


def _get_numbers(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
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
            f"{path} has no dataset '{name}', only: {listed or 'nothing'}. "
            f"Try 'gcemil inspect {path}'."
        )
    return item


def _get_member(file: h5py.File, path: Path, name: str) -> Any:
    """A member stored in this very file, None without one: data elsewhere is never followed."""
    link = file.get(name, getlink=True)
    if link is None:
        return None
    item = file[name] if isinstance(link, h5py.HardLink) else None
    if item is None or (isinstance(item, h5py.Dataset) and (item.external or item.is_virtual)):
        raise StoreError(
            f"{path}: '{name}' leads to data in another place, which is never followed. "
            "Copy the data into the file."
        )
    return item


def _describe(dataset: h5py.Dataset) -> DatasetInfo:
    is_filtered = dataset.id.get_create_plist().get_nfilters() > 0
    shape = (0,) if dataset.shape is None else dataset.shape
    return DatasetInfo(shape, dataset.dtype, dataset.chunks, is_filtered)


def _to_plain_value(value: Any) -> Any:
    """The value in Python's own types; text for what has none."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_to_plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str | int | float) else str(value)


def _read_rows(dataset: h5py.Dataset, rows: Rows | None = None) -> Array:
    """All rows or some (sorted, distinct), in the byte order of this machine."""
    if not dataset.shape:
        values = np.asarray(dataset[()])
    elif (positions := _row_positions(dataset)) is not None:
        return _read_positions(dataset, positions if rows is None else positions[rows])
    elif rows is None:
        values = dataset[:]
    else:
        # One span, because h5py is far slower with a list of rows.
        start, stop = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        values = dataset[start:stop][rows - start]
    if values.dtype.kind == "b":
        # Truth values that are 0 or 1, as torch needs them.
        return values.view(np.uint8) != 0
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _row_positions(dataset: h5py.Dataset) -> NDArray[np.int64] | None:
    """Byte position of every row of unfiltered native numbers; None where h5py has to read them."""
    shape, chunks, row_bytes = dataset.shape, dataset.chunks, _row_bytes(dataset)
    size = os.fstat(dataset.file.id.get_vfd_handle()).st_size
    is_plain = (
        dataset.dtype.kind in "fiu"
        and dataset.dtype.isnative
        and not _describe(dataset).is_filtered
        # h5py reads some stored types as others.
        and dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype))
    )
    if not is_plain or not 0 < shape[0] * row_bytes <= size:
        return None
    rows = np.arange(shape[0])
    if chunks is None:
        start = dataset.id.get_offset()
        return None if start is None else start + rows * row_bytes
    if chunks[1:] != shape[1:]:
        return None
    starts = np.full(-(-shape[0] // chunks[0]), -1, np.int64)

    def keep_start(stored: Any) -> None:
        if not stored.filter_mask and stored.byte_offset is not None:
            starts[stored.chunk_offset[0] // chunks[0]] = stored.byte_offset

    dataset.id.chunk_iter(keep_start)
    if bool((starts < 0).any()):  # never written, so h5py fills them
        return None
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


def _row_bytes(dataset: h5py.Dataset) -> int:
    return math.prod(dataset.shape[1:]) * int(dataset.dtype.itemsize)


# Writing


def write(
    path: Path,
    datasets: Mapping[str, Array],
    attributes: Attributes | None = None,
    *,
    dataset_attributes: Mapping[str, Attributes] | None = None,
) -> None:
    """Write contiguous datasets to a new file; attributes of the root, and by dataset."""
    by_dataset = dataset_attributes or {}
    with _file_in_memory(path) as file:
        for name, values in datasets.items():
            made = file.create_dataset(name, data=values, track_times=False)
            made.attrs.update(by_dataset.get(name, {}))
        file.attrs.update(attributes or {})


def write_anchors(
    path: Path,
    embeddings: NDArray[np.floating[Any]],
    prompts: Sequence[str],
    attributes: Attributes | None = None,
) -> None:
    """Write a bank that `read_anchors` reads."""
    encoded = np.array([prompt.encode() for prompt in prompts])
    write(path, {"embeddings": embeddings.astype(np.float32), "prompts": encoded}, attributes)


def repack(path: Path) -> bool:
    """Rewrite a badly chunked or compressed file contiguously; False if it was neither."""
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
    """A new file, written to `path` at the end: HDF5 does not report every full disk."""
    buffer = BytesIO()
    with h5py.File(buffer, "w", libver="latest", track_order=False) as file:
        yield file
    write_bytes(path, buffer.getbuffer())
