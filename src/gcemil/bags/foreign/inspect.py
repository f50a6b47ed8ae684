"""What a file or folder is, what is wrong with it, and the command to run next."""

from __future__ import annotations

import re
from pathlib import Path

from gcemil.bags.cohort import Cohort, read_card
from gcemil.bags.folds import fold_indices
from gcemil.bags.foreign.detect import TRIDENT_RUN, first_h5, tool_of
from gcemil.bags.foreign.inspect_hdf5 import inspect_hdf5
from gcemil.bags.foreign.inspect_text import inspect_array, inspect_geojson, inspect_json, inspect_table
from gcemil.bags.foreign.inspection import Inspection
from gcemil.bags.strangers import strangers_files
from gcemil.errors import InputError, error_text

READERS = {
    **dict.fromkeys((".h5", ".hdf5"), inspect_hdf5),
    **dict.fromkeys((".pt", ".npy"), inspect_array),
    **dict.fromkeys((".csv", ".tsv", ".xlsx", ".xlsm"), inspect_table),
    ".json": inspect_json,
    ".geojson": inspect_geojson,
}
SAMPLE = 16


def inspect(path: Path) -> Inspection:
    """What this file or folder is."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be looked at ({error_text(error)}). Check the path.") from error
    if not is_there:
        raise InputError(f"{path} does not exist.")
    with strangers_files():
        return _inspect_folder(path) if path.is_dir() else _inspect_file(path)


def _inspect_file(path: Path) -> Inspection:
    if path.name == "cohort.yaml":
        return _inspect_cohort(path.parent)
    reader = READERS.get(path.suffix.lower())
    return _unknown(path, f"suffix {path.suffix or '(none)'}") if reader is None else reader(path)


def _inspect_folder(path: Path) -> Inspection:
    if (path / "cohort.yaml").is_file():
        return _inspect_cohort(path)
    if (path / "config.yaml").is_file() and any(path.glob("fold_*")):
        return _inspect_run(path)
    if any(re.match(r"(splits|fold)_\d+\.csv$", found.name) for found in path.iterdir()):
        files = sorted(found.name for found in path.glob("*.csv"))
        return Inspection(
            path,
            "splits",
            "Folder of splits",
            (("files", ", ".join(files)),),
            (),
            f"gcemil import FEATURES --labels TABLE --splits {path} --out COHORT",
        )
    if (path / "bags_config.json").is_file():
        return Inspection(
            path,
            "slideflow_bags",
            "slideflow bags",
            (("files", str(len(list(path.glob("*.pt"))))),),
            ("slideflow bags are recognised but not imported.",),
            None,
        )
    if not any(path.glob("*.h5")) and any(TRIDENT_RUN.search(found.name) for found in path.iterdir()):
        return _inspect_trident_job(path)
    tool = tool_of(path)
    if tool is None:
        first = first_h5(path)
        return _unknown(path, "no features") if first is None else _inspect_files(path, None)
    return _inspect_files(path, tool)


def _inspect_cohort(path: Path) -> Inspection:
    card = read_card(path)
    facts = [("name", card.name), ("task", card.task), ("feature dimension", str(card.feature_dim))]
    facts += [("classes", ", ".join(card.classes))] if card.classes else []
    facts += [
        ("encoder", card.encoder),
        ("patch size", f"{card.patch_size_level0 or 'unknown'} level-0 px"),
        ("anchors", str(card.anchors)),
    ]
    try:
        cohort = Cohort.load(path)
    except InputError as error:
        return Inspection(
            path, "cohort", "Cohort of gcemil", tuple(facts), (str(error),), f"gcemil validate {path}"
        )
    folds = fold_indices(path)
    facts += [
        ("slides", str(len(cohort.slides))),
        ("cases", str(len({row.case_id for row in cohort.slides}))),
        ("folds", str(len(folds))),
    ]
    missing = [row.slide_id for row in cohort.slides if not cohort.feature_file(row.slide_id).is_file()]
    problems = tuple(f"'{name}' has no feature file, or its link is broken." for name in missing)
    command = f"gcemil validate {path}" if folds else f"gcemil split {path}"
    return Inspection(path, "cohort", "Cohort of gcemil", tuple(facts), problems, command)


def _inspect_run(path: Path) -> Inspection:
    folds = sorted(found.name for found in path.glob("fold_*") if found.is_dir())
    done = [fold for fold in folds if (path / fold / "metrics.json").is_file()]
    facts = (("folds", ", ".join(folds)), ("finished", ", ".join(done) or "none"))
    problems = tuple(f"{fold} has no metrics.json: it did not finish." for fold in folds if fold not in done)
    return Inspection(path, "run", "Run of gcemil", facts, problems, f"gcemil report {path}")


def _inspect_trident_job(path: Path) -> Inspection:
    runs = sorted(found for found in path.iterdir() if TRIDENT_RUN.search(found.name))
    facts = [
        (f"{run.name}/{folder.name}", f"{len(list(folder.glob('*.h5')))} files")
        for run in runs
        for folder in sorted(run.iterdir())
        if folder.is_dir()
    ]
    features = [f"{run.name}/{folder.name}" for run in runs for folder in sorted(run.glob("features_*"))]
    problems = () if features else ("No patch features yet: run TRIDENT's feature extraction.",)
    command = f"gcemil import {path / features[0]} --labels TABLE --out COHORT" if features else None
    return Inspection(path, "trident_job", "TRIDENT job folder", tuple(facts), problems, command)


def _inspect_files(path: Path, tool: str | None) -> Inspection:
    """A folder of feature files, by a sample of them."""
    files = sorted(found for found in path.rglob("*") if found.suffix in {".h5", ".pt", ".npy"})
    sample = files[:: max(1, len(files) // SAMPLE)][:SAMPLE]
    seen = [inspect(found) for found in sample]
    first = seen[0]
    kinds = sorted({one.kind for one in seen})
    facts = (
        ("files", str(len(files))),
        ("looked at", str(len(sample))),
        ("kinds", ", ".join(kinds)),
        *first.facts,
    )
    problems = tuple(f"{one.path.name}: {problem}" for one in seen for problem in one.problems)
    options = " --mpp MPP" if tool == "stamp" else ""
    command = f"gcemil import {path} --labels TABLE{options} --out COHORT" if tool else first.next_command
    title = {
        "clam": "CLAM features",
        "trident": "TRIDENT features",
        "stamp": "STAMP features",
        "torchmil": "torchmil bags",
    }
    return Inspection(
        path,
        f"{tool}_folder" if tool else first.kind,
        title.get(tool or "", first.title),
        facts,
        problems,
        command,
    )


def _unknown(path: Path, why: str) -> Inspection:
    return Inspection(path, "unknown", "Nothing gcemil knows", (("because", why),), (), None)


__all__ = ["Inspection", "inspect"]
