"""Every check of a cohort in one pass: all problems with the slide and the remedy on each line.

An error stops training; a warning is recorded in the run.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gcemil.bags import store
from gcemil.bags.cohort import CohortCard, Problem, SlideRow, feature_file, read_card, read_slides
from gcemil.bags.examples import EXAMPLES, EXAMPLES_FILE, read_examples
from gcemil.bags.folds import (
    PARTS,
    check_fold,
    fold_faults,
    fold_indices,
    read_parts,
    split_file,
    target_problems,
)
from gcemil.bags.tables import is_plain_id, read_table
from gcemil.errors import CohortError, InputError, StoreError


def validate(folder: Path, on_slide: Callable[[int, int], None] | None = None) -> list[Problem]:
    """All problems of the cohort in this folder; `on_slide(done, total)` reports progress."""
    try:
        card = read_card(folder)
        slides, problems = read_slides(read_table(folder / "slides.csv", card.columns), card)
    except InputError as fault:
        return [_from_exception(str(folder), fault)]
    problems += target_problems(slides)
    if not slides:
        problems.append(Problem("slides.csv", "the table has no slides", "Add a line per slide."))
    else:
        problems += _class_problems(slides, card)
    # Files before splits: nothing else helps before a missing file is back.
    problems += _file_problems(slides, card, folder, on_slide)
    return [*problems, *_split_problems(slides, card, folder)]


def refuse_errors(folder: Path, problems: list[Problem]) -> None:
    """Raise one sentence for all errors: how many, and the first with its remedy."""
    if errors := select_errors(problems):
        first = errors[0]
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors; the first"
        raise CohortError(
            f"{folder} has {count}: {first.where}: {first.what}. {first.remedy} "
            f"See all with 'gcemil validate {folder}'."
        )


def select_errors(problems: list[Problem]) -> list[Problem]:
    """The problems that stop training."""
    return [problem for problem in problems if problem.level == "error"]


def group_problems(problems: list[Problem]) -> list[Problem]:
    """Equal problems once, in order; `where` then counts the others."""
    groups: dict[tuple[str, str, str], list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[problem.level, problem.what, problem.remedy].append(problem)
    return [
        replace(first, where=f"{first.where} and {len(others)} more") if others else first
        for first, *others in groups.values()
    ]


def _from_exception(where: str, error: InputError, remedy: str = "") -> Problem:
    """An exception as a problem, with this remedy or else the one of its message."""
    what, _, stated = str(error).partition(". ")
    remedy = remedy or stated or "Correct the file named, then validate again."
    return Problem(where, what.removesuffix("."), remedy)


def _class_problems(slides: list[SlideRow], card: CohortCard) -> Iterator[Problem]:
    """Classes without a slide, and targets that are alike on every slide."""
    remedy = "Remove the {} from cohort.yaml, or add slides."
    for index, name in enumerate(card.classes):
        if card.task == "classification":
            if all(slide.label != name for slide in slides):
                yield Problem(name, "the class has no slide", remedy.format("class"))
        elif len(values := {slide.labels[index] for slide in slides} - {None}) < 2:
            what = f"the target is {values.pop() if values else 'missing'} on every slide"
            yield Problem(name, what, remedy.format("target"))


def _split_problems(slides: list[SlideRow], card: CohortCard, folder: Path) -> Iterator[Problem]:
    slide_of = {slide.slide_id: slide for slide in slides}
    case_of = {name: slide.case_id for name, slide in slide_of.items()}
    try:
        # Published splits may place slides that the cohort leaves out.
        placed_here = {
            index: {
                name: part for name, part in read_parts(folder, index).items() if name in slide_of
            }
            for index in fold_indices(folder)
        }
        faults = fold_faults(folder, placed_here)
    except InputError as fault:
        yield _from_exception("splits", fault, f"Run 'gcemil split {folder} --force'.")
        return
    remedy = (
        f"Make the folds again with 'gcemil split {folder} --force', or, where they are published "
        f"splits, say so with 'gcemil split {folder} --official'."
    )
    yield from (Problem("splits", what, remedy) for what in faults)
    for index, placed in placed_here.items():
        name = split_file(folder, index).name
        yield from check_fold(case_of, placed, name)
        for part in PARTS:
            own = [slide_of[slide_id] for slide_id, one in placed.items() if one == part]
            if what := _find_part_fault(own, part, card):
                merge = ", or merge classes" if card.classes else ""
                yield Problem(name, what, f"Run 'gcemil split' again, with fewer folds{merge}.")


def _find_part_fault(slides: list[SlideRow], part: str, card: CohortCard) -> str | None:
    """Why a part cannot serve; training checks the targets of a multilabel cohort."""
    if not slides:
        return f"the {part} part is empty"
    if card.task == "survival":
        has_event = any(slide.event for slide in slides)
        return None if has_event else f"the {part} part has no event"
    if card.task == "multilabel":
        return None
    present = {slide.target for slide in slides}
    if len(present) < 2:
        kind = "class" if card.classes else "the value"
        return f"the {part} part has only {kind} '{present.pop()}'"
    if part == "train" and (absent := set(card.classes) - present):
        return f"class '{min(absent)}' has no training slide"
    return None


def _file_problems(
    slides: list[SlideRow],
    card: CohortCard,
    folder: Path,
    on_slide: Callable[[int, int], None] | None,
) -> Iterator[Problem]:
    first_with: dict[str, str] = {}
    # An id that is a path would be looked for outside the cohort.
    names = list(dict.fromkeys(one.slide_id for one in slides if is_plain_id(one.slide_id)))
    for done, slide_id in enumerate(names, start=1):
        path = feature_file(folder, slide_id)
        try:
            yield from _feature_problems(slide_id, path, card, first_with)
        except StoreError as fault:
            yield _from_exception(slide_id, fault)
        if on_slide:
            on_slide(done, len(names))
    listed = {f"{name}.h5" for name in names}
    if unused := sorted(
        path.name for path in (folder / "features").glob("*.h5") if path.name not in listed
    ):
        what = f"{len(unused)} feature files have no line in slides.csv"
        yield Problem(unused[0], what, "Add the slides or remove the files.", level="warning")
    yield from _bank_problems(card, folder)


def _feature_problems(
    slide_id: str, path: Path, card: CohortCard, first_with: dict[str, str]
) -> Iterator[Problem]:
    again = "Extract the slide again."
    layouts = store.describe(path)
    if "features" not in layouts:
        what = f"{path.name} has no dataset 'features', only: {', '.join(layouts) or 'nothing'}"
        yield Problem(slide_id, what, "Read it with 'gcemil import'.")
        return
    layout, shape = layouts["features"], layouts["features"].shape
    problem = store.features_problem(shape, layout.dtype)
    if len(shape) != 2 or shape[1] != card.feature_dim:
        problem = f"features have shape {shape}, cohort.yaml states width {card.feature_dim}"
    if problem:
        yield Problem(slide_id, problem, "Extract it with the cohort's encoder.")
        return
    if shape[0] == 0:
        remedy = "Remove its line, or segment its tissue again."
        yield Problem(slide_id, "the slide has no patches", remedy)
        return
    if layout.is_slow:
        what = f"features are stored in chunks of {layout.chunks}, which read slowly"
        source = shlex.quote(str(path.resolve().parent))
        remedy = f"Rewrite them with 'gcemil import {source} --repack'."
        yield Problem(slide_id, what, remedy, level="warning")
    if "coords" not in layouts:
        remedy = "Spatial steps are switched off for this slide."
        yield Problem(slide_id, "the file has no coordinates", remedy, level="warning")
    elif layouts["coords"].shape != (shape[0], 2):
        what = f"{layouts['coords'].shape} coordinates for {shape[0]} feature rows"
        yield Problem(slide_id, what, again)
    elif problem := store.coords_problem(store.read(path, "coords")):
        remedy = "Extract the slide again, or import it with 'gcemil import', which converts."
        yield Problem(slide_id, problem, remedy)
    features = store.read(path, "features")
    if problem := store.nan_problem(features):
        yield Problem(slide_id, problem, again)
    elif len(features) > 1 and (features == features[0]).all():
        remedy = "The encoder got no tissue; extract it again."
        yield Problem(slide_id, "all patches have the same features", remedy)
    other = first_with.setdefault(hashlib.sha256(features.data).hexdigest(), slide_id)
    if other != slide_id:
        what = f"its features are identical to those of '{other}'"
        yield Problem(slide_id, what, "Remove one of the two slides.")
    # Training never reads truth, but what is measured against it would be wrong or stop hours
    # later.
    truth = path.parent.parent / "truth" / path.name
    if truth.exists():
        try:
            for name in ("evidence", "concept", "region", "overlap"):
                if store.has(truth, name):
                    store.read_truth(truth, name, shape[0])
        except StoreError as fault:
            yield _from_exception(slide_id, fault, "Write the truth again, or remove the file.")


def _bank_problems(card: CohortCard, folder: Path) -> Iterator[Problem]:
    bank = (
        card.anchors if card.anchors is not None and card.anchors.endswith(".h5") else "anchors.h5"
    )
    widths: dict[str, int] = {}
    for name in dict.fromkeys((bank, "anchors_generic.h5", "anchors_unrelated.h5")):
        path = folder / name
        if path.parent == folder and path.exists():
            try:
                widths[name] = store.read_anchors(path)[0].shape[1]
            except StoreError as fault:
                yield _from_exception(
                    name, fault, "Write the anchors again with 'gcemil anchors embed'."
                )
    if (folder / EXAMPLES_FILE).exists() or card.anchors == EXAMPLES:
        try:
            read_examples(folder / EXAMPLES_FILE, card.feature_dim)
        except InputError as fault:
            yield _from_exception(EXAMPLES_FILE, fault)
    path, remedy = folder / "anchor_pairs.h5", "Write the pairs again with 'gcemil anchors pairs'."
    if path.exists():
        try:
            features, anchor_space = (side.shape[1] for side in store.read_pairs(path))
            expected = card.feature_dim, widths.get(bank, anchor_space)
            if (features, anchor_space) != expected:
                what = (
                    f"pairs of width {features} and {anchor_space} for features of width "
                    f"{expected[0]} and anchors of width {expected[1]}"
                )
                yield Problem(path.name, what, remedy)
        except StoreError as fault:
            yield _from_exception(path.name, fault, remedy)
