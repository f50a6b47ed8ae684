"""Whether reading keeps the model busy: encoding from slide files against the model alone on the same patches.

    python benchmarks/encode.py [--slides 4] [--patches 64] [--batch-size 16] [--workers 2] [--runs 3] [--json FILE]

Drawn slides are patched once. "wall" is all of encode_slides, from opening the first slide to the last feature file; "model" is
the same encoder on the same batches, already in memory. Both are medians of interleaved runs. The exit code is 1 when wall is more
than 1.15 times model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gcemil.features.encoders import PatchEncoder, load_encoder
from gcemil.features.extract import EncodeSettings, encode_slides
from gcemil.features.patching import find_slides, patch_slides, patches_path, read_patch_file
from gcemil.simulation.pixels import simulate_pixels
from gcemil.slides.grid import PatchBatch, PatchSettings, read_patches
from gcemil.slides.reader import open_slide

LARGEST_RATIO = 1.15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=int, default=5)
    parser.add_argument("--patches", type=int, default=64)
    parser.add_argument("--encoder", default="efficientnet_lite0")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    encoder = load_encoder(arguments.encoder)
    settings = EncodeSettings(batch_size=arguments.batch_size, workers=arguments.workers)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        counts = (arguments.patches, arguments.patches)
        simulate_pixels("camelyon16", folder, size="tiny", slides=arguments.slides, patches=counts)
        slides = find_slides([folder / "slides"])
        patch_slides(slides.values(), folder)
        batches = all_batches(slides, folder, encoder, settings)
        encoder(batches[0])
        walls, models = [], []
        for _ in range(arguments.runs):
            walls.append(wall_time(slides, folder, encoder, settings))
            models.append(model_time(batches, encoder))
    wall, model = statistics.median(walls), statistics.median(models)
    result = {
        "encoder": encoder.name,
        "device": str(encoder.device),
        "patches": sum(len(batch) for batch in batches),
        "wall_s": round(wall, 3),
        "model_s": round(model, 3),
        "ratio": round(wall / model, 3),
        "largest_ratio": LARGEST_RATIO,
    }
    print(json.dumps(result, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2), encoding="utf-8")
    return int(wall / model > LARGEST_RATIO)


def all_batches(
    slides: dict[str, Path], folder: Path, encoder: PatchEncoder, settings: EncodeSettings
) -> list[PatchBatch]:
    """What the model will see, read beforehand."""
    found: list[PatchBatch] = []
    for name, path in slides.items():
        grid = read_patch_file(patches_path(folder, PatchSettings(), name))
        with open_slide(path) as slide:
            found += [
                read_patches(slide, grid, rows, encoder.spec.input_px)
                for rows in np.split(
                    np.arange(len(grid)), range(settings.batch_size, len(grid), settings.batch_size)
                )
            ]
    return found


def wall_time(
    slides: dict[str, Path], folder: Path, encoder: PatchEncoder, settings: EncodeSettings
) -> float:
    shutil.rmtree(folder / "features", ignore_errors=True)
    start = time.perf_counter()
    report = encode_slides(slides, folder, encoder, settings)
    elapsed = time.perf_counter() - start
    if report.problems:
        raise SystemExit(report.problems[0].message)
    return elapsed


def model_time(batches: list[PatchBatch], encoder: PatchEncoder) -> float:
    start = time.perf_counter()
    for batch in batches:
        encoder(batch)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
