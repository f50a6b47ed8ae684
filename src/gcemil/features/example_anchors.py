"""Named examples as the anchors of a cohort: anchors_examples.h5, `anchors: examples` in its card.

Patches are found on the slides of the cohort, or on slides outside it whose features lie in another
folder, or come as a file of features with labels. At most k per slide and concept are kept, which
is all that any fold can take.

Everything is read and checked before anything is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.bags.annotations.shapes import (
    Annotation,
    find_slide_id,
    masked_patches,
    named_patches,
    read_annotation,
    read_point_table,
)
from gcemil.bags.cohort import Cohort, feature_file, find_patch_size, read_slide_bounds
from gcemil.bags.examples import (
    EXAMPLES,
    EXAMPLES_FILE,
    ExampleSet,
    Names,
    choose_for_fold,
    write_examples,
)
from gcemil.bags.folds import fold_indices, read_fold
from gcemil.bags.store import read_coords
from gcemil.errors import CohortError, InputError, UsageError
from gcemil.files import lock_folder
from gcemil.simulation.patch_pool import read_pool

OUTLINES = (".geojson", ".json", ".xml")
MASKS = (".png", ".tif", ".tiff")
TABLES = (".csv", ".tsv", ".xlsx")
POOLS = (".h5", ".hdf5")


@dataclass(frozen=True)
class ExampleRequest:
    """How examples are searched for."""

    source: Path
    outside: Path | None = None
    """A folder with the features of slides that are not in the cohort."""
    k: int = 10
    seed: int = 0
    min_overlap: float = 0.5
    downsample: float | None = None
    mask_values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ExampleReport:
    """What was written, what every fold can use of it, and what was left out."""

    examples: ExampleSet
    per_fold: Mapping[int, Mapping[str, int]]
    notes: tuple[str, ...]


Patches = tuple[NDArray[Any], Names, Names]
"""Features, concepts and slides of patches."""
Marks = Annotation | Path | Mapping[str, Path]
"""Points of a table, a file of outlines, or a mask for each concept."""


def write_example_anchors(cohort: Cohort, request: ExampleRequest) -> ExampleReport:
    """Keep the examples in the cohort and make them its anchors."""
    if request.k < 1 or request.seed < 0 or not 0 < request.min_overlap <= 1:
        raise UsageError(
            "Examples need k of at least 1, a seed of at least 0 and an overlap in (0, 1], got "
            f"{request.k}, {request.seed} and {request.min_overlap}."
        )
    notes: list[str] = []
    if request.source.suffix.lower() not in POOLS or request.source.is_dir():
        return keep_examples(cohort, request, _read_slides(cohort, request, notes), notes)
    pool = read_pool(request.source)
    known = {pool.encoder, cohort.card.encoder}
    if len(known) == 2 and "unknown" not in known:
        raise InputError(
            f"{request.source} was encoded by {pool.encoder}, the cohort by {cohort.card.encoder}. "
            "Encode the examples with the cohort's own encoder."
        )
    patches = pool.features, pool.labels, np.full(len(pool.labels), "", dtype=np.str_)
    return keep_examples(cohort, request, patches, notes)


def keep_examples(
    cohort: Cohort,
    request: ExampleRequest,
    patches: Patches,
    notes: list[str],
    *,
    needs_all_folds: bool = True,
) -> ExampleReport:
    """Write the examples and name them in the card; a fold without any is refused or noted."""
    features, concepts, slides = patches
    if features.shape[1] != cohort.card.feature_dim:
        raise InputError(
            f"{request.source}: examples of width {features.shape[1]}, but {cohort.folder} has "
            f"width {cohort.card.feature_dim}. Examples come from the cohort's own encoder."
        )
    encoder, source = cohort.card.encoder, request.source.name
    examples = ExampleSet(features, concepts, slides, request.k, request.seed, encoder, source)
    indices, per_fold = fold_indices(cohort.folder), {}
    for index in indices:
        try:
            per_fold[index] = _count_usable(cohort, examples, index, notes)
        except CohortError as error:
            if needs_all_folds:
                raise
            notes.append(str(error))
    if not indices:
        notes.append(
            "The cohort has no folds yet; training checks that each has examples of every concept."
        )
    card = cohort.card.model_copy(update={"anchors": EXAMPLES})
    with lock_folder(cohort.folder):
        write_examples(cohort.folder / EXAMPLES_FILE, examples)
        replace(cohort, card=card).save_card()
    return ExampleReport(examples, per_fold, tuple(notes))


def _read_slides(cohort: Cohort, request: ExampleRequest, notes: list[str]) -> Patches:
    """Up to k patches of every concept of every slide that the source marks."""
    generator = np.random.default_rng(request.seed)
    features, concepts, slides, strangers = [], [], [], []
    for name, marks in _read_marks(request).items():
        named = _name_patches(cohort, request, name, marks, notes)
        if named is None:
            strangers.append(name)
            continue
        path, by_row = named
        chosen: list[int] = []
        for concept in sorted(set(by_row.values())):
            rows = [row for row, own in sorted(by_row.items()) if own == concept]
            chosen += generator.permutation(rows)[: request.k].tolist()
        features.append(store.read(path, "features", np.array(sorted(chosen), dtype=np.int64)))
        concepts += [by_row[row] for row in sorted(chosen)]
        slides += [name] * len(chosen)
    if strangers:
        notes.append(
            f"{len(strangers)} slides with examples are neither in the cohort nor in a folder "
            f"given with --features, the first is '{strangers[0]}'."
        )
    if not concepts:
        why = f" ({notes[-1]})" if notes else ""
        raise InputError(
            f"{request.source} names no patch of {cohort.folder}{why}. Regions and points are "
            f"level-0 pixels, and a patch counts when {request.min_overlap:g} of it lies in a "
            "region."
        )
    if len({part.shape[1] for part in features}) > 1:
        raise InputError(
            "Slides with examples have features of several widths. "
            f"Encode them all with {cohort.card.encoder}."
        )
    names = np.array(slides, dtype=np.str_)
    return np.concatenate(features), np.array(concepts, dtype=np.str_), names


def _read_marks(request: ExampleRequest) -> Mapping[str, Marks]:
    """Every slide of the source, and what marks its patches."""
    source = request.source
    if not source.exists():
        raise InputError(f"{source} does not exist. Give a file or a folder with examples.")
    if not source.is_dir() and source.suffix.lower() in TABLES:
        return read_point_table(source)
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    if outlines := [one for one in files if one.suffix.lower() in OUTLINES and one.is_file()]:
        return {find_slide_id(path): path for path in outlines}
    # A folder per concept, or one mask per slide whose values are given.
    masks: dict[str, dict[str, Path]] = {}
    for path in sorted(source.glob("*" if request.mask_values else "*/*")):
        if path.suffix.lower() in MASKS:
            concepts = request.mask_values or [path.parent.name]
            masks.setdefault(find_slide_id(path), {}).update(dict.fromkeys(concepts, path))
    if not masks:
        raise InputError(
            f"{source} holds no examples. Give a table (slide, x, y, concept), <slide>.geojson or "
            ".xml, <concept>/<slide>.png, or an HDF5 file of features and labels."
        )
    return masks


def _name_patches(
    cohort: Cohort, request: ExampleRequest, name: str, marks: Marks, notes: list[str]
) -> tuple[Path, dict[int, str]] | None:
    """The feature file of a slide and its marked patches; None for an unknown slide."""
    is_ours = any(row.slide_id == name for row in cohort.slides)
    folder = cohort.folder if is_ours else request.outside
    if folder is None or not (is_ours or feature_file(folder, name).is_file()):
        if isinstance(marks, Path):
            read_annotation(marks, (0, 0))
        return None
    path, least = feature_file(folder, name), request.min_overlap
    coords = read_coords(path)
    size = find_patch_size(folder, cohort.card if is_ours else None, name, coords)
    if size is None:
        raise CohortError(
            f"{path}: the patch size is not known, so no region can be laid over its patches."
        )
    if isinstance(marks, Path):
        marks = read_annotation(marks, read_slide_bounds(folder, name))
    if not isinstance(marks, Annotation):
        values, step = request.mask_values, request.downsample
        return path, masked_patches(
            coords, size, marks, downsample=step, values=values, min_overlap=least
        )
    by_row = named_patches(coords, size, marks, least)
    notes += [f"{name}: {note} left out." for note in marks.notes]
    if lost := sorted({*marks.areas, *marks.points} - {*by_row.values()}):
        notes.append(f"{name}: no patch shows {', '.join(lost)} as annotated.")
    return path, by_row


def _count_usable(
    cohort: Cohort, examples: ExampleSet, index: int, notes: list[str]
) -> dict[str, int]:
    """How many examples of each concept a fold takes; one without any is refused."""
    fold = read_fold(cohort, index)
    try:
        rows, n_held_out = choose_for_fold(examples, [*fold.slides("val"), *fold.slides("test")])
    except CohortError as error:
        raise CohortError(f"Fold {index}: {error}") from error
    counts = {name: len(chosen) for name, chosen in rows.items()}
    if n_held_out:
        notes.append(
            f"fold {index}: {n_held_out} examples lie on slides it validates or tests on and are "
            "not used there."
        )
    if few := [f"{name} {count}" for name, count in counts.items() if count < examples.k]:
        notes.append(f"fold {index}: fewer than {examples.k} examples of {', '.join(few)}.")
    return counts


def summarise(report: ExampleReport) -> Sequence[str]:
    """What was kept, in lines."""
    counts = Counter(report.examples.concepts.tolist())
    slides = len({name for name in report.examples.slides.tolist() if name})
    where = f"on {slides} slides" if slides else "without slides"
    return (
        f"{len(counts)} concepts, {len(report.examples.concepts)} examples {where}: "
        + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())),
        *report.notes,
    )
