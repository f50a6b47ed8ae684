"""What the wrapper costs at inference over the same host alone: time and peak memory, for hosts and bridges.

    python benchmarks/wrapper.py [--hosts abmil transmil --bridges frozen --runs 15 --threads 1 --json FILE]

Each row is f(X_pi) of one bag by `model.gated`, in evaluation mode and without gradients. "host" says whether the score
reads the host's ungated view (attention and contributions) or does without; only then is the bag pooled twice.

Time: host and wrapper run in turn, after two of each to warm up. The figure is the median over pairs of the ratio within
a pair, so that a busy machine slows both; `cpu` is the same of CPU time, which other processes hardly touch.
Peak memory: a fresh process per arm loads model and bag, runs a small bag, and reports how far its resident set rose
above that point during one run (VmHWM of Linux, reset by clear_refs; glibc is told to give freed tensors back, or the
leftovers of the fit would hide the growth). The bag is not counted in either arm; `with bag` is the ratio when it is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcemil.config import EvidenceSettings
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.bridge import CentredBridge
from gcemil.hosts.table import HOSTS, create_host
from gcemil.model import GceMil

BRIDGES = ["identity", "frozen", "proximal", "free"]
STEP = 256
PROMPT_FREEING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
Run = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    host: str
    bridge: str
    reads_host: bool
    host_ms: float
    wrapper_ms: float
    time_ratio: float
    cpu_ratio: float
    host_mib: float | None
    wrapper_mib: float | None
    memory_ratio: float | None
    memory_ratio_with_bag: float | None


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(json.dumps(peak_growth(options, *options.peak)))
        return
    print(
        f"{options.patches} patches x {options.width}, {options.anchors} anchors, {options.threads} thread(s)"
    )
    print(
        f"{'host':<10}{'bridge':<12}{'host':<6}{'host ms':>9}{'gce ms':>9}{'time':>7}{'cpu':>7}{'MiB':>8}{'gce MiB':>9}{'memory':>8}{'with bag':>9}"
    )
    costs = []
    for name in options.hosts:
        for bridge in options.bridges:
            for reads_host in options.reads_host:
                costs.append(cost(options, name, bridge, reads_host))
                print(table_row(costs[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in costs], indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--anchors", type=int, default=8)
    parser.add_argument(
        "--hidden", type=int, default=EvidenceSettings().hidden, help="units of the selector"
    )
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hosts", nargs="+", choices=list(HOSTS), default=list(HOSTS))
    parser.add_argument("--bridges", nargs="+", choices=BRIDGES, default=BRIDGES)
    parser.add_argument("--host-view", choices=["with", "without", "both"], default="both")
    parser.add_argument("--no-memory", action="store_true", help="time only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.reads_host = {"with": [True], "without": [False], "both": [True, False]}[
        options.host_view
    ]
    return options


def cost(options: argparse.Namespace, name: str, bridge: str, reads_host: bool) -> Cost:
    alone, both = arms(options, name, bridge, reads_host)
    pairs = [(clocked(alone), clocked(both)) for _ in range(options.runs + 2)][2:]
    memory = None if options.no_memory else memory_of_arms(options, name, bridge, reads_host)
    bag_mib = options.patches * options.width * 4 / 2**20
    return Cost(
        name,
        bridge,
        reads_host,
        host_ms=1e3 * statistics.median(host[0] for host, _ in pairs),
        wrapper_ms=1e3 * statistics.median(wrapper[0] for _, wrapper in pairs),
        time_ratio=statistics.median(wrapper[0] / host[0] for host, wrapper in pairs),
        cpu_ratio=statistics.median(wrapper[1] / host[1] for host, wrapper in pairs),
        host_mib=memory[0] if memory else None,
        wrapper_mib=memory[1] if memory else None,
        memory_ratio=memory[1] / memory[0] if memory else None,
        memory_ratio_with_bag=(memory[1] + bag_mib) / (memory[0] + bag_mib) if memory else None,
    )


def arms(
    options: argparse.Namespace,
    name: str,
    bridge: str,
    reads_host: bool,
    patches: int | None = None,
) -> tuple[Run, Run]:
    """The host on one bag, and the wrapper around that host on the same bag."""
    model = make_model(options, name, bridge, reads_host)
    features, coords = make_bag(patches or options.patches, options.width)

    @torch.no_grad()
    def alone() -> object:
        return model.host(features, coords)

    @torch.no_grad()
    def wrapper() -> object:
        return model.gated(features, coords, patch_size=STEP)

    return alone, wrapper


def make_model(options: argparse.Namespace, name: str, bridge: Any, reads_host: bool) -> GceMil:
    """An untrained host in its last stage, in its default gate mode, and a calibrated wrapper."""
    torch.manual_seed(0)
    host = create_host(name, in_dim=options.width, n_outputs=2).eval()
    for stage in host.stages():
        host.begin_stage(stage, lambda: bag_features(host, options.width), 1)
    settings = EvidenceSettings(
        bridge=bridge,
        bridge_rank=getattr(options, "rank", 128),
        hidden=options.hidden,
        attention_term=reads_host,
        contribution_term=reads_host,
    )
    embeddings = torch.randn(options.anchors, options.width)
    bank = AnchorBank(embeddings, tuple(f"anchor {m}" for m in range(options.anchors)), "benchmark")
    model = GceMil(host, bank, in_dim=options.width, settings=settings).eval()
    reference = torch.randn(2 * options.width, options.width)
    if isinstance(model.bridge, CentredBridge):
        model.bridge.set_centre(reference.mean(dim=0))
    elif model.bridge.needs_fit:
        model.bridge.fit(reference, reference @ torch.randn(options.width, options.width))
    model.calibrate(reference)
    model.set_temperature(HOSTS[name].temperature_end)
    return model


@torch.no_grad()
def bag_features(host: Any, width: int) -> Tensor:
    return torch.stack([host(*make_bag(20, width)).bag_feature for _ in range(16)])


def make_bag(n_patches: int, width: int) -> tuple[Tensor, Tensor]:
    row = torch.arange(n_patches)
    side = int(n_patches**0.5) + 1
    return torch.randn(n_patches, width), STEP * torch.stack([row % side, row // side], dim=1)


def clocked(run: Run) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def memory_of_arms(
    options: argparse.Namespace, name: str, bridge: str, reads_host: bool
) -> tuple[float, float]:
    shared = ["--patches", options.patches, "--width", options.width, "--anchors", options.anchors]
    shared += ["--hidden", options.hidden]
    shared += ["--threads", options.threads, "--host-view", "with" if reads_host else "without"]
    grown = []
    for arm in ("host", "wrapper"):
        command = [sys.executable, __file__, *map(str, shared), "--peak", name, bridge, arm]
        environment = os.environ | PROMPT_FREEING
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        grown.append(json.loads(run.stdout))
    return grown[0], grown[1]


def peak_growth(options: argparse.Namespace, name: str, bridge: str, arm: str) -> float:
    """MiB by which one run raises the resident set of this process at its highest."""
    (reads_host,) = options.reads_host
    runs = dict(zip(("host", "wrapper"), arms(options, name, bridge, reads_host), strict=True))
    small = dict(
        zip(("host", "wrapper"), arms(options, name, bridge, reads_host, patches=200), strict=True)
    )
    # Thread pools and kernels are set up here, so that they are counted in neither arm.
    small[arm]()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_mib("VmRSS")
    runs[arm]()
    return resident_mib("VmHWM") - before


def resident_mib(line: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(found.split()[1]) for found in lines if found.startswith(line)) / 1024


def table_row(row: Cost) -> str:
    view = "reads" if row.reads_host else "-"
    text = f"{row.host:<10}{row.bridge:<12}{view:<6}{row.host_ms:>9.1f}{row.wrapper_ms:>9.1f}{row.time_ratio:>7.2f}{row.cpu_ratio:>7.2f}"
    if row.memory_ratio is None:
        return text
    return f"{text}{row.host_mib:>8.1f}{row.wrapper_mib:>9.1f}{row.memory_ratio:>8.2f}{row.memory_ratio_with_bag:>9.2f}"


if __name__ == "__main__":
    main()
