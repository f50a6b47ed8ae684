"""The plain abmil host on simulated cohorts: how near each profile lies to the baseline of the dataset it stands for.

  python benchmarks/calibration.py [PROFILE ...] [--seeds 0 1 2] [--folds 5] [--dial evidence_strength=6] [--json FILE]
Task metric over the folds, and, for the record only, how the host's attention looks: entropy (1 = uniform) and the
precision of its top 5 % against truth. Profiles are set by the task metric alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
import yaml

from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.config import TrainSettings
from gcemil.diagnostics.budget import true_evidence
from gcemil.explain import bag_tensors
from gcemil.recovery.recover import subset_size, top_k
from gcemil.runs.checkpoint import load_network
from gcemil.runs.folder import fold_parts
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run

TARGETS = {
    "bracs": ("macro_f1", 0.634),
    "panda": ("macro_f1", 0.643),
    "nsclc": ("macro_f1", 0.895),
    "brca": ("auc", 0.803),
    "kirc": ("c_index", 0.724),
    "kirp": ("c_index", 0.779),
    "luad": ("c_index", 0.641),
    "stad": ("c_index", 0.576),
    "ucec": ("c_index", 0.696),
}
BUDGET = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profiles", nargs="*", default=list(TARGETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--size", default="default")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--dial", action="append", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    dials = {name: yaml.safe_load(value) for name, value in (text.split("=") for text in arguments.dial)}
    rows = []
    for profile in arguments.profiles:
        worlds = [measured(profile, seed, arguments, dials) for seed in arguments.seeds]
        metric, target = TARGETS[profile]
        values = [world["metric"] for world in worlds]
        row = {
            "profile": profile,
            "metric": metric,
            "target": target,
            "mean": fmean(values),
            "sd_over_worlds": pstdev(values),
            "worlds": values,
            "attention_entropy": fmean(world["entropy"] for world in worlds),
            "attention_precision": fmean(world["precision"] for world in worlds),
            "dials": dials,
            "seeds": arguments.seeds,
            "folds": arguments.folds,
        }
        rows.append(row)
        print(
            f"{profile:<6} {metric:<9} target {target:.3f}  mean {row['mean']:.3f} (worlds {', '.join(f'{v:.3f}' for v in values)})  "
            f"attention entropy {row['attention_entropy']:.2f}, precision {row['attention_precision']:.2f}  {dials or ''}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


def measured(
    profile: str, seed: int, arguments: argparse.Namespace, dials: dict[str, object]
) -> dict[str, float]:
    """One world: mean test metric over folds, and what attention looks like on the test bags of the first fold."""
    with tempfile.TemporaryDirectory() as folder:
        cohort = simulate(profile, Path(folder) / "cohort", size=arguments.size, seed=seed, dials=dials)
        write_folds(cohort, make_folds(cohort, seed=seed))
        run = Path(folder) / "run"
        settings = TrainSettings(evidence=None, seed=seed)
        summary = train_run(cohort.folder, run, settings, folds=range(arguments.folds), jobs=arguments.jobs)
        entropy, precision = attention_figures(run, Cohort.load(cohort.folder))
    return {
        "metric": summary["full"][TARGETS[profile][0]]["mean"],
        "entropy": entropy,
        "precision": precision,
    }


@torch.no_grad()
def attention_figures(run: Path, cohort: Cohort) -> tuple[float, float]:
    host = load_network(run / "fold_0" / "checkpoint.safetensors")[0].host
    entropies, precisions = [], []
    for spec in fold_parts(cohort, read_fold(cohort, 0)).test:
        bag = cohort.read_bag(spec)
        scores = host(*bag_tensors(bag)).scores
        weights = torch.softmax(scores, dim=0)
        entropies.append(float(-(weights * weights.clamp_min(1e-30).log()).sum() / np.log(len(bag))))
        truth = true_evidence(cohort, spec, bag)
        if truth is not None and bool(truth.any()):
            chosen = top_k(scores, subset_size(len(bag), BUDGET))
            precisions.append(float((chosen & truth).sum() / chosen.sum()))
    return fmean(entropies), fmean(precisions)


if __name__ == "__main__":
    main()
