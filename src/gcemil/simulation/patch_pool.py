"""Labelled patches of real tissue, and how they are dealt out so that no two parts of a cohort
share one.

  features  (n, d)  what an encoder makes of each patch
  labels    (n,)    the class of each patch, as a name
  patients  (n,)    optional: whose tissue it is

Parts get shares of every class. Where patients are known, a patient is dealt as a whole, the
largest first, each to the part that has least of what the patient brings: the smallest sum over
classes c of (own_c / n_c) * (part_c / (share * n_c)).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped
from numpy.random import Generator
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.bags.store import features_problem
from gcemil.errors import InputError
from gcemil.files import is_file

Names = Shaped[np.ndarray, "_"]
"""Texts, one per patch or patient."""
Rows = Int[np.ndarray, "_"]
Parts = Int[np.ndarray, "n"]

UNUSED = -1
"""The part of a patch that no part takes."""
LAYOUT = "'features' (n, d), 'labels' (n,) and, where known, 'patients' (n,)"


@dataclass(frozen=True, eq=False)
class PatchPool:
    """Patches with a class each."""

    features: NDArray[Any]
    labels: Names
    patients: Names | None
    encoder: str
    source: str

    def __post_init__(self) -> None:
        columns = {"labels": self.labels, "patients": self.patients}
        for name, column in columns.items():
            if column is not None and len(column) != len(self.features):
                raise InputError(
                    f"{self.source}: {len(column)} {name} for {len(self.features)} patches. Write "
                    "the file again."
                )
        usable = np.isfinite(self.features).all(axis=1)
        if not usable.all():
            raise InputError(
                f"{self.source}: {(~usable).sum()} patches have NaN or infinite features, the "
                f"first is row {int(np.argmin(usable))}. Encode them again."
            )

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(np.unique(self.labels).tolist())

    def take(self, rows: Rows) -> PatchPool:
        """Some of the patches."""
        patients = None if self.patients is None else self.patients[rows]
        return replace(
            self, features=self.features[rows], labels=self.labels[rows], patients=patients
        )

    def write(self, path: Path) -> None:
        """A file that `read_pool` reads."""
        texts = {"labels": self.labels, "patients": self.patients}
        encoded = {
            name: np.char.encode(column, "utf-8")
            for name, column in texts.items()
            if column is not None
        }
        store.write(path, {"features": self.features, **encoded}, {"encoder": self.encoder})


def read_pool(path: Path) -> PatchPool:
    """The patches of an HDF5 file."""
    if not is_file(path):
        raise InputError(
            f"{path} does not exist or is not a file. Patches lie in an HDF5 file with {LAYOUT}."
        )
    layouts = store.describe(path)
    encoder = str(store.attributes(path).get("encoder", "unknown"))
    if missing := [name for name in ("features", "labels") if name not in layouts]:
        raise InputError(
            f"{path} has no '{missing[0]}'; it holds: {', '.join(sorted(layouts)) or 'nothing'}. "
            f"Patches need {LAYOUT}."
        )
    if problem := features_problem(layouts["features"].shape, layouts["features"].dtype):
        raise InputError(f"{path}: {problem}. Patches need {LAYOUT}.")
    features = store.read(path, "features")
    if not features.size:
        raise InputError(f"{path} holds no patch: 'features' has shape {features.shape}.")
    if features.dtype.itemsize > 4:
        features = features.astype(np.float32)
    labels = _read_names(path, "labels", layouts["labels"])
    patients = _read_names(path, "patients", layouts["patients"]) if "patients" in layouts else None
    return PatchPool(features, labels, patients, encoder, str(path))


def _read_names(path: Path, name: str, layout: store.DatasetInfo) -> Names:
    """A column of names; whole numbers are their own names."""
    if layout.dtype.kind in "iu" and len(layout.shape) == 1:
        return store.read(path, name).astype(np.str_)
    names = np.array(store.read_texts(path, name), dtype=np.str_)
    if (names == "").any():
        raise InputError(
            f"{path}: '{name}' is empty at patch {int(np.argmax(names == ''))}. Name it."
        )
    return names


def hold_out(
    pool: PatchPool, classes: Sequence[str], wanted: int, more: int, generator: Generator
) -> tuple[Rows, Rows]:
    """Patches that no bag may hold: `wanted` of each class, and up to `more` of all these classes
    in their own proportions.

    Where patients are known, whole patients are set aside until they have brought what is wanted.
    """
    candidates = np.isin(pool.labels, classes)
    if pool.patients is not None and wanted:
        # Patients in random order, each taken that brings a class still missing.
        names, counts = _patient_counts(pool.labels, pool.patients, classes)
        have, taken = np.zeros(len(classes), dtype=np.int64), []
        for index in generator.permutation(len(names)):
            if (counts[index] > 0)[have < wanted].any():
                taken.append(names[index])
                have += counts[index]
        candidates &= np.isin(pool.patients, np.array(taken, dtype=np.str_))
    chosen = []
    for name in classes:
        own = np.flatnonzero(candidates & (pool.labels == name))
        if len(own) < wanted:
            raise InputError(
                f"{pool.source}: class '{name}' has {len(own)} patches, fewer than the {wanted} "
                "examples to be held out."
            )
        chosen.append(generator.choice(own, wanted, replace=False))
    examples = np.sort(np.concatenate(chosen))
    candidates[examples] = False
    rest = np.flatnonzero(candidates)
    return examples, np.sort(generator.choice(rest, min(more, len(rest)), replace=False))


def deal_patches(
    pool: PatchPool,
    classes: Sequence[str],
    without: Rows,
    shares: Sequence[float],
    generator: Generator,
) -> Parts:
    """The part of every patch; held-out and unused patches are UNUSED."""
    usable = np.isin(pool.labels, classes)
    usable[without] = False
    if pool.patients is not None:
        usable &= ~np.isin(pool.patients, pool.patients[without])
    weights = np.array(shares) / np.sum(shares)
    part = np.full(len(pool.labels), UNUSED)
    if pool.patients is None:
        for name in classes:
            own = generator.permutation(np.flatnonzero(usable & (pool.labels == name)))
            ends = np.round(np.cumsum(weights) * len(own)).astype(np.int64)
            part[own] = np.searchsorted(ends, np.arange(len(own)), side="right")
    else:
        rows = np.flatnonzero(usable)
        patients = pool.patients[rows]
        names, counts = _patient_counts(pool.labels[rows], patients, classes)
        brought = counts / np.maximum(counts.sum(axis=0), 1)
        order = generator.permutation(len(names))
        filled = np.zeros((len(weights), len(classes)))
        part_of = np.zeros(len(names), dtype=np.int64)
        for index in order[np.argsort(-brought[order].sum(axis=1), kind="stable")]:
            cost = (brought[index] * filled / weights[:, None]).sum(axis=1)
            part_of[index] = int(np.argmin(cost + 1e-9 * filled.sum(axis=1)))
            filled[part_of[index]] += brought[index]
        part[rows] = part_of[np.searchsorted(names, patients)]
    for name in classes:
        counts = np.bincount(part[(pool.labels == name) & (part != UNUSED)], minlength=len(weights))
        if (counts == 0).any():
            whose = ""
            if pool.patients is not None:
                owners = np.unique(pool.patients[usable & (pool.labels == name)])
                whose = f" of {len(owners)} patients"
            raise InputError(
                f"{pool.source}: class '{name}' has {counts.sum()} patches{whose} left to deal, "
                f"too few for {len(weights)} parts that share none. Ask for fewer folds or "
                "examples, or bring more patches."
            )
    return part


def _patient_counts(
    labels: Names, patients: Names, classes: Iterable[str]
) -> tuple[Names, Int[np.ndarray, "patients classes"]]:
    """Patients in the order of their names, and how many patches of each class they bring."""
    names, owner = np.unique(patients, return_inverse=True)
    counts = [np.bincount(owner[labels == name], minlength=len(names)) for name in classes]
    return names, np.stack(counts, axis=1)
