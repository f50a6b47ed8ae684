"""Cost of each bridge's cosines beside a plain Linear(1024, 512), the widest layer of the simplest host.

    python benchmarks/bridge.py --patches 10000

Runs are interleaved, so that a slow moment of the machine falls on every row alike; the table gives medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gcemil.evidence.bridge import BRIDGES, Bridge, create_bridge


def prepared_bridge(kind: str, in_dim: int, anchor_dim: int) -> Bridge:
    """A bridge fitted on random pairs where it needs a fit; the identity takes anchors as wide as the features."""
    bridge = create_bridge(kind, in_dim, in_dim if kind == "identity" else anchor_dim)
    if bridge.needs_fit:
        pairs = torch.randn(512, in_dim)
        bridge.fit(pairs, pairs @ torch.randn(in_dim, anchor_dim) / in_dim**0.5)
    return bridge.eval()


def contestants(in_dim: int, features: Tensor, n_anchors: int) -> dict[str, Callable[[], Tensor]]:
    """Everything that is timed, by name."""
    host_layer = nn.Linear(in_dim, 512)
    runs: dict[str, Callable[[], Tensor]] = {"Linear(d, 512)": lambda: host_layer(features)}
    cases = [(kind, 768) for kind in BRIDGES] + [("orthogonal", max(768, in_dim))]
    for kind, anchor_dim in cases:
        bridge = prepared_bridge(kind, in_dim, anchor_dim)
        anchors = torch.randn(n_anchors, bridge.anchor_dim)
        runs[f"{kind}, a = {bridge.anchor_dim}"] = lambda b=bridge, a=anchors: b.cosines(features, a)  # type: ignore[misc]
    full, directions = nn.Linear(in_dim, 768), nn.functional.normalize(torch.randn(n_anchors, 768), dim=1)
    runs["unfolded Linear(d, 768)"] = lambda: nn.functional.normalize(full(features), dim=1) @ directions.T
    return runs


def median_seconds(runs: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    """Median time of each run over interleaved rounds, the first round not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--anchors", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    runs = contestants(options.dim, torch.randn(options.patches, options.dim), options.anchors)
    medians = median_seconds(runs, options.repeats)
    reference = medians["Linear(d, 512)"]
    print(
        f"{options.patches} patches x {options.dim}, {options.anchors} anchors, {torch.get_num_threads()} threads"
    )
    for name, seconds in medians.items():
        print(f"{name:26s} {1000 * seconds:8.2f} ms   {seconds / reference:5.2f} x")


if __name__ == "__main__":
    main()
