"""From slide files to evidence on lesions: the whole chain on drawn slides, and how well each map finds what was drawn.

    python benchmarks/slide_to_evidence.py [--slides 40] [--patches 64 110] [--profile camelyon16] [--host abmil] [--epochs 20]
                                           [--folds 0] [--seed 0] [--work DIR] [--json FILE]

Slides are drawn, patched, encoded with the offline encoder, annotated by their own ASAP files, split into five folds, and trained on. Reported
are the Dice of every map against the drawn lesions (threshold from the validation slides, figures from the test slides), the Dice and precision of
the recovered evidence itself, patch by patch, the task metric, and the seconds of every step. With --work the folder stays, and a second
call goes on where the first stopped. The exit code is 1 when the oracle does not beat chance, for then the chain itself is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import numpy as np

from gcemil.bags import store
from gcemil.bags.annotations.truth import write_truth
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.config import RECIPES, HostSettings, TrainSettings
from gcemil.diagnostics.diagnose import Comparison, diagnose_run
from gcemil.diagnostics.lesions import dice
from gcemil.features.encode_cohort import write_drawn_tables
from gcemil.features.encoders import load_encoder
from gcemil.features.extract import encode_slides
from gcemil.features.patching import find_slides, patch_slides
from gcemil.findings import Finding
from gcemil.simulation.pixels import simulate_pixels
from gcemil.slides.grid import PatchSettings
from gcemil.training.run import train_run

NEGATIVE = "normal"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slides", type=int, default=40)
    parser.add_argument("--patches", type=int, nargs=2, default=(64, 110), metavar=("FEWEST", "MOST"))
    parser.add_argument("--profile", default="camelyon16")
    parser.add_argument("--host", default="abmil")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folds", type=int, nargs="+", default=[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = measured(arguments, arguments.work or Path(scratch))
    print(json.dumps(result, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2), encoding="utf-8")
    found = result["dice"]
    return int(found["oracle"] is None or found["oracle"] <= found["random"])


def measured(arguments: argparse.Namespace, folder: Path) -> dict:
    """Every step once, and the figures at its end."""
    cohort_folder, run = folder / "cohort", folder / "run"
    seconds: dict[str, float] = {}
    if not (cohort_folder / "pixels.yaml").is_file():
        with timed("simulate", seconds):
            simulate_pixels(
                arguments.profile,
                cohort_folder,
                size="default",
                seed=arguments.seed,
                slides=arguments.slides,
                patches=tuple(arguments.patches),
            )
    slides = find_slides([cohort_folder / "slides"])
    with timed("patch", seconds):
        patched = patch_slides([cohort_folder / "slides"], cohort_folder)
    with timed("encode", seconds):
        encoder = load_encoder("efficientnet_lite0")
        encoded = encode_slides(slides, cohort_folder, encoder)
    for problem in (*patched.problems, *encoded.problems):
        print(f"left out: {problem.slide_id}: {problem.message}", file=sys.stderr)
    write_drawn_tables(cohort_folder, encoder, PatchSettings())
    cohort = Cohort.load(cohort_folder)
    # The ASAP files rather than the masks: what a user has.
    negative = NEGATIVE if NEGATIVE in cohort.card.classes else None
    write_truth(cohort, cohort_folder / "annotations", negative_class=negative, replace=True)
    write_folds(cohort, make_folds(cohort, seed=arguments.seed))
    settings = TrainSettings(
        host=HostSettings(name=arguments.host),
        evidence=RECIPES["default"],
        epochs=arguments.epochs,
        seed=arguments.seed,
    )
    with timed("train", seconds):
        summary = train_run(cohort_folder, run, settings, folds=arguments.folds, jobs=1)
    with timed("localise", seconds):
        (finding,) = diagnose_run(
            Comparison(run, None, (), arguments.seed), names=["localisation"], folds=arguments.folds, jobs=1
        )
    return {
        "profile": arguments.profile,
        "slides": len(cohort.slides),
        "patches": sum(slide.patches for slide in encoded.slides),
        "folds": arguments.folds,
        "dice": map_dice(finding),
        "recovered_evidence": recovered(cohort, run, arguments.folds),
        "task": summary,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


@contextmanager
def timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
    print(f"{name}: {seconds[name]:.1f} s", file=sys.stderr)


def map_dice(finding: Finding) -> dict[str, float | None]:
    """The Dice of every map, by the rule that made it."""
    return {row.labels["rule"]: row.values["dice"] for row in finding.rows if "froc" not in row.labels}


def recovered(cohort: Cohort, run: Path, folds: list[int]) -> dict[str, float | int | None]:
    """The recovered evidence of the test slides with a lesion against the truth of their patches."""
    found, precisions, shares = [], [], []
    for index in folds:
        for slide_id in read_fold(cohort, index).slides("test"):
            truth = store.read(cohort.truth_file(slide_id), "evidence").astype(bool)
            marked = np.zeros(len(truth), dtype=bool)
            marked[store.read(run / f"fold_{index}" / "evidence" / f"{slide_id}.h5", "selected")] = True
            value = dice(marked, truth)
            if value is not None:
                found.append(value)
                precisions.append(float(truth[marked].mean()) if marked.any() else 0.0)
                shares.append(float(truth.mean()))
    return {
        "slides": len(found),
        "dice": fmean(found) if found else None,
        "precision": fmean(precisions) if found else None,
        "precision_of_chance": fmean(shares) if found else None,
    }


if __name__ == "__main__":
    sys.exit(main())
