"""python -m fuzz --inputs 20000 --seed 0: damaged files at every reader, counted by reader and outcome."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random

from fuzz.mutations import mutate
from fuzz.readers import READERS, Reader, preload
from fuzz.worker import LIMIT_S, Outcome, Worker, is_supported

KINDS = ("read", "refused", "exception", "message", "crash", "hang", "memory", "disk")
ROOM_BYTES = 2**30
"""What one input and everything written for it may take on the disk, which is often memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if not is_supported():
        print("Limits on a process need Linux; nothing was read.", file=sys.stderr)
        return 0
    preload()
    # What is there now is never collected in a child, so that its memory stays shared.
    gc.freeze()
    chosen = [reader for reader in READERS if options.reader in (None, reader.name)]
    # Whatever is written is flushed to the disk, which a campaign need not wait for.
    memory = Path("/dev/shm")
    # A campaign that is ended takes its files along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="gcemil-fuzz-", dir=memory if memory.is_dir() else None) as place:
        # What libraries write beside, too.
        os.environ["TMPDIR"] = tempfile.tempdir = place
        counts, faults = campaign(chosen, options, Path(place))
    write(options, counts, faults)
    tell(counts, faults, options.seed)
    return 1 if faults else 0


@dataclass
class Count:
    """What came of the inputs of one reader."""

    kinds: Counter[str] = field(default_factory=Counter)
    worst_s: float = 0.0
    slowest: int = -1
    """The index of the input that took longest."""
    worst_bytes: int = 0
    computed: float = 0.0

    def add(self, outcome: Outcome, index: int) -> None:
        self.merge(Count(Counter([outcome.kind]), outcome.computed, index, outcome.bytes, outcome.computed))

    def merge(self, other: Count) -> None:
        self.kinds += other.kinds
        if other.worst_s > self.worst_s:
            self.worst_s, self.slowest = other.worst_s, other.slowest
        self.worst_bytes = max(self.worst_bytes, other.worst_bytes)
        self.computed += other.computed

    @property
    def total(self) -> int:
        return self.kinds.total()

    @property
    def n_findings(self) -> int:
        return self.total - self.kinds["read"] - self.kinds["refused"]


Counts = dict[str, Count]
Mark = tuple[int, ...]


def write(options: argparse.Namespace, counts: Counts, faults: list[dict[str, object]]) -> None:
    if options.json is not None:
        report = {
            "seed": options.seed,
            "inputs": sum(count.total for count in counts.values()),
            "counts": {name: {**vars(count), "kinds": dict(count.kinds)} for name, count in counts.items()},
            "findings": faults,
        }
        options.json.write_text(json.dumps(report, indent=1))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000, help="How many damaged inputs in all.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="The first index, to go on with a campaign.")
    parser.add_argument("--seconds", type=float, default=None, help="Stop after so long.")
    parser.add_argument("--reader", choices=[reader.name for reader in READERS], help="This reader alone.")
    parser.add_argument("--index", type=int, help="This input alone, told in full.")
    parser.add_argument("--keep", type=Path, help="Copy every input that found a fault into this folder.")
    parser.add_argument("--json", type=Path, help="Write counts and faults to this file.")
    return parser.parse_args(arguments)


def campaign(
    readers: Sequence[Reader], options: argparse.Namespace, place: Path
) -> tuple[Counts, list[dict[str, object]]]:
    """Every input in turn, readers side by side, so that a campaign that is stopped has seen all of them."""
    inputs = built(readers, place)
    by_name = {reader.name: reader for reader in readers}
    counts: Counts = {reader.name: Count() for reader in readers}
    faults: list[dict[str, object]] = []
    ends = None if options.seconds is None else time.monotonic() + options.seconds
    indices = (
        range(options.start, options.start + options.inputs) if options.index is None else [options.index]
    )
    told = time.monotonic()

    def read(job: tuple[str, list[str]]) -> None:
        name, damaged = job
        by_name[name].run([inputs[name].folder / path for path in damaged], inputs[name].folder)

    with Worker(read) as worker:
        for index in indices:
            if ends is not None and time.monotonic() > ends:
                break
            random = Random(f"{options.seed}/{index}")
            reader = random.choices(readers, [one.share for one in readers])[0]
            source = inputs[reader.name]
            source.restore()
            damaged, done = mutate(random, [source.folder / path for path in source.targets])
            names = [str(path.relative_to(source.folder)) for path in damaged]
            outcome = worker.outcome((reader.name, names), reader.limit_s)
            if not outcome.is_fault and (taken := room_taken(source.folder)) > ROOM_BYTES:
                outcome = replace(outcome, kind="disk", what=f"{taken / 2**30:.1f} GB written")
            counts[reader.name].add(outcome, index)
            if outcome.is_fault:
                faults.append({"reader": reader.name, "index": index, "damage": done, **asdict(outcome)})
                if options.keep is not None:
                    keep(source.folder, options.keep / f"{index}")
            # At once, not when the same reader comes next: what many readers wrote would add up.
            source.restore()
            if options.index is not None:
                print(reader.name, done, outcome)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{index + 1} inputs, {len(faults)} findings", file=sys.stderr, flush=True)
                write(options, counts, faults)
    return counts, faults


def built(readers: Sequence[Reader], place: Path) -> dict[str, Source]:
    """The valid inputs, each of which must be read. In a child: whoever forks must never have computed."""
    by_name = {reader.name: reader for reader in readers}
    templates: dict[object, Path] = {}
    sources: dict[str, Source] = {}

    def make(job: tuple[str, str]) -> None:
        name, what = job
        if what == "build":
            by_name[name].build(templates[by_name[name].build])
        else:
            folder = sources[name].folder
            by_name[name].run(by_name[name].targets(folder), folder)

    for reader in readers:
        template = templates.setdefault(reader.build, place / "valid" / str(len(templates)))
        sources[reader.name] = Source(template, place / "input" / reader.name.replace(" ", "_"), reader)
    with Worker(make, limit_s=12 * LIMIT_S) as worker:
        for reader in readers:
            template = templates[reader.build]
            made = Outcome("read") if template.exists() else worker.outcome((reader.name, "build"))
            if made.kind == "read":
                sources[reader.name].restore()
                made = worker.outcome((reader.name, "read"))
            if made.kind != "read" and (made.is_fault or not reader.refuses):
                raise SystemExit(f"The valid input of '{reader.name}' cannot be made and read: {made}")
    return sources


class Source:
    """A valid input and a copy of it, of which only what was touched is copied again."""

    def __init__(self, template: Path, folder: Path, reader: Reader) -> None:
        self.template = template
        self.folder = folder
        self._reader = reader
        self._marks: dict[str, Mark] = {}

    @cached_property
    def targets(self) -> list[Path]:
        """What may be damaged, below the folder."""
        return [path.relative_to(self.template) for path in self._reader.targets(self.template)]

    def restore(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        found = entries(self.folder)
        for name, mark in found.items():
            if self._marks.get(name) != mark:
                remove(self.folder / name)
        if found != self._marks or not found:
            for name in entries(self.template):
                copy, valid = self.folder / name, self.template / name
                if copy.exists():
                    continue
                # With the time of the original, so that whatever is written later is younger.
                copy.mkdir() if valid.is_dir() else shutil.copy2(valid, copy)
            self._marks = entries(self.folder)


def entries(folder: Path, above: str = "") -> dict[str, Mark]:
    """Everything in a folder, folders before what is in them, and what tells whether it was touched."""
    found: dict[str, Mark] = {}
    with os.scandir(folder) as listed:
        for entry in sorted(listed, key=lambda one: one.name):
            stat = entry.stat(follow_symlinks=False)
            name = f"{above}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                found |= {name: (stat.st_ino, stat.st_mode), **entries(folder / entry.name, f"{name}/")}
            else:
                found[name] = (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns)
    return found


def room_taken(folder: Path) -> int:
    """Bytes on the disk, without the holes of files."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def keep(folder: Path, to: Path) -> None:
    shutil.copytree(folder, to, symlinks=True, ignore=special, dirs_exist_ok=True)


def special(folder: str, names: list[str]) -> list[str]:
    return [
        name
        for name in names
        if (path := Path(folder) / name).is_fifo() or (path.is_file() and path.stat().st_size > 2**24)
    ]


def tell(counts: Counts, faults: list[dict[str, object]], seed: int) -> None:
    kinds = (*KINDS[:2], "findings")
    print(f"{'reader':<16}" + "".join(f"{kind:>10}" for kind in kinds) + "  worst s  worst MB  ms each")
    everything = Count()
    for count in counts.values():
        everything.merge(count)
    for name, count in (*counts.items(), ("all", everything)):
        figures = (count.kinds["read"], count.kinds["refused"], count.n_findings)
        print(
            f"{name:<16}"
            + "".join(f"{figure:>10}" for figure in figures)
            + f"{count.worst_s:>9.1f}{count.worst_bytes / 2**20:>10.0f}{1000 * count.computed / max(count.total, 1):>9.0f}"
        )
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for fault in faults:
        what = str(fault["what"]).partition(":")[0]
        groups.setdefault((fault["reader"], fault["kind"], what, fault["where"]), []).append(fault)
    for key, found in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = found[0]
        print(
            f"{len(found)} x {' · '.join(str(part) for part in key)}: {first['what']} (index {first['index']}: {first['damage']})"
        )
    print(f"{everything.total} inputs, seed {seed}, {len(faults)} findings in {len(groups)} places.")


if __name__ == "__main__":
    sys.exit(main())
