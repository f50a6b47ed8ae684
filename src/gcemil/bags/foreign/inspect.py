"""What a file or folder is, what is wrong with it, and the command to run next.

HDF5 files are known by the names of their datasets and the attributes that tools leave behind;
tables by their columns.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gcemil.bags import store
from gcemil.bags.cohort import Cohort, read_card
from gcemil.bags.folds import fold_indices
from gcemil.bags.foreign import trident
from gcemil.bags.foreign.clam import read_tensor_shape
from gcemil.bags.foreign.label_tables import find_measurement, read_labels
from gcemil.bags.foreign.layouts import find_file_layout, find_first_h5, find_layout
from gcemil.bags.foreign.source import (
    UNKNOWN_ENCODER,
    FeatureLayout,
    ReadOptions,
    plain_id,
    squeeze_bag,
)
from gcemil.bags.foreign.splits import has_splits, read_splits
from gcemil.bags.foreign.torchmil import read_array
from gcemil.bags.tables import has_columns, list_columns, read_frame
from gcemil.errors import GcemilError, InputError, UsageError, error_text
from gcemil.files import read_json
from gcemil.wording import is_there, near_path

_SAMPLE = 16
_MOST_TABLES = 20
"""Tables that are opened to find the label table of a features folder."""
_ARRAYS = {".h5", ".pt", ".npy"}
_TABLES = (".csv", ".tsv", ".xlsx", ".xlsm")
PLACEHOLDERS = {
    "TABLE": "TABLE is your label table, with a column of slides and one of labels",
    "FEATURES": "FEATURES is the folder of feature files",
    "SLIDES": "SLIDES is the table of PATIENT and FILENAME",
    "COLUMN": "COLUMN is what to predict",
    "MPP": "MPP is the micrometres per level-0 pixel, or a table of them",
}
"""Placeholders for what a command cannot fill in."""
Facts = tuple[tuple[str, str], ...]
# Datasets that must all be there → kind and title; the first that fits wins.
KINDS: tuple[tuple[frozenset[str], str, str], ...] = (
    (frozenset({"embeddings", "prompts"}), "anchors", "Anchors of gcemil"),
    (frozenset({"features", "anchor_space"}), "anchor_pairs", "Anchor pairs of gcemil"),
    (frozenset({"selected", "gates"}), "evidence", "Evidence of gcemil"),
    (frozenset({"evidence"}), "truth", "Patch truth of gcemil"),
    (frozenset({"attention_scores", "coords"}), "clam_heatmap", "CLAM heatmap scores"),
    (frozenset({"imgs", "coords"}), "clam_images", "CLAM patch images (old pipeline)"),
)


@dataclass(frozen=True)
class Inspection:
    """What a file is, facts about it, what is wrong with it, and the next command."""

    path: Path
    kind: str
    title: str
    facts: Facts
    problems: tuple[str, ...] = ()
    next_command: str | None = None


def inspect(path: Path) -> Inspection:
    """What this file or folder is."""
    if not is_there(path):
        raise InputError(f"{path} does not exist.{near_path(path)} Give a file or a folder.")
    if path.is_dir():
        return _inspect_folder(path)
    if path.name == "cohort.yaml":
        return _inspect_cohort(path.parent)
    if reader := READERS.get(path.suffix.lower()):
        return reader(path)
    return _report_unknown(path, f"suffix {path.suffix or '(none)'}")


def _inspect_folder(path: Path) -> Inspection:
    if (path / "cohort.yaml").is_file():
        return _inspect_cohort(path)
    if (path / "config.yaml").is_file() and any(path.glob("fold_*")):
        return _inspect_run(path)
    if any(re.match(r"(splits|fold)_\d+\.csv$", file.name) for file in path.iterdir()):
        files = sorted(file.name for file in path.glob("*.csv"))
        return _report_splits(path, "Folder of splits", (("files", ", ".join(files)),))
    if (path / "bags_config.json").is_file():
        facts = (("files", str(len(list(path.glob("*.pt"))))),)
        problem = "slideflow bags are recognised but not imported."
        return Inspection(path, "slideflow_bags", "slideflow bags", facts, (problem,))
    if folders := trident.find_job_folders(path):
        counts = tuple(
            (str(own.relative_to(path)), f"{len(list(own.glob('*.h5')))} files") for own in folders
        )
        features = [own for own in folders if own.name.startswith(trident.PREFIX)]
        problems = () if features else ("No patch features yet: run TRIDENT's feature extraction.",)
        command = _import_command(features[0]) if features else None
        return Inspection(path, "trident_job", "TRIDENT job folder", counts, problems, command)
    layout = find_layout(path)
    if layout is None and find_first_h5(path) is None:
        return _report_unknown(path, "no features")
    return _inspect_features(path, layout)


def _inspect_cohort(path: Path) -> Inspection:
    card = read_card(path)
    facts = {
        "name": card.name,
        "task": card.task,
        "feature dimension": card.feature_dim,
        **({"classes": ", ".join(card.classes)} if card.classes else {}),
        "encoder": card.encoder,
        "patch size": f"{card.patch_size_level0 or 'unknown'} level-0 px",
        "anchors": card.anchors,
    }
    command, problems = f"gcemil validate {_quote(path)}", []
    try:
        cohort, folds = Cohort.load(path), fold_indices(path)
        cases = len({row.case_id for row in cohort.slides})
        facts |= {"slides": len(cohort.slides), "cases": cases, "folds": len(folds)}
        files = (cohort.feature_file(row.slide_id) for row in cohort.slides)
        problems = [store.describe_absence(file) for file in files if not file.is_file()]
        command = command if folds else f"gcemil split {_quote(path)}"
    except InputError as error:
        problems = [str(error)]
    lines = tuple((name, str(value)) for name, value in facts.items())
    return Inspection(path, "cohort", "Cohort of gcemil", lines, tuple(problems), command)


def _inspect_run(path: Path) -> Inspection:
    folds = sorted(file.name for file in path.glob("fold_*") if file.is_dir())
    done = [fold for fold in folds if (path / fold / "metrics.json").is_file()]
    facts = (("folds", ", ".join(folds)), ("finished", ", ".join(done) or "none"))
    problems = tuple(
        f"{fold} has no metrics.json: it did not finish." for fold in folds if fold not in done
    )
    return Inspection(
        path, "run", "Run of gcemil", facts, problems, f"gcemil report {_quote(path)}"
    )


def _inspect_features(path: Path, layout: FeatureLayout | None) -> Inspection:
    """A folder of feature files, by a sample; a problem of several files is named once."""
    files = sorted(file for file in path.rglob("*") if file.suffix in _ARRAYS)
    sample = [inspect(file) for file in files[:: max(1, len(files) // _SAMPLE)][:_SAMPLE]]
    kinds = ", ".join(sorted({one.kind for one in sample}))
    names: dict[str, list[str]] = {}
    for one in sample:
        for problem in one.problems:
            # The remedy of a file works for its folder too.
            whole = problem.replace(_quote(one.path), _quote(path))
            names.setdefault(whole, []).append(one.path.name)
    problems = tuple(
        f"{own[0] if len(own) == 1 else f'{len(own)} of {len(sample)} files looked at'}: {problem}"
        for problem, own in names.items()
    )
    kinds = ", ".join(sorted({one.kind for one in sample}))
    counts = (("files", str(len(files))), ("looked at", str(len(sample))), ("kinds", kinds))
    summary = replace(sample[0], path=path, facts=(*counts, *sample[0].facts), problems=problems)
    if layout is None:
        return summary
    command = _import_command(path, layout.needs)
    return replace(summary, kind=f"{layout.tool}_folder", title=layout.title, next_command=command)


def _import_command(features: Path, needs: str = "") -> str:
    """The import of a features folder, with a label table near it that names its slides."""
    table = find_label_table(features)
    labels = "TABLE" if table is None else _quote(table)
    out = _propose_out(features)
    return f"gcemil import {_quote(features)} --labels {labels}{needs} --out {out}"


def find_label_table(features: Path) -> Path | None:
    """A table beside the features, or up to two folders above, whose slides have features here."""
    known = {plain_id(file.name) for file in features.rglob("*") if file.suffix in _ARRAYS}
    tables: list[Path] = []
    for folder in (features, features.parent, features.parent.parent):
        with suppress(OSError):
            tables += sorted(one for one in folder.iterdir() if one.suffix in _TABLES)
    for path in tables[:_MOST_TABLES]:
        with suppress(GcemilError, OSError):
            if known & {row.slide_id for row in read_labels(path).rows}:
                return path
    return None


def _propose_out(path: Path) -> str:
    """A folder for the cohort, by the name of what it comes from."""
    return _quote(Path("cohorts") / (path.resolve().stem or "mine"))


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def _report_splits(path: Path, title: str, facts: Facts) -> Inspection:
    out = _propose_out(path)
    command = f"gcemil import FEATURES --labels TABLE --splits {_quote(path)} --out {out}"
    return Inspection(path, "splits", title, facts, next_command=command)


def _report_unknown(path: Path, why: str) -> Inspection:
    return Inspection(path, "unknown", "Nothing known", (("because", why),))


def _inspect_hdf5(path: Path) -> Inspection:
    """The kind, shape and chunks of an HDF5 file, and for features the facts of their layout."""
    datasets = store.describe(path)
    kind, title, layout = _find_kind(path, datasets)
    facts, problems, command = [], [], None
    for name, one in datasets.items():
        stored = f"chunks {one.chunks}" if one.chunks else "contiguous"
        facts.append((name, f"{one.shape} {one.dtype}, {stored}"))
        if one.is_slow:
            problems.append(
                f"'{name}' is stored in chunks of {one.chunks}, which reads an order of magnitude "
                f"slower: gcemil import {_quote(path)} --repack"
            )
    if layout is not None:
        command = _import_command(path.parent, layout.needs)
        try:
            more, slide_problems = _describe_slide(layout, path)
            facts, problems = [*facts, *more], [*problems, *slide_problems]
        except (InputError, UsageError) as error:
            problems.append(str(error))
    elif kind == "clam_coords":
        command = (
            f"gcemil import FEATURES --coords-dir {_quote(path.parent)} --labels TABLE "
            f"--out {_propose_out(path.parent)}"
        )
    return Inspection(path, kind, title, tuple(facts), tuple(problems), command)


def _find_kind(path: Path, datasets: Mapping[str, Any]) -> tuple[str, str, FeatureLayout | None]:
    """Kind and title of an HDF5 file, and its layout where it holds patch features of a tool."""
    for needed, kind, title in KINDS:
        if needed <= set(datasets):
            return kind, title, None
    layout = find_file_layout(path)
    if layout is not None:
        if "features" in datasets and len(datasets["features"].shape) == 1:
            return "slide_vector", "Slide-level vector (TRIDENT slide_features)", None
        if set(datasets) == {"features"}:
            return "features", "Features without coordinates", layout
        return f"{layout.tool}_features", layout.title, layout
    if "coords" not in datasets:
        return "unknown", "Unknown HDF5 file", None
    if trident.OWN_ATTRIBUTES & set(store.attributes(path, "coords")):
        return "trident_patches", "TRIDENT patch coordinates", None
    return "clam_coords", "CLAM patch coordinates", None


def _describe_slide(layout: FeatureLayout, path: Path) -> tuple[Facts, list[str]]:
    """Encoder, patch size and unit of a feature file, and what is wrong with it."""
    # At one micrometre per pixel, coordinates in micrometres stay as they are.
    slide = layout.read_slide(path, plain_id(path.name), ReadOptions(mpp=1.0))
    facts, problems = [] if slide.encoder == UNKNOWN_ENCODER else [("encoder", slide.encoder)], []
    if not slide.n_patches:
        problems.append("No patches: the tool found no tissue. The slide is left out on import.")
    elif slide.has_coords:
        unit = "micrometres" if "--mpp" in layout.needs else "level-0 px"
        source = "from the attributes"
        if slide.size_is_inferred:
            source = "the stride; the file does not say it"
        size = "unknown" if slide.patch_size is None else f"{slide.patch_size} {unit} ({source})"
        facts += [("patch size", size), ("coordinates", unit)]
        if unit != "micrometres":
            problem = store.coords_problem(squeeze_bag(store.read(path, "coords")))
            problems += [f"{problem}."] if problem else []
    return tuple(facts), problems


def _inspect_table(path: Path) -> Inspection:
    """The dialect of a label table, or the kind of split file."""
    table = read_frame(path)
    facts = [("columns", list_columns(table)), ("rows", str(len(table)))]
    command = f"gcemil import FEATURES --labels {_quote(path)}"
    out = f"--out {_propose_out(path)}"
    if has_columns(table, "minx", "miny", "width", "height"):
        return Inspection(path, "wsinfer", "wsinfer patch predictions", tuple(facts))
    if "PATIENT" in table and "FILENAME" not in table:
        command = f"{command} --slide-table SLIDES --target COLUMN {out}"
        title = "STAMP clinical table"
        return Inspection(path, "labels", title, tuple(facts), next_command=command)
    try:
        labels = read_labels(path)
    except (InputError, UsageError) as error:
        if has_splits(table):
            return _report_splits(path, "Split table", tuple(facts))
        return Inspection(path, "table", "Table", tuple(facts), (str(error),))
    facts += [("task", labels.task), ("slides with a target", str(len(labels.rows)))]
    facts += [("classes", ", ".join(labels.classes))] if labels.classes else []
    facts += [("assumed", line) for line in labels.assumptions]
    task = " --task regression" if find_measurement(labels.rows) else ""
    title = f"{labels.dialect} label table"
    return Inspection(
        path, "labels", title, tuple(facts), labels.excluded, f"{command}{task} {out}"
    )


def _inspect_json(path: Path) -> Inspection:
    try:
        splits = read_splits(path)
    except InputError:
        return Inspection(path, "unknown", "Unknown JSON file", ())
    return _report_splits(path, "STAMP splits", (("folds", str(len(splits.folds))),))


def _inspect_geojson(path: Path) -> Inspection:
    """A GeoJSON file, with what would make QuPath fail or misread it."""
    problems: Counter[str] = Counter()
    try:
        content = read_json(path)
        features = content["features"] if isinstance(content, dict) else content
        for feature in features:
            properties = feature.get("properties") or {}
            named = properties.get("classification")
            if isinstance(named, dict) and not named.keys() & {"color", "colorRGB"}:
                problems["A classification without colour: QuPath refuses the file."] += 1
            if "objectType" in feature and "objectType" not in properties:
                problems["objectType outside properties: QuPath imports an annotation."] += 1
    except (InputError, KeyError, TypeError, AttributeError) as error:
        because = (("because", error_text(error)),)
        return Inspection(path, "unknown", "No GeoJSON feature collection", because)
    counted = tuple(f"{problem} ({count} objects)" for problem, count in problems.items())
    return Inspection(
        path, "geojson", "GeoJSON annotations", (("objects", str(len(features))),), counted
    )


def _inspect_array(path: Path) -> Inspection:
    """A bare tensor (.pt) or array (.npy) of features."""
    if path.suffix != ".pt":
        shape = tuple(read_array(path, "features").shape)
        return Inspection(path, "array", "NumPy array (torchmil)", (("shape", str(shape)),))
    facts = (("shape", str(read_tensor_shape(path))),)
    problem = "No coordinates in this file: keep CLAM's coords folder beside it."
    command = _import_command(path.parent)
    return Inspection(
        path, "clam_tensor", "CLAM features as a bare tensor", facts, (problem,), command
    )


READERS = {
    **dict.fromkeys((".h5", ".hdf5"), _inspect_hdf5),
    **dict.fromkeys((".pt", ".npy"), _inspect_array),
    **dict.fromkeys(_TABLES, _inspect_table),
    ".json": _inspect_json,
    ".geojson": _inspect_geojson,
}
