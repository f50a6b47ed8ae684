"""Reading features: our store against plain h5py on the same files, interleaved, as ratios of medians.

  python benchmarks/store.py [--json]
15,000 x 1024 float32; the whole array, and 512 sorted random rows; contiguous, and one row per chunk as CLAM and
TRIDENT write. The rival for rows is the fastest h5py access we know: a whole read with a slice, fancy selection, or
row by row, whichever is quickest on that file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from gcemil.bags import store

SHAPE = (15_000, 1024)
REPEATS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    features = generator.normal(size=SHAPE).astype(np.float32)
    rows = np.sort(generator.choice(SHAPE[0], 512, replace=False))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for layout, options in {"contiguous": {}, "one row per chunk": {"chunks": (1, SHAPE[1])}}.items():
            path = Path(folder) / f"{layout}.h5"
            with h5py.File(path, "w") as file:
                file.create_dataset("features", data=features, **options)
            results.append(
                compare(
                    layout, "all rows", lambda p=path: store.read(p, "features"), [lambda p=path: whole(p)]
                )
            )
            rivals = [
                lambda p=path: whole(p)[rows],
                lambda p=path: fancy(p, rows),
                lambda p=path: one_by_one(p, rows),
            ]
            results.append(
                compare(layout, "512 rows", lambda p=path: store.read(p, "features", rows), rivals)
            )
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for row in results:
        print(
            f"{row['layout']:<18} {row['what']:<9} ours {row['ours_ms']:8.1f} ms   h5py {row['h5py_ms']:8.1f} ms   ratio {row['ratio']:.2f}"
        )


def compare(
    layout: str, what: str, ours: Callable[[], object], rivals: list[Callable[[], object]]
) -> dict[str, object]:
    """Median of ours over the best median among the rivals, runs interleaved."""
    times: list[list[float]] = [[] for _ in (ours, *rivals)]
    for _ in range(REPEATS):
        for taken, function in zip(times, (ours, *rivals), strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    medians = [statistics.median(taken) for taken in times]
    best = min(medians[1:])
    return {
        "layout": layout,
        "what": what,
        "ours_ms": 1e3 * medians[0],
        "h5py_ms": 1e3 * best,
        "ratio": medians[0] / best,
    }


def whole(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        return file["features"][:]


def fancy(path: Path, rows: np.ndarray) -> np.ndarray:
    with h5py.File(path) as file:
        return file["features"][rows]


def one_by_one(path: Path, rows: np.ndarray) -> np.ndarray:
    result = np.empty((len(rows), SHAPE[1]), np.float32)
    with h5py.File(path) as file:
        dataset = file["features"]
        for position, row in enumerate(rows):
            result[position] = dataset[row]
    return result


if __name__ == "__main__":
    main()
