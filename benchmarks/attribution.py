"""Leave-one-out of every patch: the closed form against captum's ablation, one pass per patch.

    python benchmarks/attribution.py [--patches 5000 --width 1024 --hosts abmil dsmil --runs 5 --clock wall --json FILE]

captum is helped: it removes rows of a bag embedded once, so that its passes only pool. "passes" is the time of the
closed form over that of one whole pass of the host, embedding included; both are medians of interleaved runs, half of
them before and half after captum, which runs once. Times are CPU times by default, which other processes hardly touch;
`--clock wall` for those of a quiet machine. The exit code is 1 when a host's scores differ by more than 1e-5 (of the largest logit, where that is above
1), or when the closed form is less than 100 times faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from captum.attr import FeatureAblation
from torch import Tensor

from gcemil.diagnostics.attribution import has_closed_form, occlusion, single
from gcemil.diagnostics.trained_fold import PredictedBag, predict_bag
from gcemil.hosts.table import HOSTS, create_host

REQUIRED_SPEEDUP = 100.0
TOLERANCE = 1e-5
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    host: str
    patches: int
    pass_ms: float
    occlusion_ms: float
    single_ms: float
    captum_ms: float
    passes: float
    speedup: float
    difference: float

    @property
    def passed(self) -> bool:
        return self.speedup >= REQUIRED_SPEEDUP and self.difference <= TOLERANCE


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    features, coords = make_bag(options.patches, options.width)
    print(
        f"{options.patches} patches x {options.width}, {options.threads} thread(s), {options.clock} time"
    )
    print(
        f"{'host':<10}{'pass':>10}{'occlusion':>12}{'single':>10}{'captum':>12}{'passes':>8}{'speedup':>9}{'difference':>12}"
    )
    timings = []
    for name in options.hosts:
        host = create_host(name, in_dim=options.width, n_outputs=2).eval()
        if has_closed_form(host):
            timings.append(
                timed(name, host, features, coords, runs=options.runs, clock=CLOCKS[options.clock])
            )
            print(table_row(timings[-1]), flush=True)
        else:
            print(f"{name:<10}  no closed form: every patch changes every other")
    if options.json:
        options.json.write_text(json.dumps([asdict(timing) for timing in timings], indent=2) + "\n")
    return 0 if all(timing.passed for timing in timings) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=5000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--hosts", nargs="+", choices=HOSTS, default=list(HOSTS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


@torch.no_grad()
def captum_occlusion(bag: PredictedBag) -> Tensor:
    """f(X) - f(X without i) by captum, one pass per patch; the only patch of a bag has no complement."""

    def kept_output(kept: Tensor) -> Tensor:
        rows = kept[0] > 0
        if not bool(rows.any()):
            return bag.logit.unsqueeze(0)
        return bag.interventions.kept(rows).logits[bag.index].unsqueeze(0)

    return FeatureAblation(kept_output).attribute(bag.logit.new_ones(1, len(bag)))[0]


def make_bag(n_patches: int, width: int) -> tuple[Tensor, Tensor]:
    row = torch.arange(n_patches)
    side = int(n_patches**0.5) + 1
    return torch.randn(n_patches, width), 256 * torch.stack([row % side, row // side], dim=1)


def timed(
    name: str, host: Any, features: Tensor, coords: Tensor, *, runs: int, clock: Clock
) -> Timing:
    """Medians over interleaved runs, after one of each to warm up."""
    calls = [partial(predict_bag, host, features, coords)]
    calls += [
        lambda call=call: call(predict_bag(host, features, coords)) for call in (occlusion, single)
    ]
    rounds = [[seconds(call, clock) for call in calls] for _ in range(runs + 1)][1:]
    start = clock()
    reference = captum_occlusion(predict_bag(host, features, coords))
    captum = clock() - start
    rounds += [[seconds(call, clock) for call in calls] for _ in range(runs)]
    one_pass, closed, alone = (statistics.median(column) for column in zip(*rounds, strict=True))
    largest = max(1.0, float(predict_bag(host, features, coords).full.logits.abs().max()))
    difference = (
        float((occlusion(predict_bag(host, features, coords)) - reference).abs().max()) / largest
    )
    return Timing(
        host=name,
        patches=len(features),
        pass_ms=1e3 * one_pass,
        occlusion_ms=1e3 * closed,
        single_ms=1e3 * alone,
        captum_ms=1e3 * captum,
        passes=statistics.median(row[1] / row[0] for row in rounds),
        speedup=captum / closed,
        difference=difference,
    )


def seconds(call: Callable[[], object], clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start


def table_row(timing: Timing) -> str:
    return (
        f"{timing.host:<10}{timing.pass_ms:>7.1f} ms{timing.occlusion_ms:>9.1f} ms{timing.single_ms:>7.1f} ms"
        f"{timing.captum_ms:>9.0f} ms{timing.passes:>8.2f}{timing.speedup:>8.0f}x{timing.difference:>12.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())
