"""The table of speed: what each thing costs, what we set out to reach, and the peer beside it.

    python benchmarks/bench.py [--quick] [--only inference steps ...] [--json results/bench.json]

Ratios are taken within one run: both arms in turn, the median over pairs of the ratio within a
pair. CPU time decides, since other processes hardly touch it; wall time stands beside it. One
thread, except whole folds, which take two. Seconds are of this machine. `--quick` takes smaller
bags and cohorts, and leaves out whole folds; its table says so. A line that is measured again
replaces itself in the JSON file, and all others stay; each says under what load it was measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import attribution
import h5py
import numpy as np
import torch
import training
import wrapper

from gcemil.bags import store
from gcemil.bags.bag import slide_bag
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.diagnostics.attribution import block_occlusion
from gcemil.diagnostics.trained_fold import predict_bag
from gcemil.evidence.losses import NullTarget
from gcemil.explanation import Interventions, explain_bag
from gcemil.hosts.table import HOSTS, create_host
from gcemil.tasks.task import ClassificationTask
from gcemil.training.objective import TrainingBag, evidence_terms, host_terms

ATTENTION_POOLS = {"abmil", "clam_sb", "ibmil"}
TOKEN_HOSTS = ("transmil", "camil")
PEERS = ("torch", "torchmil", "captum", "h5py")
Run = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    measurement: str
    what: str
    was: str
    reach: str
    measured: str
    reached: bool | None
    """None where there was nothing to reach, or this machine cannot say."""
    cpu: float
    wall: float | None = None
    """The same figure of wall time."""
    detail: str = ""
    series: str = ""
    """The curve this is a point of, at `size` patches or slides."""
    size: int | None = None
    load: float = 0.0
    """Processes that wanted a core when this was measured (Linux's average of one minute)."""
    processor: str = ""


@dataclass(frozen=True)
class Pair:
    """Two arms in turn: seconds of the first, and the ratio of the second to it."""

    first_cpu: float
    cpu_ratio: float
    wall_ratio: float


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines: list[Line] = []
    for name in options.only:
        for line in MEASUREMENTS[name](options):
            lines.append(
                replace(
                    line, measurement=name, load=round(os.getloadavg()[0], 1), processor=processor()
                )
            )
            print(table_row(lines[-1]), flush=True)
            write_results(options, lines)
    print("; ".join(f"{name} {importlib.metadata.version(name)}" for name in PEERS))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller bags and cohorts, no whole folds"
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(MEASUREMENTS), help="these measurements alone"
    )
    parser.add_argument("--hosts", nargs="+", choices=list(HOSTS), default=list(HOSTS))
    parser.add_argument("--slides", nargs="+", type=int, help="sizes of cohorts")
    parser.add_argument("--patches", nargs="+", type=int, help="sizes of bags of the growth")
    parser.add_argument("--runs", type=int, help="pairs of runs of each ratio")
    parser.add_argument("--json", type=Path, default=Path("results/bench.json"))
    options = parser.parse_args()
    options.only = options.only or [
        name for name in MEASUREMENTS if not (options.quick and name == "folds")
    ]
    options.runs = options.runs or (3 if options.quick else 7)
    options.growth = options.patches or ((1_000, 4_000) if options.quick else (1_000, 5_000, 20_000, 50_000, 200_000))  # fmt: skip
    options.slides = options.slides or ((100, 1_000) if options.quick else (100, 1_000, 10_000))
    options.patches, options.width = (2_000 if options.quick else 10_000), 1024
    return options


# What one bag costs


def measure_inference(options: argparse.Namespace) -> Iterator[Line]:
    """The gates of the wrapper, and the evidence with its verdict, around every host."""
    for name in options.hosts:
        limit = 1.08 if name in ATTENTION_POOLS else 1.3 if name == "dsmil" else 1.15
        plain, soft, explained = inference_arms(options, name)
        for what, arm, most in (
            ("soft inference / plain host", soft, limit),
            (
                "evidence with its verdict / plain host",
                explained,
                2.0 if name in TOKEN_HOSTS else 1.4,
            ),
        ):
            pair = compare(plain, arm, options.runs)
            detail = f"the host alone {1e3 * pair.first_cpu:.0f} ms"
            yield ratio_line(f"{what}: {name}", "-", pair, most, detail)


def inference_arms(options: argparse.Namespace, name: str) -> tuple[Run, Run, Run]:
    model = wrapper.make_model(name, "centred", options.width)
    features, coords = wrapper.make_bag(options.patches, options.width)
    bag = slide_bag("bag", features.numpy(), coords.numpy(), patch_size=wrapper.STEP)

    @torch.no_grad()
    def soft() -> object:
        return model.gated(features, coords, patch_size=wrapper.STEP)

    return without_gradient(model.host, features, coords), soft, lambda: explain_bag(model, bag)


def measure_steps(options: argparse.Namespace) -> Iterator[Line]:
    """A step that trains host and evidence together (recipe joint) and one of the plain host: 512
    patches of one bag.

    By default the evidence is fitted after the host, so that a step is that of the plain host.
    """
    for name in options.hosts:
        plain, wrapped = training_arms(name, 512, 128)
        pair = compare(plain, wrapped, options.runs)
        limit = 1.8 if name == "dsmil" else 2.0
        detail = f"the plain step {1e3 * pair.first_cpu:.0f} ms"
        yield ratio_line(
            f"joint / plain training step, 512 x 128: {name}", "-", pair, limit, detail
        )


def training_arms(name: str, patches: int, width: int) -> tuple[Run, Run]:
    model = wrapper.make_model(name, "proximal", width).train()
    features, coords = wrapper.make_bag(patches, width)
    bags = [TrainingBag(features, coords, wrapper.STEP, torch.tensor(1))]
    task, null = ClassificationTask(("0", "1")), NullTarget(2)

    def learn(terms: dict[str, torch.Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()

    return (
        lambda: learn(host_terms(model.host, task, bags)),
        lambda: learn(evidence_terms(model, null, task, bags)[0]),
    )


def measure_subsets(options: argparse.Namespace) -> Iterator[Line]:
    """A new subset of a bag that is embedded, and the discrete prediction beside the full one."""
    for name in set(TOKEN_HOSTS).intersection(options.hosts):
        bench, selected = subset_bench(name, options)
        for what, ask in {"keep": bench.kept, "remove": bench.removed}.items():
            ask_once = partial(ask, selected)
            wall, cpu = zip(*(wrapper.clock(ask_once) for _ in range(4)), strict=True)
            yield seconds_line(
                f"{what} 5 % of {options.patches:,} x {options.width}: {name}",
                "7.9 s (both)",
                statistics.median(cpu[1:]),
                statistics.median(wall[1:]),
                1.5,
            )
    for name in ("abmil", "transmil"):
        host = create_host(name, in_dim=options.width, n_outputs=2).eval()
        features, coords = wrapper.make_bag(options.patches, options.width)
        chosen = torch.arange(0, options.patches, 20)
        full = without_gradient(host, features, coords)
        discrete = without_gradient(host, features[chosen], coords[chosen])
        pair = compare(full, discrete, options.runs)
        yield ratio_line(
            f"discrete prediction given the evidence / full: {name}",
            "0.05-0.08x",
            pair,
            0.08,
            "keep",
        )


def subset_bench(name: str, options: argparse.Namespace) -> tuple[Interventions, torch.Tensor]:
    host = create_host(name, in_dim=options.width, n_outputs=2).eval()
    features, coords = wrapper.make_bag(options.patches, options.width)
    return Interventions(host, features, coords), torch.arange(options.patches) % 20 == 0


def without_gradient(host: Any, features: torch.Tensor, coords: torch.Tensor) -> Run:
    @torch.no_grad()
    def run() -> object:
        return host(features, coords)

    return run


def measure_occlusion(options: argparse.Namespace) -> Iterator[Line]:
    """Leaving out every patch against captum; blocks of patches for token hosts."""
    patches = 1_000 if options.quick else 5_000
    features, coords = wrapper.make_bag(patches, options.width)
    for name in ("abmil", "dtfd"):
        host = create_host(name, in_dim=options.width, n_outputs=2).eval()
        speedup, difference = attribution.compare_occlusions(host, features, coords, runs=2)
        yield Line(
            "", f"occlusion of {patches:,} patches against captum: {name}", "147-1133x", "keep (>= 100x)",
            f"{speedup:.0f}x", speedup >= 100, speedup,
            detail=f"largest difference {difference:.0e}",
        )  # fmt: skip
    host = create_host(
        "transmil", in_dim=64, n_outputs=2, options={"width": 64, "landmarks": 16}
    ).eval()
    bag = predict_bag(host, *wrapper.make_bag(1_000, 64))
    passes = 0
    pool = host.pool

    def counted(*given: Any) -> Any:
        nonlocal passes
        passes += 1
        return pool(*given)

    host.pool = counted
    block_occlusion(bag)
    yield Line("", "block occlusion of a token host", "33 passes", "<= 30 passes", f"{passes} passes", passes <= 30, passes)  # fmt: skip


# What many bags cost


def measure_throughput(options: argparse.Namespace) -> Iterator[Line]:
    """Training abmil on 1024-d bags, loading included, against torchmil's loader and trainer."""
    n_bags = 20 if options.quick else 60
    with tempfile.TemporaryDirectory() as folder:
        cohort = training.write_bags(Path(folder), n_bags)
        ours, theirs = (
            training.gcemil_epoch(cohort),
            training.torchmil_epoch(Path(folder) / "torchmil"),
        )
        epochs = iter(range(1000))
        pair = compare(lambda: ours(next(epochs)), lambda: theirs(next(epochs)), options.runs)
    yield Line(
        "", "training throughput / torchmil, abmil 512 x 1024", "1.09x", ">= 1.3x", f"{pair.cpu_ratio:.2f}x",
        pair.cpu_ratio >= 1.3, pair.cpu_ratio, pair.wall_ratio,
        f"{n_bags * 512 / pair.first_cpu:,.0f} patches per CPU second",
    )  # fmt: skip


def measure_loading(options: argparse.Namespace) -> Iterator[Line]:
    """From file to prediction: ours against a CLAM-style loader on a file of CLAM."""
    shape = (3_000 if options.quick else 15_000, 1024)
    host = create_host("abmil", in_dim=1024, n_outputs=2).eval()
    with tempfile.TemporaryDirectory() as folder:
        for layout, chunks in {"one row per chunk": (1, 1024), "repacked": None}.items():
            path = Path(folder) / "features" / f"{layout}.h5"
            path.parent.mkdir(exist_ok=True)
            with h5py.File(path, "w") as file:
                values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
                file.create_dataset("features", data=values, chunks=chunks)
                file.create_dataset(
                    "coords", data=np.zeros((shape[0], 2), np.int64), chunks=chunks and (1, 2)
                )
            rival = path.parent / "one row per chunk.h5"

            @torch.no_grad()
            def ours(path: Path = path) -> object:
                return host(torch.from_numpy(store.read(path, "features")))

            @torch.no_grad()
            def as_clam(rival: Path = rival) -> object:
                with h5py.File(rival, "r") as file:
                    return host(torch.from_numpy(file["features"][:]))

            pair = compare(ours, as_clam, options.runs)
            read = compare(
                lambda path=path: store.read(path, "features"),
                lambda rival=rival: read_whole(rival),
                options.runs,
            )
            yield Line(
                "", f"CLAM-style loader / ours, file to prediction of {shape[0]:,} x 1024, {layout}", "1.4-1.7x", ">= 1.7x",
                f"{pair.cpu_ratio:.1f}x", pair.cpu_ratio >= 1.7, pair.cpu_ratio, pair.wall_ratio,
                f"reading alone {read.cpu_ratio:.1f}x",
            )  # fmt: skip


def read_whole(path: Path) -> np.ndarray:
    with h5py.File(path, "r") as file:
        return file["features"][:]


def measure_startup(options: argparse.Namespace) -> Iterator[Line]:
    """CPU seconds before a command does anything."""
    with tempfile.TemporaryDirectory() as folder:
        for words, was, limit in ((["--help"], "0.3 s", 0.3), (["tables", folder], "0.9 s", 0.6)):
            found = [command_cost(words, check=False) for _ in range(3)]
            cpu = min(one.cpu for one in found)
            yield seconds_line(
                f"gcemil {words[0]}", was, cpu, min(one.wall for one in found), limit
            )


def measure_folds(options: argparse.Namespace) -> Iterator[Line]:
    """A default fold of the token hosts, wrapped, on two threads: from one epoch and from two."""
    with tempfile.TemporaryDirectory() as folder:
        cohort = Path(folder) / "cohort"
        command_cost(["simulate", "bracs", "--out", cohort, "--seed", "100"])
        command_cost(["split", cohort])
        for name, limit in zip(TOKEN_HOSTS, (8, 6), strict=True):
            if name not in options.hosts:
                continue
            costs = []
            for epochs in (1, 2):
                run = Path(folder) / f"{name}_{epochs}"
                words = [
                    "train",
                    cohort,
                    "--host",
                    name,
                    "--folds",
                    "0",
                    "--epochs",
                    epochs,
                    "--out",
                    run,
                ]
                costs.append(command_cost(words, threads=2))
            cpu = costs[0].cpu + 14 * (costs[1].cpu - costs[0].cpu)
            wall = costs[0].wall + 14 * (costs[1].wall - costs[0].wall)
            # Two cores that do nothing else would need half of the CPU time.
            yield Line(
                "", f"default fold, wrapped, two cores: {name}", "about 1 h", f"<= {limit} min",
                f"{cpu / 120:.1f} min of both cores", cpu / 120 <= limit, cpu / 120, wall / 60,
                "15 epochs from the difference of one and two",
            )  # fmt: skip


def measure_large_slide(options: argparse.Namespace) -> Iterator[Line]:
    """One slide of 200,000 patches: memory of whole commands."""
    patches = 20_000 if options.quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        script = Path(__file__).with_name("large_slide.py")
        subprocess.run(
            [sys.executable, script, "--patches", str(patches), "--json", found],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for one in json.loads(found.read_text())["commands"]:
            yield Line(
                "", f"{patches:,} x 1024, {one['host']}: {one['command']}", "2.1 GiB", "<= 1.6 GiB",
                f"{one['gib']:.2f} GiB", one["gib"] <= 1.6, one["seconds"], None,
                f"{one['seconds']:.0f} CPU seconds",
            )  # fmt: skip


def measure_slides(options: argparse.Namespace) -> Iterator[Line]:
    """Many slides: validate, split, train one epoch, report."""
    sizes = options.slides
    costs: dict[tuple[str, int], Cost] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n_slides in sizes:
            cohort, run = Path(folder) / f"cohort_{n_slides}", Path(folder) / f"run_{n_slides}"
            write_many(cohort, n_slides)
            for name, words in {
                "split": ["split", cohort],
                "validate": ["validate", cohort],
                "one epoch": ["train", cohort, "--folds", "0", "--epochs", "1", "--out", run],
                "report": ["report", run],
            }.items():
                cost = costs[name, n_slides] = command_cost(words)
                is_judged = len(sizes) > 1 and n_slides == sizes[-1]
                yield Line(
                    "", f"{n_slides:,} slides: {name}", "not measured", "linear, memory flat" if is_judged else "-",
                    f"{cost.cpu:.1f} s, {cost.gib:.2f} GiB",
                    grows_linearly([costs[name, size] for size in sizes], sizes) if is_judged else None,
                    cost.cpu, cost.wall, series=name, size=n_slides,
                )  # fmt: skip


def grows_linearly(costs: Sequence[Cost], sizes: Sequence[int]) -> bool:
    """Whether the last size costs no more than its share over the first, and no more memory."""
    growth = (costs[-1].cpu - costs[0].cpu) / max(1e-9, costs[-2].cpu - costs[0].cpu)
    is_linear = len(sizes) == 2 or growth < 1.3 * sizes[-1] / sizes[-2]
    return is_linear and costs[-1].gib - costs[0].gib < 0.5


def write_many(folder: Path, n_slides: int) -> None:
    """A cohort of small bags of two classes."""
    generator = np.random.default_rng(0)
    coords = np.stack(np.divmod(np.arange(24), 6), axis=1).astype(np.int64) * 256
    rows = []
    for index in range(n_slides):
        name, label = f"slide_{index:05d}", index % 2
        features = generator.normal(size=(24, 32)).astype(np.float32) + 0.2 * label
        store.write(folder / "features" / f"{name}.h5", {"features": features, "coords": coords})
        rows.append(SlideRow(name, name, label=str(label)))
    card = CohortCard(
        name="many",
        task="classification",
        classes=("0", "1"),
        feature_dim=32,
        patch_size_level0=256,
    )
    Cohort(folder, card, tuple(rows)).save()


def measure_growth(options: argparse.Namespace) -> Iterator[Line]:
    """Cost against the number of patches."""
    for name in ("abmil", *TOKEN_HOSTS):
        for patches in options.growth if name in options.hosts else ():
            asked = argparse.Namespace(**{**vars(options), "patches": patches, "width": 256})
            alone, both, _ = inference_arms(asked, name)
            for what, run in {"host": alone, "wrapped": both}.items():
                wall, cpu = zip(
                    *(wrapper.clock(run) for _ in range(2 if patches <= 20_000 else 1)), strict=True
                )
                yield Line(
                    "", f"{what}, {patches:,} x 256: {name}", "-", "linear", f"{min(cpu):.2f} s", None, min(cpu), min(wall),
                    series=f"{name} {what}", size=patches,
                )  # fmt: skip


# Clocks


def compare(first: Run, second: Run, runs: int) -> Pair:
    """Both in turn, after one of each to warm up."""
    pairs = [(wrapper.clock(first), wrapper.clock(second)) for _ in range(runs + 1)][1:]
    return Pair(
        statistics.median(one[1] for one, _ in pairs),
        statistics.median(other[1] / one[1] for one, other in pairs),
        statistics.median(other[0] / one[0] for one, other in pairs),
    )


@dataclass(frozen=True)
class Cost:
    cpu: float
    wall: float
    gib: float


def command_cost(words: list[Any], *, threads: int = 1, check: bool = True) -> Cost:
    """One gcemil command in a process of its own; peak memory by Linux's account."""
    command = [sys.executable, "-c", "from gcemil.cli.main import main; main()", *map(str, words)]
    environment = os.environ | {
        name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    if check and os.waitstatus_to_exitcode(status):
        sys.exit(f"gcemil {' '.join(map(str, words))} failed.")
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(
        usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss * unit / 2**30
    )


def processor() -> str:
    """What torch computes with: results of one set of vector instructions are not those of another."""
    return f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


# Lines


def ratio_line(what: str, was: str, pair: Pair, limit: float, detail: str) -> Line:
    return Line(
        "", what, was, f"<= {limit:.2f}x", f"{pair.cpu_ratio:.2f}x", pair.cpu_ratio <= limit,
        pair.cpu_ratio, pair.wall_ratio, detail,
    )  # fmt: skip


def seconds_line(what: str, was: str, cpu: float, wall: float, limit: float) -> Line:
    return Line("", what, was, f"<= {limit:g} s", f"{cpu:.2f} s", cpu <= limit, cpu, wall)


def table_row(line: Line) -> str:
    mark = {True: "reached", False: "NOT reached", None: ""}[line.reached]
    wall = "" if line.wall is None else f"wall {line.wall:.2f}"
    return f"{line.what:<72}{line.was:>14}{line.reach:>20}{line.measured:>24}  {mark:<12}{wall:<12}{line.detail}"


def write_results(options: argparse.Namespace, lines: list[Line]) -> None:
    versions = {name: importlib.metadata.version(name) for name in PEERS}
    kept: list[dict[str, Any]] = []
    if options.json.is_file():
        earlier = json.loads(options.json.read_text())
        again = {(line.measurement, line.what) for line in lines}
        kept = [one for one in earlier["lines"] if (one["measurement"], one["what"]) not in again]
    order = list(MEASUREMENTS)
    found = kept + [asdict(line) | {"quick": options.quick} for line in lines]
    found.sort(key=lambda one: order.index(one["measurement"]))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }
    options.json.write_text(
        json.dumps({"versions": versions, "machine": machine, "lines": found}, indent=2) + "\n"
    )


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "inference": measure_inference,
    "steps": measure_steps,
    "folds": measure_folds,
    "subsets": measure_subsets,
    "throughput": measure_throughput,
    "occlusion": measure_occlusion,
    "large_slide": measure_large_slide,
    "slides": measure_slides,
    "startup": measure_startup,
    "loading": measure_loading,
    "growth": measure_growth,
}

if __name__ == "__main__":
    main()
