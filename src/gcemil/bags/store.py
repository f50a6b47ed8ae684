"""The only door to HDF5: features, coordinates, truth, anchors, evidence.

Files are read through a memory map wherever their layout is plain (contiguous, or chunks that are not compressed),
which reads 512 rows of a (1, d)-chunked file without walking its chunk index row by row. They are written to a
temporary file beside the target and renamed, without time stamps, so equal content gives equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gcemil.errors import StoreError
from gcemil.files import whole_file

Array = NDArray[Any]
Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Layout:
    """What a dataset looks like without reading it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    compression: str | None

    @property
    def is_slow(self) -> bool:
        """One row per chunk, as CLAM and TRIDENT write: reads an order of magnitude slower."""
        return self.chunks is not None and len(self.shape) == 2 and self.shape[0] > 1 and self.chunks[0] < 64


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The file for reading; a missing or damaged one is a StoreError that names it."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist. Extract the slide, or remove it from slides.csv.")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read as HDF5 ({error}). It is truncated or no HDF5 file; extract it again."
        ) from error


def describe(path: Path) -> dict[str, Layout]:
    """Every top-level dataset of the file by name."""
    with opened(path) as file:
        return {name: _layout(item) for name, item in file.items() if isinstance(item, h5py.Dataset)}


def attributes(path: Path, dataset: str | None = None) -> dict[str, Any]:
    """Attributes of the file root or of one dataset, as plain Python values."""
    with opened(path) as file:
        holder = file if dataset is None else file[dataset]
        return {key: _plain(value) for key, value in holder.attrs.items()}


def has(path: Path, dataset: str) -> bool:
    with opened(path) as file:
        return dataset in file


def read(path: Path, dataset: str, rows: NDArray[np.integer[Any]] | None = None) -> Array:
    """A whole dataset, or some of its rows (sorted, distinct)."""
    with opened(path) as file:
        source = _dataset(file, path, dataset)
        if rows is None:
            return _mapped(path, source)[:].copy() if _is_contiguous(source) else source[:]
        _check_rows(rows, len(source), path)
        if _is_contiguous(source):
            return _mapped(path, source)[rows]
        return _read_chunked_rows(source, rows)


def read_patch_layout(path: Path) -> tuple[int, NDArray[np.int64] | None]:
    """How many patches a feature file holds, and their coordinates if it has any, in one opening."""
    with opened(path) as file:
        n_patches = len(_dataset(file, path, "features"))
        return n_patches, _dataset(file, path, "coords")[:].astype(np.int64) if "coords" in file else None


def write(
    path: Path,
    datasets: Mapping[str, Array],
    attributes: Attributes | None = None,
    *,
    dataset_attributes: Mapping[str, Attributes] | None = None,
) -> None:
    """Contiguous datasets in a new file that appears whole or not at all; attributes of the root, and by dataset."""
    with (
        whole_file(path) as temporary,
        h5py.File(temporary, "w", libver="latest", track_order=False) as file,
    ):
        for name, values in datasets.items():
            _create(file, name, values).attrs.update((dataset_attributes or {}).get(name, {}))
        for key, value in (attributes or {}).items():
            file.attrs[key] = value


def repack(path: Path) -> bool:
    """Rewrite a badly chunked file contiguously, attributes and all; False when there was nothing to do."""
    if not any(layout.is_slow or layout.compression for layout in describe(path).values()):
        return False
    with opened(path) as source:
        datasets = {name: item for name, item in source.items() if isinstance(item, h5py.Dataset)}
        if len(datasets) != len(source):
            raise StoreError(
                f"{path} holds groups as well as datasets; repack only rewrites flat feature files."
            )
        with whole_file(path) as temporary, h5py.File(temporary, "w", libver="latest") as file:
            _copy_attributes(source, file)
            for name, item in datasets.items():
                _copy_attributes(item, _create(file, name, item[:]))
    return True


def read_anchors(path: Path) -> tuple[NDArray[np.float32], list[str]]:
    """Embeddings (m, a) and their prompts."""
    embeddings = read(path, "embeddings").astype(np.float32)
    prompts = [text.decode() if isinstance(text, bytes) else str(text) for text in read(path, "prompts")]
    if len(prompts) != len(embeddings):
        raise StoreError(
            f"{path}: {len(prompts)} prompts for {len(embeddings)} embeddings. Write it again with 'gcemil anchors'."
        )
    return embeddings, prompts


def write_anchors(
    path: Path,
    embeddings: NDArray[np.floating[Any]],
    prompts: Sequence[str],
    attributes: Attributes | None = None,
) -> None:
    encoded = np.array([prompt.encode() for prompt in prompts])
    write(path, {"embeddings": embeddings.astype(np.float32), "prompts": encoded}, attributes)


def _layout(dataset: h5py.Dataset) -> Layout:
    return Layout(dataset.shape, dataset.dtype, dataset.chunks, dataset.compression)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    if name not in file:
        raise StoreError(
            f"{path} has no dataset '{name}', only: {', '.join(file) or 'nothing'}. Try 'gcemil inspect {path}'."
        )
    # A link or external storage would make the file read another one, wherever it says.
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise StoreError(
            f"{path}: '{name}' is a link to another place, which is never followed. Copy the data into the file."
        )
    dataset = file[name]
    if dataset.external or dataset.is_virtual:
        raise StoreError(
            f"{path}: '{name}' stores its data in another file, which is never followed. Copy it into the file."
        )
    return dataset


def _is_contiguous(dataset: h5py.Dataset) -> bool:
    return dataset.chunks is None and dataset.id.get_offset() is not None and dataset.size > 0


def _mapped(path: Path, dataset: h5py.Dataset) -> np.memmap[Any, Any]:
    return np.memmap(path, dtype=dataset.dtype, mode="r", offset=dataset.id.get_offset(), shape=dataset.shape)


def _check_rows(rows: NDArray[np.integer[Any]], n_rows: int, path: Path) -> None:
    if len(rows) and (rows[0] < 0 or rows[-1] >= n_rows or bool((np.diff(rows) <= 0).any())):
        raise StoreError(
            f"{path}: rows to read must be sorted, distinct and below {n_rows}, got {rows[:5]} ... {rows[-1]}."
        )


def _read_chunked_rows(dataset: h5py.Dataset, rows: NDArray[np.integer[Any]]) -> Array:
    """Rows of a chunked dataset, chunk by chunk: far cheaper than one hyperslab union over all rows."""
    chunk_rows = dataset.chunks[0]
    if len(rows) * chunk_rows > 0.5 * len(dataset):
        return dataset[:][rows]
    row_shape, tail, dataset_type = dataset.shape[1:], (0,) * (dataset.ndim - 1), dataset.dtype
    result = np.empty((len(rows), *row_shape), dtype=dataset_type)
    whole_rows = dataset.chunks[1:] == dataset.shape[1:]
    plain = dataset.compression is None and not dataset.shuffle and not dataset.fletcher32 and whole_rows
    chunks, first = np.unique(rows // chunk_rows, return_index=True)
    edges = [*first.tolist(), len(rows)]
    for chunk, start, stop in zip(chunks.tolist(), edges, edges[1:], strict=False):
        row = chunk * chunk_rows
        if plain:
            _, raw = dataset.id.read_direct_chunk((row, *tail))
            block = np.frombuffer(raw, dtype=dataset_type).reshape(chunk_rows, *row_shape)
        else:
            block = dataset[row : row + chunk_rows]
        result[start:stop] = block if len(block) == stop - start else block[rows[start:stop] - row]
    return result


def _create(file: h5py.File, name: str, values: Array) -> h5py.Dataset:
    return file.create_dataset(name, data=values, track_times=False)


def _copy_attributes(source: Any, target: Any) -> None:
    for key, value in source.attrs.items():
        target.attrs[key] = value
