"""Time of one training step per host, ours against torchmil's same model where it has one.

    python benchmarks/hosts.py [--patches 512 --width 1024 --runs 15 --threads 2 --clock wall
                               --hosts abmil transmil --json FILE]

A step is forward, loss and backward on one bag. Runs are interleaved (ours, theirs, ours, ...), so that a busy machine
slows both; the figure is the median over runs of the ratio within a pair. `--clock cpu` counts the time of this
process only, for machines that are never quiet.

The same model on both sides: torchmil's models have no dropout, so ours run without; its DSMIL has one output, so ours
has one there. CAMIL's graph is part of our step, while torchmil is handed a ready adjacency.
"""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcemil.features.loaders import repair_torchvision
from gcemil.hosts.camil import neighbour_graph
from gcemil.hosts.host import MilHost
from gcemil.hosts.table import HOSTS, create_host

# torchmil imports torchvision, of which only a CUDA build may be installed.
repair_torchvision()
torchmil_models = importlib.import_module("torchmil.models")

Step = Callable[[], None]

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WITHOUT_DROPOUT = {"abmil", "clam_sb", "transmil"}
WITH_ONE_OUTPUT = {"dsmil"}


@dataclass(frozen=True)
class Timing:
    host: str
    ours_ms: float
    torchmil_ms: float | None = None
    ratio: float | None = None


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    features, coords = make_bag(arguments.patches, arguments.width)
    print(f"{'host':<10}{'ours ms':>10}{'torchmil ms':>13}{'ratio':>8}")
    timings = []
    for name in arguments.hosts:
        timing = timed(name, features, coords, runs=arguments.runs, clock=CLOCKS[arguments.clock])
        timings.append(timing)
        print(table_row(timing), flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps([asdict(timing) for timing in timings], indent=2) + "\n"
        )


def parse_arguments() -> argparse.Namespace:
    importable = [name for name, spec in HOSTS.items() if find_spec(f"gcemil.hosts.{spec.module}")]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=512)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--hosts", nargs="+", choices=importable, default=importable)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def make_bag(n_patches: int, width: int) -> tuple[Tensor, Tensor]:
    row = torch.arange(n_patches)
    side = int(n_patches**0.5) + 1
    return torch.randn(n_patches, width), 256 * torch.stack([row % side, row // side], dim=1)


def timed(
    name: str, features: Tensor, coords: Tensor, *, runs: int, clock: Callable[[], float]
) -> Timing:
    """Medians over interleaved runs, after two of each to warm up."""
    ours, theirs = our_step(name, features, coords), torchmil_step(name, features, coords)
    pairs = [
        (seconds(ours, clock), seconds(theirs, clock) if theirs else None) for _ in range(runs + 2)
    ][2:]
    ours_ms = 1e3 * statistics.median(own for own, _ in pairs)
    if theirs is None:
        return Timing(name, ours_ms)
    torchmil_ms = 1e3 * statistics.median(other for _, other in pairs if other)
    return Timing(
        name, ours_ms, torchmil_ms, statistics.median(own / other for own, other in pairs if other)
    )


def seconds(step: Step, clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


def our_step(name: str, features: Tensor, coords: Tensor) -> Step:
    n_outputs = 1 if name in WITH_ONE_OUTPUT else 2
    options = {"dropout": 0.0} if name in WITHOUT_DROPOUT else {}
    host = create_host(name, in_dim=features.shape[1], n_outputs=n_outputs, options=options).train()
    begin_last_stage(host, features, coords)
    target = torch.tensor(1) if n_outputs > 1 else torch.tensor([1.0, 1.0])

    def step() -> None:
        host.zero_grad()
        output = host(features, coords, target=target)
        predictions = {"bag": output.logits, **output.auxiliary_logits}
        task_loss = sum(host.task_weights[key] * positive_loss(p) for key, p in predictions.items())
        (task_loss + sum(output.losses.values())).backward()

    return step


def positive_loss(logits: Tensor) -> Tensor:
    """The bag is positive: class 1 of two, or a single positive logit."""
    if len(logits) == 1:
        return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
    return F.cross_entropy(logits, torch.tensor(1))


def begin_last_stage(host: MilHost, features: Tensor, coords: Tensor) -> None:
    """Hosts of two stages are timed in their last."""
    shifts = torch.randn(16, 1, features.shape[1])
    with torch.no_grad():
        bag_features = torch.stack([host(features + shift, coords).bag_feature for shift in shifts])
    for stage in host.stages():
        host.begin_stage(stage, lambda: bag_features, 1)


def torchmil_step(name: str, features: Tensor, coords: Tensor) -> Step | None:
    model = torchmil_model(name, features.shape[1])
    if model is None:
        return None
    model.train()
    bag, label = features.unsqueeze(0), torch.tensor([1.0])
    more = {"adj": dense_graph(features, coords)} if name == "camil" else {}

    def step() -> None:
        model.zero_grad()
        _, losses = model.compute_loss(label, bag, **more)
        sum(losses.values()).backward()

    return step


def torchmil_model(name: str, width: int) -> nn.Module | None:
    """torchmil's model in the size of ours."""
    shape, embed = (width,), nn.Sequential(nn.Linear(width, 512), nn.ReLU())
    bare = nn.Sequential(nn.Linear(width, 512, bias=False), nn.ReLU())
    models = torchmil_models
    makers: dict[str, Callable[[], nn.Module]] = {
        "abmil": lambda: models.ABMIL(shape, att_dim=128, gated=True, feat_ext=embed),
        "clam_sb": lambda: models.CLAM_SB(
            shape, att_dim=256, gated=True, k_sample=8, feat_ext=embed
        ),
        "dsmil": lambda: models.DSMIL(shape, att_dim=128, nonlinear_q=True),
        "dtfd": lambda: models.DTFDMIL(
            shape, att_dim=128, n_groups=4, distill_mode="afs", feat_ext=bare
        ),
        "transmil": lambda: models.TransMIL(
            shape, att_dim=512, n_heads=8, n_landmarks=256, feat_ext=embed
        ),
        "camil": lambda: models.CAMIL(
            shape, gated_pool=True, n_heads=8, n_landmarks=256, feat_ext=embed
        ),
    }
    return makers[name]() if name in makers else None


def dense_graph(features: Tensor, coords: Tensor) -> Tensor:
    graph = neighbour_graph(features, coords)
    return torch.zeros(1, len(features), len(features)).scatter_(
        2, graph.neighbours[None], graph.shares[None]
    )


def table_row(timing: Timing) -> str:
    if timing.ratio is None:
        return f"{timing.host:<10}{timing.ours_ms:>10.1f}{'-':>13}{'-':>8}"
    return (
        f"{timing.host:<10}{timing.ours_ms:>10.1f}{timing.torchmil_ms:>13.1f}{timing.ratio:>8.2f}"
    )


if __name__ == "__main__":
    main()
