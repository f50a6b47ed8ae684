"""Examples that somebody has named become the anchors of a cohort (anchors_examples.h5, `anchors: examples` in cohort.yaml).

Patches are found on the slides of the cohort, or on slides outside it whose features lie in another folder, or come as a file
of features with labels. Of each slide and concept at most k are kept, which is all that any fold can take.

Everything is read and checked before anything is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
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

DEFAULT_K = 10
OUTLINES = (".geojson", ".json", ".xml")
MASKS = (".png", ".tif", ".tiff")
TABLES = (".csv", ".tsv", ".xlsx")
POOLS = (".h5", ".hdf5")


@dataclass(frozen=True)
class ExampleRequest:
    """How examples are to be found."""

    source: Path
    outside: Path | None = None
    """A folder with the features of slides that are not in the cohort."""
    k: int = DEFAULT_K
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


Found = tuple[NDArray[Any], Names, Names]
"""Features, concepts and slides of patches."""


def write_example_anchors(cohort: Cohort, request: ExampleRequest) -> ExampleReport:
    """Keep the examples in the cohort and make them its anchors."""
    if request.k < 1 or request.seed < 0 or not 0 < request.min_overlap <= 1:
        raise UsageError(
            f"Examples need k of at least 1, a seed of at least 0 and an overlap in (0, 1], got {request.k}, {request.seed} "
            f"and {request.min_overlap}."
        )
    notes: list[str] = []
    is_pool = request.source.suffix.lower() in POOLS and not request.source.is_dir()
    found = _from_pool(cohort, request) if is_pool else _from_slides(cohort, request, notes)
    return keep_examples(cohort, request, found, notes)


def keep_examples(
    cohort: Cohort,
    request: ExampleRequest,
    found: Found,
    notes: list[str],
    *,
    needs_all_folds: bool = True,
) -> ExampleReport:
    """Write the patches and name them in the card; a fold without examples is refused, or noted and left out of the report."""
    features, concepts, slides = found
    if features.shape[1] != cohort.card.feature_dim:
        raise InputError(
            f"{request.source}: examples of width {features.shape[1]}, but {cohort.folder} has width {cohort.card.feature_dim}. "
            "Examples come from the cohort's own encoder."
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


def _from_pool(cohort: Cohort, request: ExampleRequest) -> Found:
    """Patches without slides, from a file of features with labels."""
    pool = read_pool(request.source)
    known = {pool.encoder, cohort.card.encoder}
    if len(known) == 2 and "unknown" not in known:
        raise InputError(
            f"{request.source} was encoded by {pool.encoder}, the cohort by {cohort.card.encoder}. Encode the examples with the "
            "cohort's own encoder."
        )
    return pool.features, pool.labels, np.full(len(pool.labels), "", dtype=np.str_)


def _from_slides(cohort: Cohort, request: ExampleRequest, notes: list[str]) -> Found:
    generator = np.random.default_rng(request.seed)
    features, concepts, slides = [], [], []
    strangers = []
    for name, marks in _named_slides(request):
        located = _name_patches(cohort, request, name, marks, notes)
        if located is None:
            strangers.append(name)
            continue
        path, by_row = located
        rows = _choose_rows(by_row, request.k, generator)
        features.append(store.read(path, "features", np.array(rows, dtype=np.int64)))
        concepts += [by_row[row] for row in rows]
        slides += [name] * len(rows)
    if strangers:
        notes.append(
            f"{len(strangers)} slides with examples are neither in the cohort nor in a folder given with --features, the first is "
            f"'{strangers[0]}'."
        )
    if not concepts:
        why = f" ({notes[-1]})" if notes else ""
        raise InputError(
            f"{request.source} names no patch of {cohort.folder}{why}. Regions and points are level-0 pixels, and a patch counts when "
            f"{request.min_overlap:g} of it lies in a region."
        )
    if len({part.shape[1] for part in features}) > 1:
        raise InputError(
            f"Slides with examples have features of several widths. Encode them all with {cohort.card.encoder}."
        )
    return (
        np.concatenate(features),
        np.array(concepts, dtype=np.str_),
        np.array(slides, dtype=np.str_),
    )


def _choose_rows(by_row: Mapping[int, str], k: int, generator: Generator) -> list[int]:
    """Up to k rows of every concept, sorted."""
    chosen: list[int] = []
    for concept in sorted(set(by_row.values())):
        rows = [row for row, name in sorted(by_row.items()) if name == concept]
        chosen += generator.permutation(rows)[:k].tolist()
    return sorted(chosen)


Marks = Annotation | Path | Mapping[str, Path]
"""Points of a table, a file of outlines, or a mask for each concept."""


def _named_slides(request: ExampleRequest) -> Iterator[tuple[str, Marks]]:
    """Every slide that the source speaks of, and what marks its patches."""
    source = request.source
    if not source.exists():
        raise InputError(f"{source} does not exist. Give a file or a folder with examples.")
    if not source.is_dir() and source.suffix.lower() in TABLES:
        yield from read_point_table(source).items()
        return
    files = (
        sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]
    )
    marks: dict[str, Marks] = {
        find_slide_id(path): path for path in files if path.suffix.lower() in OUTLINES
    }
    marks = marks or {**_mask_files(request)}
    if not marks:
        raise InputError(
            f"{source} holds no examples. Give a table (slide, x, y, concept), <slide>.geojson or .xml, <concept>/<slide>.png, "
            "or an HDF5 file of features and labels."
        )
    yield from marks.items()


def _mask_files(request: ExampleRequest) -> dict[str, dict[str, Path]]:
    """Slide → concept → mask: a folder per concept, or one mask per slide whose values are given."""
    masks: dict[str, dict[str, Path]] = {}
    for path in sorted(request.source.glob("*" if request.mask_values else "*/*")):
        if path.suffix.lower() in MASKS:
            concepts = request.mask_values or [path.parent.name]
            masks.setdefault(find_slide_id(path), {}).update(dict.fromkeys(concepts, path))
    return masks


def _name_patches(
    cohort: Cohort, request: ExampleRequest, name: str, marks: Marks, notes: list[str]
) -> tuple[Path, dict[int, str]] | None:
    """The feature file of a slide, and its patches under the marks by concept; None for an unknown slide."""
    located = _read_grid(cohort, request, name)
    if isinstance(marks, Path):
        marks = read_annotation(
            marks, (0, 0) if located is None else read_slide_bounds(located[0], name)
        )
    if located is None:
        return None
    folder, coords, size = located
    path, least = feature_file(folder, name), request.min_overlap
    if not isinstance(marks, Annotation):
        return path, masked_patches(
            coords,
            size,
            marks,
            downsample=request.downsample,
            values=request.mask_values,
            min_overlap=least,
        )
    by_row = named_patches(coords, size, marks, least)
    notes += [f"{name}: {note} left out." for note in marks.notes]
    if lost := sorted({*marks.areas, *marks.points} - {*by_row.values()}):
        notes.append(f"{name}: no patch shows {', '.join(lost)} as annotated.")
    return path, by_row


def _read_grid(
    cohort: Cohort, request: ExampleRequest, name: str
) -> tuple[Path, NDArray[np.int64], int] | None:
    """The folder of a slide, its coordinates and its patch size; None for an unknown slide."""
    folder, card = cohort.folder, None
    if any(row.slide_id == name for row in cohort.slides):
        card = cohort.card
    elif request.outside is not None and feature_file(request.outside, name).is_file():
        folder = request.outside
    else:
        return None
    path = feature_file(folder, name)
    coords = read_coords(path)
    size = find_patch_size(folder, card, name, coords)
    if size is None:
        raise CohortError(
            f"{path}: the patch size is not known, so no region can be laid over its patches."
        )
    return folder, coords, size


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
            f"fold {index}: {n_held_out} examples lie on slides it validates or tests on and are not used there."
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
