"""python -m fuzz --inputs 20000 --seed 0: damaged files at every reader, counted by reader and outcome."""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

from fuzz.mutations import mutate
from fuzz.readers import READERS, Reader, preload
from fuzz.worker import LIMIT_S, Outcome, is_supported, outcome_of

KINDS = ("read", "refused", "exception", "message", "crash", "hang", "memory")


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
    with tempfile.TemporaryDirectory(prefix="gcemil-fuzz-", dir=memory if memory.is_dir() else None) as place:
        counts, faults = campaign(chosen, options, Path(place))
    write(options, counts, faults)
    tell(counts, faults, options.seed)
    return 1 if faults else 0


def write(
    options: argparse.Namespace, counts: Counter[tuple[str, str]], faults: list[dict[str, object]]
) -> None:
    if options.json is not None:
        report = {
            "seed": options.seed,
            "inputs": sum(counts.values()),
            "counts": as_table(counts),
            "faults": faults,
        }
        options.json.write_text(json.dumps(report, indent=1))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000, help="How many damaged inputs in all.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=None, help="Stop after so long.")
    parser.add_argument("--reader", choices=[reader.name for reader in READERS], help="This reader alone.")
    parser.add_argument("--index", type=int, help="This input alone, told in full.")
    parser.add_argument("--keep", type=Path, help="Copy every input that found a fault into this folder.")
    parser.add_argument("--json", type=Path, help="Write counts and faults to this file.")
    return parser.parse_args(arguments)


def campaign(
    readers: Sequence[Reader], options: argparse.Namespace, place: Path
) -> tuple[Counter[tuple[str, str]], list[dict[str, object]]]:
    """Every input in turn, readers side by side, so that a campaign that is stopped has seen all of them."""
    templates = {reader.name: built(reader, place) for reader in readers}
    counts: Counter[tuple[str, str]] = Counter()
    faults: list[dict[str, object]] = []
    ends = None if options.seconds is None else time.monotonic() + options.seconds
    indices = range(options.inputs) if options.index is None else [options.index]
    told = time.monotonic()
    for index in indices:
        if ends is not None and time.monotonic() > ends:
            break
        random = Random(f"{options.seed}/{index}")
        reader = random.choices(readers, [one.share for one in readers])[0]
        done, outcome = tried(reader, templates[reader.name], place / "input", random)
        counts[reader.name, outcome.kind] += 1
        if outcome.is_fault:
            faults.append({"reader": reader.name, "index": index, "damage": done, **asdict(outcome)})
            if options.keep is not None:
                shutil.copytree(
                    place / "input",
                    options.keep / f"{index}",
                    symlinks=True,
                    ignore=special,
                    dirs_exist_ok=True,
                )
        if options.index is not None:
            print(reader.name, done, outcome)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{index + 1} inputs, {len(faults)} faults", file=sys.stderr, flush=True)
            write(options, counts, faults)
    return counts, faults


def built(reader: Reader, place: Path) -> Path:
    """The valid input, which must be read without a word. Both in children: whoever forks must never have computed."""
    template = place / "valid" / reader.name.replace(" ", "_")
    made = outcome_of(reader.build, template, limit_s=12 * LIMIT_S)
    copy = place / "input"
    if made.kind == "read":
        shutil.copytree(template, copy)
        made = outcome_of(partial(reader.run, reader.targets(copy)), copy, limit_s=12 * LIMIT_S)
        shutil.rmtree(copy)
    if made.is_fault:
        raise SystemExit(f"The valid input of '{reader.name}' cannot be made and read: {made}")
    return template


def tried(reader: Reader, template: Path, folder: Path, random: Random) -> tuple[list[str], Outcome]:
    clear(folder)
    shutil.copytree(template, folder)
    damaged, done = mutate(random, reader.targets(folder))
    read = partial(reader.run, damaged)
    return done, outcome_of(read, folder)


def clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def special(folder: str, names: list[str]) -> list[str]:
    return [
        name
        for name in names
        if (path := Path(folder) / name).is_fifo() or (path.is_file() and path.stat().st_size > 2**24)
    ]


def as_table(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    names = sorted({name for name, _ in counts})
    return {name: {kind: counts[name, kind] for kind in KINDS if counts[name, kind]} for name in names}


def tell(counts: Counter[tuple[str, str]], faults: list[dict[str, object]], seed: int) -> None:
    print(f"{'reader':<16}" + "".join(f"{kind:>11}" for kind in KINDS))
    for name, found in as_table(counts).items():
        print(f"{name:<16}" + "".join(f"{found.get(kind, 0):>11}" for kind in KINDS))
    total = {kind: sum(count for (_, own), count in counts.items() if own == kind) for kind in KINDS}
    print(f"{'all':<16}" + "".join(f"{total[kind]:>11}" for kind in KINDS))
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for fault in faults:
        what = str(fault["what"]).partition(":")[0]
        groups.setdefault((fault["reader"], fault["kind"], what, fault["where"]), []).append(fault)
    for key, found in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = found[0]
        print(
            f"{len(found)} x {' · '.join(str(part) for part in key)}: {first['what']} (index {first['index']}: {first['damage']})"
        )
    print(f"{sum(counts.values())} inputs, seed {seed}, {len(faults)} faults in {len(groups)} places.")


if __name__ == "__main__":
    sys.exit(main())
