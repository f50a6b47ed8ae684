"""Peak memory of commands on one very large slide.

  python benchmarks/large_slide.py [--patches 200000] [--dim 1024] [--hosts abmil] [--json FILE]
A simulated cohort (bracs, 30 slides) in which one test slide is repeated, with noise, to the asked
number of patches. Each command runs in a process of its own; the figure is the most memory the
process held (resident, libraries included), beside the size of the slide as float32. Processor
seconds stand beside it; they are not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--hosts", nargs="+", default=["abmil"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    slide_gib = arguments.patches * arguments.dim * 4 / GIB
    print(
        f"one slide of {arguments.patches:,} x {arguments.dim}: {slide_gib:.2f} GiB as float32",
        flush=True,
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        cohort = Path(folder) / "cohort"
        # By another process: Linux counts the peak of the process that starts a command as the
        # command's own.
        writer = get_context("spawn").Process(
            target=write_cohort, args=(cohort, arguments.patches, arguments.dim)
        )
        writer.start()
        writer.join()
        if writer.exitcode:
            sys.exit("The cohort could not be written.")
        slide = large_slide(Cohort.load(cohort))
        for host in arguments.hosts:
            run = Path(folder) / host
            commands = {
                "train one epoch": [
                    "train",
                    cohort,
                    "--host",
                    host,
                    "--out",
                    run,
                    "--folds",
                    0,
                    "--epochs",
                    1,
                ],
                "explain": [
                    "explain",
                    run,
                    "--slide",
                    slide,
                    "--out",
                    Path(folder) / f"explained_{host}",
                ],
                "diagnose budget": ["diagnose", run, "--only", "budget", "--folds", 0],
            }
            for name, command in commands.items():
                peak, seconds = measure(command)
                found.append({"host": host, "command": name, "gib": peak, "seconds": seconds})
                print(
                    f"{host:10s} {name:16s} {peak:6.2f} GiB  {seconds:7.1f} s of processor",
                    flush=True,
                )
                # After every command: the last takes ten times as long as the others.
                if arguments.json:
                    arguments.json.write_text(
                        json.dumps({"slide_gib": slide_gib, "commands": found}, indent=2) + "\n"
                    )


def large_slide(cohort: Cohort) -> str:
    """The first slide that fold 0 tests."""
    return read_fold(cohort, 0).slides("test")[0]


def write_cohort(folder: Path, patches: int, dim: int) -> None:
    """The cohort with its large slide."""
    gcemil("simulate", "bracs", "--slides", 30, "--dim", dim, "--size", "tiny", "--out", folder)
    gcemil("split", folder)
    cohort = Cohort.load(folder)
    slide = large_slide(cohort)
    path = cohort.feature_file(slide)
    features = store.read(path, "features")
    generator = np.random.default_rng(0)
    rows = np.arange(patches) % len(features)
    noise = generator.normal(scale=0.01, size=(1, dim)).astype(np.float32)
    side = int(np.ceil(np.sqrt(patches)))
    coords = np.stack(np.divmod(np.arange(patches), side)[::-1], axis=1).astype(np.int64) * 256
    large = (features[rows] + noise * generator.normal(size=(patches, 1))).astype(np.float32)
    store.write(path, {"features": large, "coords": coords}, store.attributes(path))
    for truth in (folder / "truth").glob(f"{slide}*"):
        truth.unlink()


def gcemil(*words: object) -> None:
    subprocess.run(command_line(words), check=True, stdout=subprocess.DEVNULL)


def measure(words: Sequence[object]) -> tuple[float, float]:
    """Peak memory in GiB and processor seconds of one command."""
    process = subprocess.Popen(command_line(words), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"gcemil {' '.join(map(str, words))} failed.")
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit / GIB, usage.ru_utime + usage.ru_stime


def command_line(words: Sequence[object]) -> list[str]:
    return [sys.executable, "-c", "from gcemil.cli.main import main; main()", *map(str, words)]


if __name__ == "__main__":
    main()
