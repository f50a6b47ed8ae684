"""bfloat16 beside float32: CPU seconds and what moves, for training, prediction, evidence and
encoding.

    python benchmarks/precision.py [--hosts abmil transmil] [--seeds 0 1 2] [--json FILE]

Training: a fold of a simulated cohort of width 1024 for each seed, both precisions in turn.
Prediction: the test bags of the float32 fold, loaded in either precision. Encoding: batches of
noise through networks without trained weights. One thread; the ratio is float32 over bfloat16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.config import HostSettings, TrainSettings
from gcemil.explanation import explain_bag
from gcemil.features.encoders import load_encoder
from gcemil.hosts.table import HOSTS
from gcemil.runs.checkpoint import open_network
from gcemil.runs.folder import Run, fold_parts
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run

PRECISIONS = ("32", "bf16")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", nargs="+", choices=list(HOSTS), default=["abmil", "transmil"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--encoders", nargs="*", default=["random:efficientnet_lite0", "random:resnet50", "random:vit_s"])  # fmt: skip
    parser.add_argument("--slides", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for row in chain(encoding(options), training(options)):
        rows.append(row)
        print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def encoding(options: argparse.Namespace):
    pixels = np.random.default_rng(0).integers(0, 255, (16, 224, 224, 3), dtype=np.uint8)
    for name in options.encoders:
        arms = {one: load_encoder(name, device="cpu", precision=one) for one in PRECISIONS}
        found = interleaved(
            {key: (lambda encoder=encoder: encoder(pixels)) for key, encoder in arms.items()}
        )
        exact, near = (found[one][1] for one in PRECISIONS)
        cosine = (
            (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
        )
        yield {"what": f"encode, {name}", **speed(found), "least_cosine": float(cosine.min())}


def training(options: argparse.Namespace):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "cohort"
        cohort = simulate("bracs", place, size="tiny", slides=options.slides, dim=1024, seed=0)
        write_folds(cohort, make_folds(cohort, seed=0))
        for host in options.hosts:
            for seed in options.seeds:
                found: dict[str, Any] = {}
                for precision in PRECISIONS:
                    run = Path(folder) / f"{host}_{seed}_{precision}"
                    settings = TrainSettings(
                        host=HostSettings(name=host),
                        precision=precision,
                        seed=seed,
                        epochs=options.epochs,
                    )
                    start = time.process_time()
                    train_run(place, run, settings, folds=[0], jobs=1)
                    found[precision] = (
                        time.process_time() - start,
                        Run(run).fold(0).read_metrics().gce["macro_f1"],
                    )
                scores = {one: round(found[one][1], 4) for one in PRECISIONS}
                yield {"what": f"train, {host}, seed {seed}", **speed(found), "macro_f1": scores}
            yield from prediction(Path(folder) / f"{host}_{options.seeds[0]}_32", place, host)


def prediction(run: Path, place: Path, host: str):
    cohort = Cohort.load(place)
    parts = fold_parts(cohort, read_fold(cohort, 0))
    bags = [cohort.read_bag(spec) for spec in parts.test]
    models = {
        one: open_network(Run(run).fold(0).checkpoint, precision=one)[0].model for one in PRECISIONS
    }

    def explain(model: Any) -> list[Any]:
        return [explain_bag(model, bag) for bag in bags]

    found = interleaved(
        {key: (lambda model=model: explain(model)) for key, model in models.items()}
    )
    exact, near = (found[one][1] for one in PRECISIONS)
    yield {
        "what": f"explain, {host}, {len(bags)} test bags",
        **speed(found),
        "same_class": statistics.fmean(
            int(a.output.answer.logits.argmax()) == int(b.output.answer.logits.argmax())
            for a, b in zip(exact, near, strict=True)
        ),
        "same_verdict": statistics.fmean(
            (a.verdict.is_sufficient, a.verdict.is_necessary)
            == (b.verdict.is_sufficient, b.verdict.is_necessary)
            for a, b in zip(exact, near, strict=True)
        ),
        "patches_shared": statistics.fmean(
            float((a.recovery.selected & b.recovery.selected).sum())
            / float((a.recovery.selected | b.recovery.selected).sum())
            for a, b in zip(exact, near, strict=True)
        ),
    }


def interleaved(arms: dict[str, Any], runs: int = 5) -> dict[str, tuple[float, Any]]:
    """Median CPU seconds and the last result of every arm, run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    results: dict[str, Any] = {}
    for turn in range(runs + 1):
        for name, run in arms.items():
            start = time.process_time()
            results[name] = run()
            if turn:
                seconds[name].append(time.process_time() - start)
    return {name: (statistics.median(seconds[name]), results[name]) for name in arms}


def speed(found: dict[str, tuple[float, Any]]) -> dict[str, float]:
    exact, half = (found[one][0] for one in PRECISIONS)
    return {"cpu_seconds": round(exact, 3), "ratio": round(exact / half, 2)}


if __name__ == "__main__":
    main()
