"""python -m fuzz --inputs 2000 --seed 0: damaged files at every command that reads files. Every input is read or refused in one sentence."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from builders.commands import gcemil
from fuzz.damage import damage_file
from fuzz.inputs import INPUTS, Input
from gcemil.errors import describe_fault


@dataclass(frozen=True)
class Finding:
    """A fault that no user should see."""

    index: int
    name: str
    damage: str
    what: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000, help="How many damaged inputs in all.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--index", type=int, help="This input alone.")
    parser.add_argument("--only", choices=INPUTS, help="Damage this kind of input alone.")
    options = parser.parse_args(arguments)
    names = [options.only] if options.only else list(INPUTS)
    indices = range(options.inputs) if options.index is None else [options.index]
    with tempfile.TemporaryDirectory(prefix="gcemil-fuzz-") as place:
        counts, findings = run_campaign(names, options.seed, indices, Path(place))
    for (name, outcome), count in sorted(counts.items()):
        print(f"{name:<16}{outcome:<10}{count:>6}")
    for finding in findings:
        print(f"index {finding.index}, {finding.name}, {finding.damage}: {finding.what}")
    print(f"{counts.total()} inputs, seed {options.seed}, {len(findings)} findings.")
    return 1 if findings else 0


def run_campaign(
    names: Sequence[str], seed: int, indices: Iterable[int], place: Path
) -> tuple[Counter[tuple[str, str]], list[Finding]]:
    """Damage one file of one input at a time and read it; the same seed and index give the same input."""
    counts: Counter[tuple[str, str]] = Counter()
    findings: list[Finding] = []
    for index in indices:
        random = Random(f"{seed}/{index}")
        name = random.choices(names, [INPUTS[one].share for one in names])[0]
        folder = lay_out(INPUTS[name], place)
        damaged = random.choice(list_targets(folder, INPUTS[name]))
        damage = f"{damage_file(random, damaged)} {damaged.relative_to(folder)}"
        outcome = read_input(INPUTS[name], folder, damaged)
        is_good = outcome in ("read", "refused")
        counts[name, outcome if is_good else "finding"] += 1
        findings += [] if is_good else [Finding(index, name, damage, outcome)]
    return counts, findings


def lay_out(given: Input, place: Path) -> Path:
    """The valid input, made once and always at the same place, since runs remember where their cohort is."""
    name = str(list(dict.fromkeys(one.build for one in INPUTS.values())).index(given.build))
    valid, folder = place / "valid" / name, place / "input" / name
    if not valid.exists():
        folder.mkdir(parents=True)
        given.build(folder)
        shutil.copytree(folder, valid, symlinks=True)
    shutil.rmtree(folder)
    shutil.copytree(valid, folder, symlinks=True)
    return folder


def list_targets(folder: Path, given: Input) -> list[Path]:
    """Files that may be damaged."""
    return sorted(
        {path for pattern in given.files for path in folder.glob(pattern) if path.is_file()}
    )


def read_input(given: Input, folder: Path, damaged: Path) -> str:
    """'read', 'refused', or what went wrong, over all that reads this input."""
    outcome = "read"
    with contextlib.chdir(folder):
        for read in given.reads:
            error: BaseException | None = None
            if isinstance(read, str):
                words = [
                    word.format(damaged=damaged.relative_to(folder)) for word in shlex.split(read)
                ]
                result = gcemil(*words)
                error = result.exception
                if not result.output.replace("\n", "").replace("\t", "").isprintable():
                    return f"unprintable output of '{read}'"
            else:
                try:
                    read(folder)
                except Exception as raised:
                    error = raised
            if isinstance(error, SystemExit):
                outcome = "refused" if error.code else outcome
            elif error is not None:
                sentence = describe_fault(error)
                if sentence is None or not sentence.isprintable():
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    return f"{type(error).__name__}: {str(error)[:200]} ({frame.filename}:{frame.lineno})"
                outcome = "refused"
    return outcome


if __name__ == "__main__":
    sys.exit(main())
