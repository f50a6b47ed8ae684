"""Patch scores made elsewhere: FOLDER/<slide_id>.h5, .csv or .npy with one number per patch, in the order of the features.

HDF5   the dataset asked for, else the first of: scores, attention_scores (CLAM), attention, gates, else the only 1-D one
CSV    the column asked for, else the first of the same names or score, else the only column
npy    (n,), (n, 1) or (1, n)
A file that brings coordinates is held against those of the features, because rows in another order are the usual mistake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from gcemil.bags import store
from gcemil.bags.bag import Bag
from gcemil.bags.foreign.torchmil import read_array
from gcemil.bags.tables import read_table
from gcemil.errors import StoreError

NAMES = ("scores", "score", "attention_scores", "attention_score", "attention", "gates", "gate")
SUFFIXES = (".h5", ".csv", ".npy")

BagScores = Float[np.ndarray, "n"]


def read_bag_scores(folder: Path, bag: Bag, *, column: str | None = None) -> BagScores:
    """The scores of every slide of a bag, one after another."""
    parts = []
    for span in bag.spans:
        path = find_score_file(folder, span.slide_id)
        values, coords = read_scores(path, column)
        check_scores(path, values, coords, span.stop - span.start, bag.slide_coords(span.slide_id))
        parts.append(values)
    return np.concatenate(parts)


def find_score_file(folder: Path, slide_id: str) -> Path:
    """The one score file of a slide."""
    # Not with_suffix: a slide id may hold dots.
    found = [path for suffix in SUFFIXES if (path := folder / f"{slide_id}{suffix}").is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise StoreError(
            f"{folder} has {found[0].name} and {found[1].name}, two files for one slide. Remove one."
        )
    raise StoreError(
        f"{folder} has no scores of slide '{slide_id}': {', '.join(f'{slide_id}{suffix}' for suffix in SUFFIXES)} "
        "are looked for. Write one, or audit a part whose slides have scores."
    )


def read_scores(path: Path, column: str | None) -> tuple[BagScores, Int[np.ndarray, "p 2"] | None]:
    """The scores of one file, and the coordinates it brings along."""
    if path.suffix == ".h5":
        found = flatten_scores(path, store.read(path, find_dataset(path, column)))
        return found, store.read(path, "coords") if store.has(path, "coords") else None
    if path.suffix == ".csv":
        return read_column(path, column), None
    return flatten_scores(path, read_array(path, "scores")), None


def find_dataset(path: Path, column: str | None) -> str:
    layouts = store.describe(path)
    if column is not None:
        return column
    named = [name for name in NAMES if name in layouts]
    single = [name for name, layout in layouts.items() if len(layout.shape) == 1]
    if named or len(single) == 1:
        return (named or single)[0]
    raise StoreError(
        f"{path} holds: {', '.join(layouts) or 'nothing'}; which of them are the scores? Name it with --column."
    )


def read_column(path: Path, column: str | None) -> BagScores:
    rows = read_table(path, () if column is None else (column,))
    names = list(rows[0]) if rows else []
    named = [name for name in NAMES if name in names]
    if column is None and not named and len(names) != 1:
        raise StoreError(
            f"{path} has columns: {', '.join(names) or 'none'}; which of them are the scores? Name it with --column."
        )
    chosen = column or (named or names)[0]
    try:
        return np.array([float(row[chosen]) for row in rows])
    except ValueError as error:
        raise StoreError(f"{path}: column '{chosen}' holds something that is no number ({error}).") from error


def flatten_scores(path: Path, values: Shaped[np.ndarray, "*shape"]) -> BagScores:
    if values.dtype.kind not in "fiub" or values.size != max(values.shape, default=0):
        raise StoreError(
            f"{path}: scores are one number per patch, got {values.dtype} of shape {values.shape}. "
            "Choose the column of one class before writing them."
        )
    return values.reshape(-1).astype(np.float64)


def check_scores(
    path: Path, values: BagScores, coords: Any, n_patches: int, expected: Int[np.ndarray, "p 2"] | None
) -> None:
    if len(values) != n_patches:
        raise StoreError(
            f"{path} has {len(values)} scores for {n_patches} patches. Score the patches of the cohort's own feature file."
        )
    if not np.isfinite(values).all():
        wrong = int(np.flatnonzero(~np.isfinite(values))[0])
        raise StoreError(
            f"{path}: the score of patch {wrong} is {values[wrong]}. Every patch needs a finite score."
        )
    if coords is not None and expected is not None and not np.array_equal(coords, expected):
        raise StoreError(
            f"{path}: its coordinates are not those of the features, row by row. "
            "Write the scores in the order of the feature file."
        )
