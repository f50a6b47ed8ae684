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

import numpy as np

from gcemil.bags import store
from gcemil.bags.arrays import (
    coords_problem,
    features_problem,
    read_anchors,
    read_pairs,
    read_truth,
)
from gcemil.bags.cohort import (
    CohortCard,
    Problem,
    case_of,
    check_slides,
    feature_file,
    parse_number,
    read_card,
)
from gcemil.bags.examples import EXAMPLES, EXAMPLES_FILE, read_examples
from gcemil.bags.folds import PARTS, check_fold, fold_faults, fold_indices, read_parts, split_file
from gcemil.bags.tables import is_plain_id, read_table
from gcemil.errors import CohortError, InputError, StoreError

Row = dict[str, str]


_N_FOLDS = 5
_TARGETS = {
    "classification": "label",
    "regression": "value",
    "survival": "event",
    "multilabel": "slide_id",
}
"""The column that must vary inside every part; `check_parts` of a training looks at several targets."""


def validate(folder: Path, on_slide: Callable[[int, int], None] | None = None) -> list[Problem]:
    """All problems of the cohort in this folder; `on_slide(done, total)` reports progress."""
    try:
        card = read_card(folder)
        rows = read_table(folder / "slides.csv", card.columns)
    except InputError as fault:
        return [_from_exception(str(folder), fault)]
    problems = [*check_slides(rows, card)]
    if card.task == "regression":
        problems += _number_problems(rows)
    else:
        problems += (
            _survival_problems(rows) if card.task == "survival" else _class_problems(rows, card)
        )
    if not rows:
        problems.append(Problem("slides.csv", "the table has no slides", "Add a line per slide."))
    # Files before splits: nothing else helps before a missing file is back.
    problems += _file_problems(rows, card, folder, on_slide)
    return [*problems, *_split_problems(rows, card, folder)]


def refuse_errors(folder: Path, problems: list[Problem]) -> None:
    """One sentence for all errors: how many, the first with its remedy, and where to see the others."""
    if errors := select_errors(problems):
        first = errors[0]
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors; the first"
        raise CohortError(
            f"{folder} has {count}: {first.where}: {first.what}. {first.remedy} See all with 'gcemil validate {folder}'."
        )


def select_errors(problems: list[Problem]) -> list[Problem]:
    """The problems that stop training."""
    return [problem for problem in problems if problem.level == "error"]


def group_problems(problems: list[Problem]) -> list[Problem]:
    """Problems that say the same once, in the order in which they come; `where` then counts the others."""
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


def _class_problems(rows: list[Row], card: CohortCard) -> Iterator[Problem]:
    for name in card.classes if card.task == "multilabel" else ():
        if len(values := {row[name] for row in rows} - {""}) < 2:
            what = f"the target is {' and '.join(values) or 'missing'} on every slide"
            yield Problem(name, what, "Remove the target from cohort.yaml, or add slides.")
    for name in card.classes if card.task == "classification" else ():
        count = len({case_of(row) for row in rows if row["label"] == name})
        if not count:
            yield Problem(
                name, "the class has no slide", "Remove the class from cohort.yaml or add slides."
            )
        elif count < _N_FOLDS:
            what = f"the class has {count} cases, fewer than the {_N_FOLDS} folds"
            yield Problem(
                name,
                what,
                "Some folds cannot test it; merge classes or use fewer folds.",
                level="warning",
            )


def _number_problems(rows: list[Row]) -> Iterator[Problem]:
    values = [parse_number(row["value"]) for row in rows]
    if rows and len(set(values)) == 1:
        what = f"all {len(rows)} slides have the value {rows[0]['value']}, so there is nothing to predict"
        yield Problem("slides.csv", what, "Write the values of another column.")


def _survival_problems(rows: list[Row]) -> Iterator[Problem]:
    outcomes = [(parse_number(row["time"]), parse_number(row["event"])) for row in rows]
    times, events = (
        np.array([pair for pair in outcomes if None not in pair], dtype=float).reshape(-1, 2).T
    )
    happened = events == 1
    if len(happened) and not happened.any():
        what = "no case has an event, so no risk can be learned"
        yield Problem("slides.csv", what, "Check the event column.")
    elif _looks_inverted(times, happened):
        what = f"{happened.mean():.0%} of the slides have an event and these have the longer times: event and censorship look swapped"
        remedy = "If the column was 'censorship', write event = 1 - censorship."
        yield Problem("slides.csv", what, remedy, level="warning")


def _looks_inverted(times: np.ndarray, happened: np.ndarray) -> bool:
    """Follow-up ends with censoring, so censored times are the longer ones; the clear reverse is suspicious."""
    # Loading scipy.stats takes longer than most commands that import this module.
    from scipy.stats import mannwhitneyu

    if not len(happened) or happened.mean() <= 0.5 or (~happened).sum() < 5:
        return False
    return bool(
        mannwhitneyu(times[happened], times[~happened], alternative="greater").pvalue < 1e-3
    )


def _split_problems(rows: list[Row], card: CohortCard, folder: Path) -> Iterator[Problem]:
    case_of_slide = {row["slide_id"]: case_of(row) for row in rows}
    target_of = {row["slide_id"]: row[_TARGETS[card.task]] for row in rows}
    try:
        by_fold = {index: dict(read_parts(folder, index)) for index in fold_indices(folder)}
        # Published splits may place slides that the cohort leaves out.
        placed_here = {
            index: {slide: part for slide, part in placed.items() if slide in case_of_slide}
            for index, placed in by_fold.items()
        }
        faults = fold_faults(folder, placed_here)
    except InputError as fault:
        yield _from_exception("splits", fault, f"Run 'gcemil split {folder} --force'.")
        return
    remedy = (
        f"Make the folds again with 'gcemil split {folder} --force', or, where they are published splits, say so with "
        f"'gcemil split {folder} --official'."
    )
    yield from (Problem("splits", what, remedy) for what in faults)
    for index, placed in placed_here.items():
        path = split_file(folder, index)
        yield from check_fold(case_of_slide, placed, path.name)
        targets: dict[str, set[str]] = defaultdict(set)
        for slide_id, part in placed.items():
            targets[part].add(target_of[slide_id])
        yield from _part_problems(targets, card, path)


def _part_problems(targets: dict[str, set[str]], card: CohortCard, path: Path) -> Iterator[Problem]:
    is_survival = card.task == "survival"
    for part in PARTS:
        present, what = targets.get(part, set()), ""
        if not present:
            what = f"the {part} part is empty"
        elif is_survival and not any(parse_number(event) == 1 for event in present):
            what = f"the {part} part has no event"
        elif card.task == "multilabel":
            # Each target has slides of its own, which `check_parts` of a training looks at.
            continue
        elif not is_survival and len(present) < 2:
            kind = "class" if card.classes else "the value"
            what = f"the {part} part has only {kind} '{next(iter(present))}'"
        elif not is_survival and part == "train" and (absent := set(card.classes) - present):
            what = f"class '{min(absent)}' has no training slide"
        if what:
            yield Problem(
                path.name,
                what,
                "Run 'gcemil split' again, with fewer folds, or merge classes."
                if card.classes
                else "Run 'gcemil split' again, with fewer folds.",
            )


def _file_problems(
    rows: list[Row], card: CohortCard, folder: Path, on_slide: Callable[[int, int], None] | None
) -> Iterator[Problem]:
    first_with: dict[str, str] = {}
    # An id that is a path would be looked for outside the cohort.
    names = list(dict.fromkeys(row["slide_id"] for row in rows if is_plain_id(row["slide_id"])))
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
    layouts = store.describe(path)
    if "features" not in layouts:
        what = f"{path.name} has no dataset 'features', only: {', '.join(layouts) or 'nothing'}"
        yield Problem(slide_id, what, "Read it with 'gcemil import'.")
        return
    layout, shape = layouts["features"], layouts["features"].shape
    problem = features_problem(shape, layout.dtype)
    if len(shape) != 2 or shape[1] != card.feature_dim:
        problem = f"features have shape {shape}, cohort.yaml says width {card.feature_dim}"
    if problem:
        yield Problem(slide_id, problem, "Extract it with the cohort's encoder.")
        return
    if shape[0] == 0:
        yield Problem(
            slide_id, "the slide has no patches", "Remove its line, or segment its tissue again."
        )
        return
    if layout.is_slow:
        what = f"features are stored in chunks of {layout.chunks}, which read slowly"
        remedy = (
            f"Rewrite them with 'gcemil import {shlex.quote(str(path.resolve().parent))} --repack'."
        )
        yield Problem(slide_id, what, remedy, level="warning")
    yield from _coord_problems(slide_id, path, shape[0], layouts)
    yield from _value_problems(slide_id, path, first_with)
    yield from _truth_problems(slide_id, path.parent.parent / "truth" / path.name, shape[0])


def _coord_problems(
    slide_id: str, path: Path, n_patches: int, layouts: dict[str, store.DatasetInfo]
) -> Iterator[Problem]:
    if "coords" not in layouts:
        remedy = "Spatial steps are switched off for this slide."
        yield Problem(slide_id, "the file has no coordinates", remedy, level="warning")
    elif layouts["coords"].shape != (n_patches, 2):
        what = f"{layouts['coords'].shape} coordinates for {n_patches} feature rows"
        yield Problem(slide_id, what, "Extract the slide again.")
    elif problem := coords_problem(store.read(path, "coords")):
        remedy = "Extract the slide again, or import it with 'gcemil import', which converts."
        yield Problem(slide_id, problem, remedy)


def _value_problems(slide_id: str, path: Path, first_with: dict[str, str]) -> Iterator[Problem]:
    features = store.read(path, "features")
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        count, first = int((~finite).sum()), int(np.argmin(finite))
        what = f"{count} patches have NaN or infinite features, the first is row {first}"
        yield Problem(slide_id, what, "Extract the slide again.")
    elif len(features) > 1 and (features == features[0]).all():
        remedy = "The encoder saw no tissue; extract it again."
        yield Problem(slide_id, "all patches have the same features", remedy)
    other = first_with.setdefault(hashlib.sha256(features.data).hexdigest(), slide_id)
    if other != slide_id:
        what = f"its features are identical to those of '{other}'"
        yield Problem(slide_id, what, "Remove one of the two slides.")


def _truth_problems(slide_id: str, path: Path, n_patches: int) -> Iterator[Problem]:
    """Training never reads truth, but what is measured against it would be wrong or stop hours later."""
    if path.exists():
        try:
            for name in ("evidence", "concept", "region", "overlap"):
                if store.has(path, name):
                    read_truth(path, name, n_patches)
        except StoreError as fault:
            yield _from_exception(slide_id, fault, "Write the truth again, or remove the file.")


def _bank_problems(card: CohortCard, folder: Path) -> Iterator[Problem]:
    """Anchors, examples and pairs, where the cohort has them."""
    bank = (
        card.anchors if card.anchors is not None and card.anchors.endswith(".h5") else "anchors.h5"
    )
    widths: dict[str, int] = {}
    for name in dict.fromkeys((bank, "anchors_generic.h5", "anchors_unrelated.h5")):
        path = folder / name
        if path.parent == folder and path.exists():
            try:
                widths[name] = read_anchors(path)[0].shape[1]
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
            features, anchor_space = (side.shape[1] for side in read_pairs(path))
            expected = card.feature_dim, widths.get(bank, anchor_space)
            if (features, anchor_space) != expected:
                what = (
                    f"pairs of width {features} and {anchor_space} for features of width {expected[0]} and anchors of "
                    f"width {expected[1]}"
                )
                yield Problem(path.name, what, remedy)
        except StoreError as fault:
            yield _from_exception(path.name, fault, remedy)
