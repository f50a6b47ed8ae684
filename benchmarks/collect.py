"""A table of trained runs, one row per fold: what the host, the evidence head and both together
predict, and the gain with its interval.

    python benchmarks/collect.py RUN [RUN ...] --out results/runs.csv
    python benchmarks/collect.py results/runs.csv                         # print a table again

Metrics are Macro-F1 and AUC, or the C-index, of the test slides. The gain is that of `gce` over the
host alone, with the 95 % interval of 1,000 bootstraps over test slides, paired.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import f1_score

from gcemil.bags.cohort import Cohort
from gcemil.hosts.table import host_spec
from gcemil.runs.folder import Run, RunFold
from gcemil.tasks.survival import c_index

RESAMPLES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="Run folders, or a table made before.")
    parser.add_argument("--out", type=Path, help="Where to write the table.")
    arguments = parser.parse_args()
    if arguments.runs[0].suffix == ".csv":
        table = pd.read_csv(arguments.runs[0])
    else:
        table = pd.DataFrame(
            [describe(fold) for run in arguments.runs for fold in Run(run).finished_folds()]
        )
    if arguments.out:
        table.to_csv(arguments.out, index=False)
    with pd.option_context(
        "display.width", 250, "display.max_columns", 40, "display.max_rows", 1000
    ):
        print(table.to_string(index=False, na_rep=""))


def describe(fold: RunFold) -> dict[str, Any]:
    """One row of the table."""
    metrics, settings = fold.read_metrics(), fold.run.card.settings
    modes, details = metrics.modes, metrics.details
    width = Cohort.load(fold.run.card.cohort).card.feature_dim
    row: dict[str, Any] = {
        "cohort": fold.run.card.cohort.name,
        "host": settings.host.name,
        "seed": settings.seed,
        "fold": fold.number,
        "preset": "published" if settings.max_patches == "all" else "default",
        "anchors": "" if settings.evidence is None else settings.evidence.anchors,
        "min_steps": settings.min_steps,
        "rate": settings.learning_rate or host_spec(settings.host.name).default_rate(width),
    }
    for mode in ("full", "head", "gce"):
        for name, value in (modes.get(mode) or {}).items():
            if name in ("macro_f1", "auc", "c_index"):
                row[f"{'host' if mode == 'full' else mode} {name}"] = round(value, 3)
    if "gce" in modes:
        row["weight"] = round(float((details.vote or {}).get("weight", 0.0)), 3)
        row["gain"], row["gain low"], row["gain high"] = measure_gain(fold, list(modes))
    if details.no_evidence:
        row["false evidence"] = round(details.no_evidence["reached_rate"], 3)
        row["slides without a lesion"] = details.no_evidence["n_test"]
    return row


def measure_gain(fold: RunFold, modes: list[str]) -> tuple[float, float, float]:
    """The metric of `gce` less that of the host, and its interval."""
    tables = [
        pd.read_csv(fold.predictions(mode, modes)).query("split == 'test'")
        for mode in ("full", "gce")
    ]
    generator, n_slides = np.random.default_rng(0), len(tables[0])
    draws = [gain(tables, generator.integers(n_slides, size=n_slides)) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return round(gain(tables, np.arange(n_slides)), 3), round(low, 3), round(high, 3)


def gain(tables: list[pd.DataFrame], rows: np.ndarray) -> float:
    """The difference of the two tables on these slides."""
    values = []
    for table in tables:
        drawn = table.iloc[rows]
        if "risk" in drawn:
            values.append(
                c_index(
                    drawn["risk"].to_numpy(),
                    drawn["target"].to_numpy(),
                    drawn["event"].to_numpy(bool),
                )
            )
        else:
            probabilities = drawn.filter(like="prob_")
            predicted = probabilities.columns.str.removeprefix("prob_")[
                probabilities.to_numpy().argmax(axis=1)
            ]
            values.append(f1_score(drawn["target"].astype(str), predicted, average="macro"))
    return float(values[1] - values[0])


if __name__ == "__main__":
    main()
