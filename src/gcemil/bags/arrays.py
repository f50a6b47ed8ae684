"""What the files of a cohort hold, read and checked: coordinates, features, truth, anchors, pairs.

  coords    (n, 2)  level-0 pixels from the corner of the slide: whole numbers from 0 to 1e9
  features  (n, d)  what an encoder gives: floating point numbers
  truth     (n,)    evidence 0 or 1 · region and concept whole numbers from 0 · overlap from 0 to 1
  anchors   (m, a)  finite, one prompt each
  pairs     (p, d) and (p, a), finite: the same patches in feature space and in anchor space

A NaN is never any of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.errors import StoreError

_LARGEST_COORDINATE = 10**9
"""Thousands of times the longest side of a scanned slide."""
_BOUNDS_KEYS = (("openslide.bounds-x", "openslide.bounds-y"), ("bounds_x", "bounds_y"))
"""Attributes of a feature file that say where the image that QuPath shows begins."""
Bounds = tuple[int, int]
_LARGEST_SHARE = 1.001
"""An overlap is a quotient of areas, which rounding may carry past 1."""


def read_patch_layout(path: Path) -> tuple[int, NDArray[np.int64] | None]:
    """How many patches a feature file holds, and their coordinates if it has any, in one opening."""
    features, coords = store.read_beside(path, "features", "coords")
    if not features.shape:
        raise StoreError(
            f"{path}: 'features' is one number, not (patches, dimension). Extract the slide again."
        )
    return features.shape[0], None if coords is None else check_coords(coords, path)


def read_coords(path: Path) -> NDArray[np.int64]:
    """The coordinates of a feature or patch file."""
    return check_coords(store.read(path, "coords"), path)


def check_coords(coords: store.Array, path: Path) -> NDArray[np.int64]:
    """Coordinates as int64; ones that no patch of a slide can have are refused."""
    if problem := coords_problem(coords):
        raise StoreError(
            f"{path}: {problem}. Extract the slide again, or convert it with 'gcemil import'."
        )
    return coords.astype(np.int64)


def coords_problem(coords: store.Array) -> str | None:
    """Why these cannot be level-0 pixels; None when they can."""
    if coords.ndim != 2 or coords.shape[1] != 2:
        return f"coordinates have shape {coords.shape}, not (patches, 2)"
    if coords.dtype.kind not in "fiu":
        return f"coordinates are {coords.dtype}, not whole numbers"
    if not len(coords):
        return None
    if coords.dtype.kind == "f":
        if not (finite := np.isfinite(coords).all(axis=1)).all():
            return f"{(~finite).sum()} patches have NaN or infinite coordinates, the first is row {int(np.argmin(finite))}"
        if not np.array_equal(coords, np.round(coords)):
            return (
                f"coordinates are fractions such as {coords.max():.2f}: they look like micrometres"
            )
    if (low := coords.min()) < 0:
        return f"a coordinate is {low:g}, but level-0 pixels count from the corner of the slide"
    if (high := coords.max()) > _LARGEST_COORDINATE:
        return f"a coordinate is {high:g}, farther than any slide reaches"
    return None


def stated_number(attributes: Mapping[str, Any], name: str) -> float | None:
    """An attribute that is a number above 0: a size, a magnification, micrometres. None where it is missing or anything else."""
    value = attributes.get(name)
    try:
        # TRIDENT writes None as a text, and numbers sometimes too.
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if 0 < found <= _LARGEST_COORDINATE else None


def stated_bounds(attributes: Mapping[str, Any], where: str) -> Bounds | None:
    """The bounds among the attributes of a feature file; None where it has none."""
    for across, down in _BOUNDS_KEYS:
        # TRIDENT writes None as a string.
        if attributes.get(across) in (None, "None") or attributes.get(down) in (None, "None"):
            continue
        try:
            return int(attributes[across]), int(attributes[down])
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(
                f"{where}: '{across}' is '{attributes[across]}' and '{down}' is '{attributes[down]}'; both must be "
                "whole pixels. Give --bounds-x and --bounds-y instead."
            ) from error
    return None


def features_problem(shape: Sequence[int], dtype: np.dtype[Any]) -> str | None:
    """Why this dataset cannot be features; None when it can. Its values are not looked at."""
    if dtype.kind != "f" or not store.is_number_type(dtype):
        return f"features are {dtype}, not float16 or float32"
    if len(shape) != 2:
        return f"features have shape {shape}, not (patches, dimension)"
    return None


def read_truth(path: Path, name: str, n_patches: int) -> store.Array:
    """One column of a truth file for these many patches."""
    values = store.read(path, name)
    if values.ndim != 1 or len(values) != n_patches:
        raise StoreError(
            f"{path}: '{name}' has shape {values.shape} for {n_patches} patches in the features. Write the truth again."
        )
    if problem := _truth_problem(name, values):
        raise StoreError(f"{path}: {problem}. Write the truth again.")
    return values


def _truth_problem(name: str, values: store.Array) -> str | None:
    """Why this cannot be a column of truth; None when it can."""
    is_valid = np.isfinite(values)
    if name == "overlap":
        is_valid &= (values >= 0) & (values <= _LARGEST_SHARE)
        meaning = "a share from 0 to 1"
    elif name == "evidence":
        is_valid &= np.isin(values, (0, 1))
        meaning = "0 or 1"
    else:
        is_valid &= (values >= 0) & (values <= _LARGEST_COORDINATE) & (values == np.round(values))
        meaning = "a whole number from 0"
    if is_valid.all():
        return None
    row = int(np.argmin(is_valid))
    return f"'{name}' is {values[row]:g} at patch {row}, but it is {meaning}"


def read_anchors(path: Path) -> tuple[NDArray[np.float32], list[str]]:
    """Embeddings (m, a) and their prompts."""
    embeddings = _read_matrix(path, "embeddings", "Write it again with 'gcemil anchors'.")
    prompts = store.read_texts(path, "prompts")
    if len(prompts) != len(embeddings):
        raise StoreError(
            f"{path}: {len(prompts)} prompts for {len(embeddings)} embeddings. Write it again with 'gcemil anchors'."
        )
    return embeddings, prompts


def write_anchors(
    path: Path,
    embeddings: NDArray[np.floating[Any]],
    prompts: Sequence[str],
    attributes: store.Attributes | None = None,
) -> None:
    """A bank that `read_anchors` reads."""
    encoded = np.array([prompt.encode() for prompt in prompts])
    store.write(path, {"embeddings": embeddings.astype(np.float32), "prompts": encoded}, attributes)


def read_pairs(path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The same patches in feature space and in anchor space."""
    remedy = "Write it again with 'gcemil anchors pairs'."
    features, anchor_space = (
        _read_matrix(path, name, remedy) for name in ("features", "anchor_space")
    )
    if len(features) != len(anchor_space):
        raise StoreError(
            f"{path}: {len(features)} features for {len(anchor_space)} rows in anchor space. {remedy}"
        )
    return features, anchor_space


def _read_matrix(path: Path, name: str, remedy: str) -> NDArray[np.float32]:
    """A matrix of finite numbers with at least one row and one column."""
    values = store.read(path, name)
    if values.ndim != 2 or not values.size:
        raise StoreError(
            f"{path}: '{name}' has shape {values.shape}, not (rows, columns). {remedy}"
        )
    # What single precision cannot hold becomes infinite and is refused with the rest.
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    usable = np.isfinite(narrow).all(axis=1)
    if not usable.all():
        raise StoreError(
            f"{path}: '{name}' has NaN or infinite numbers in {(~usable).sum()} rows, the first is {int(np.argmin(usable))}. {remedy}"
        )
    return narrow
