"""What the tile prefilter saves: slide file to prediction with all patches, against only those the prefilter keeps.

    OMP_NUM_THREADS=1 python benchmarks/prefilter.py [--slides 120] [--patches 64 110] [--profile camelyon16] [--host abmil] [--seed 0]
                                                     [--folder DIR] [--json FILE]

Slides are drawn, patched and encoded, fold 0 is trained with evidence, its prefilter is fitted, and its test slides are predicted both
ways in one run, one thread. Times start at opening the slide and end at the prediction: tissue, view, student, reading, encoding,
fall-backs and evidence all count. The row of the cost table is made from the same measurement. With --folder the cohort is kept, and
a second call goes on where the first one stopped. The exit code is 1 when the time is above 0.25 or the utility below 0.98 of that of
all patches.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.diagnostics.cost import measure_inference_cost
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.features.encode_cohort import write_drawn_tables
from gcemil.features.encoders import PatchEncoder, load_encoder
from gcemil.features.extract import encode_slides
from gcemil.features.patching import find_slides, patch_slides
from gcemil.findings import write_finding
from gcemil.prefilter.cost import measure_cost
from gcemil.prefilter.distil import fit_prefilter
from gcemil.simulation.pixels import simulate_pixels
from gcemil.slides.grid import PatchSettings
from gcemil.training.run import train_run

LARGEST_TIME, SMALLEST_UTILITY = 0.25, 0.98


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slides", type=int, default=120)
    parser.add_argument("--patches", type=int, nargs=2, default=(64, 110))
    parser.add_argument("--profile", default="camelyon16")
    parser.add_argument("--host", default="abmil")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        result = benchmark(arguments, arguments.folder or Path(scratch))
    for name, value in result.items():
        print(f"{name:24} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["time"] <= LARGEST_TIME and result["utility"] >= SMALLEST_UTILITY else 1


def benchmark(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    encoder = load_encoder("efficientnet_lite0")
    cohort_folder, run = folder / "cohort", folder / "run"
    encoded_cohort(arguments, cohort_folder, encoder)
    slides = find_slides([cohort_folder / "slides"])
    settings = TrainSettings(
        host=HostSettings(name=arguments.host),
        evidence=EvidenceSettings(),
        epochs=arguments.epochs,
        seed=arguments.seed,
    )
    trained = told("training", lambda: train_run(cohort_folder, run, settings, folds=[0], jobs=1))
    fitted = told("fitting", lambda: fit_prefilter(run, 0, slides))
    cost = told("timing", lambda: measure_cost(run, 0, slides, encoder=encoder))
    finding = measure_inference_cost(TrainedFold.open(run, 0))
    write_finding(run / "fold_0" / "diagnostics", finding)
    row = next(row for row in finding.rows if row.labels["mode"] == "prefilter")
    return {
        "slides": len(slides),
        "patches": sum(slide.n_patches for slide in cost.slides) / len(cost.slides),
        "test slides": len(cost.slides),
        "time": cost.end_to_end_time,
        "utility": cost.relative_utility or 0.0,
        "mean change": cost.mean_change,
        "fall-back": cost.fall_back,
        "keep rate": cost.keep_rate,
        "patches encoded": cost.encoded,
        "full utility": cost.full_utility,
        "prefilter utility": cost.prefilter_utility,
        "full seconds per slide": mean_seconds([slide.full_seconds for slide in cost.slides]),
        "prefilter seconds": mean_seconds([slide.prefilter_seconds for slide in cost.slides]),
        "discrete utility": trained["discrete"]["macro_f1"]["mean"] / trained["full"]["macro_f1"]["mean"],
        "validation": {
            "slides": fitted.n_val,
            "recall": fitted.chosen.recall,
            "fall-back": fitted.chosen.fall_back,
            "relative utility": fitted.chosen.relative_utility,
            "seconds to fit": fitted.seconds,
        },
        "cost table": dict(row.values),
    }


def encoded_cohort(arguments: argparse.Namespace, folder: Path, encoder: PatchEncoder) -> None:
    """Drawn slides, their features, and folds, in a folder that may hold some of it already."""
    if not (folder / "pixels.yaml").is_file():
        told(
            "drawing",
            lambda: simulate_pixels(
                arguments.profile,
                folder,
                slides=arguments.slides,
                patches=tuple(arguments.patches),
                seed=arguments.seed,
            ),
        )
    slides = find_slides([folder / "slides"])
    told("patching", lambda: patch_slides(slides.values(), folder))
    told("encoding", lambda: encode_slides(slides, folder, encoder))
    if not (folder / "cohort.yaml").is_file():
        write_drawn_tables(folder, encoder, PatchSettings())
    if not (folder / "splits").is_dir():
        cohort = Cohort.load(folder)
        write_folds(cohort, make_folds(cohort, seed=arguments.seed))


def told(what: str, work: Any) -> Any:
    """The result of some work, and a line about how long it took."""
    started = time.monotonic()
    result = work()
    print(f"{what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return result


def mean_seconds(parts: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for one in parts for name in one})
    return {name: round(sum(one.get(name, 0.0) for one in parts) / len(parts), 4) for name in names}


if __name__ == "__main__":
    sys.exit(main())
