"""Evidence of one target against the truth of every target: does it lie on its own patches, and on
no other's?

    gcemil simulate nsclc --multilabel --slides 180 --dim 64 --out COHORT && gcemil split COHORT
    --folds 3 gcemil train COHORT --out RUN && gcemil diagnose RUN --only snr python
    benchmarks/targets.py RUN

Only test slides that show all targets count, so that both kinds of patches are there to be chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.records import read_evidence
from gcemil.runs.folder import Run


def precision_matrix(run: Run) -> tuple[list[str], dict[str, list[float]], int]:
    """For each target the mean share of its evidence that is truth, and that by chance."""
    names = list(run.targets)
    cohorts = [Cohort.load(one.card.cohort) for one in run.targets.values()]
    shows_all = {row.slide_id for row in Cohort.load(run.card.cohort).slides if all(row.labels)}
    rows: dict[str, list[list[float]]] = {name: [] for name in (*names, "chance")}
    for name, one in run.targets.items():
        for path in sorted(one.path.glob("fold_*/evidence/*.h5")):
            if path.stem not in shows_all:
                continue
            chosen = read_evidence(path).selected
            truths = [
                store.read(cohort.truth_file(path.stem), "evidence").astype(bool)
                for cohort in cohorts
            ]
            rows[name].append([float(truth[chosen].mean()) for truth in truths])
            rows["chance"].append([float(truth.mean()) for truth in truths])
    means = {name: np.mean(found, axis=0).tolist() for name, found in rows.items()}
    return names, means, len(rows[names[0]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    names, means, n_slides = precision_matrix(Run(parser.parse_args().run))
    print(f"precision on {n_slides} test slides that show all targets")
    print("| evidence of | " + " | ".join(f"truth of {name}" for name in names) + " |")
    for name, values in means.items():
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in values) + " |")


if __name__ == "__main__":
    main()
