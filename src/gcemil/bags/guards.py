"""Every check of a cohort in one pass: all problems with the slide and the remedy on each line.

An error stops training; a warning is recorded in the run. One slide is in memory at a time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.stats import mannwhitneyu

from gcemil.bags.cohort import CohortCard, columns_of, read_card
from gcemil.bags.file_guards import file_problems
from gcemil.bags.folds import PARTS, fold_faults, fold_indices, split_file
from gcemil.bags.problems import Problem, Row, error, warning
from gcemil.bags.strangers import strangers_files
from gcemil.bags.tables import check_slide_id, read_table
from gcemil.errors import CohortError, InputError

N_FOLDS = 5


def validate(folder: Path, on_slide: Callable[[int, int], None] | None = None) -> list[Problem]:
    """All problems of the cohort in this folder; `on_slide(done, total)` reports progress."""
    try:
        card = read_card(folder)
        rows = read_table(folder / "slides.csv", columns_of(card.task))
    except InputError as fault:
        return [error(str(folder), str(fault), "Correct the file named, then validate again.")]
    problems = [*_table_problems(rows, card, folder)]
    problems += _survival_problems(rows) if card.task == "survival" else _label_problems(rows, card)
    # An id that is a path would be looked for outside the cohort.
    within = [row for row in rows if _is_plain(row["slide_id"])]
    # Files before splits: what is gone is told first, because nothing else helps before it is back.
    with strangers_files():
        problems += file_problems(within, card, folder, on_slide)
    return [*problems, *_split_problems(rows, card, folder)]


def _is_plain(slide_id: str) -> bool:
    try:
        check_slide_id(slide_id, Path("slides.csv"))
    except CohortError:
        return False
    return True


def errors_of(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.level == "error"]


def _table_problems(rows: list[Row], card: CohortCard, folder: Path) -> Iterator[Problem]:
    if not rows:
        yield error("slides.csv", "the table has no slides", "Add a line per slide.")
    for slide_id, count in Counter(row["slide_id"] for row in rows).items():
        if count > 1:
            yield error(slide_id, f"the slide id stands {count} times in slides.csv", "Keep one line.")
        try:
            check_slide_id(slide_id, folder / "slides.csv")
        except CohortError as fault:
            yield error(slide_id, str(fault), "Rename the slide.")
    if card.task == "survival" or card.bag_unit == "case":
        targets: dict[str, set[tuple[str | None, ...]]] = defaultdict(set)
        for row in rows:
            targets[row["case_id"]].add((row.get("label"), row.get("time"), row.get("event")))
        for case_id, found in targets.items():
            if len(found) > 1:
                yield error(
                    case_id,
                    f"slides of the case disagree on the target: {sorted(map(str, found))}",
                    "A case has one target; correct slides.csv.",
                )


def _label_problems(rows: list[Row], card: CohortCard) -> Iterator[Problem]:
    cases: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["label"] not in card.classes:
            yield error(
                row["slide_id"],
                f"label '{row['label']}' is not among {', '.join(card.classes)}",
                "Correct the label, or add the class to cohort.yaml.",
            )
        cases[row["label"]].add(row["case_id"])
    for name in card.classes:
        if not cases[name]:
            yield error(name, "the class has no slide", "Remove the class from cohort.yaml or add slides.")
        elif len(cases[name]) < N_FOLDS:
            yield warning(
                name,
                f"the class has {len(cases[name])} cases, fewer than the {N_FOLDS} folds",
                "Some folds cannot test it; merge classes or use fewer folds.",
            )


def _survival_problems(rows: list[Row]) -> Iterator[Problem]:
    times, events = [], []
    for row in rows:
        time, event = _number(row["time"]), _number(row["event"])
        if time is None or not 0 < time < math.inf:
            yield error(
                row["slide_id"],
                f"survival time '{row['time']}' is not a finite number above 0",
                "Correct the time, or exclude the case.",
            )
        elif event not in (0, 1):
            yield error(
                row["slide_id"],
                f"event '{row['event']}' is neither 0 nor 1",
                "Code 1 for happened and 0 for censored.",
            )
        else:
            times.append(time)
            events.append(int(event))
    happened = np.array(events, bool)
    if len(happened) and not happened.any():
        yield error(
            "slides.csv", "no case has an event, so no risk can be learned", "Check the event column."
        )
    elif _looks_inverted(np.array(times), happened):
        yield warning(
            "slides.csv",
            f"{happened.mean():.0%} of the slides have an event and these have the longer times: event and censorship look swapped",
            "If the column was 'censorship', write event = 1 - censorship.",
        )


def _looks_inverted(times: np.ndarray, happened: np.ndarray) -> bool:
    """Follow-up ends with censoring, so censored times are the longer ones; the clear reverse is suspicious."""
    if happened.mean() <= 0.5 or (~happened).sum() < 5:
        return False
    return bool(mannwhitneyu(times[happened], times[~happened], alternative="greater").pvalue < 1e-3)


def _split_problems(rows: list[Row], card: CohortCard, folder: Path) -> Iterator[Problem]:
    try:
        by_fold = {index: _placed(split_file(folder, index)) for index in fold_indices(folder)}
        known = {row["slide_id"] for row in rows}
        own = {
            index: {slide: part for slide, part in found.items() if slide in known}
            for index, found in by_fold.items()
        }
        faults = fold_faults(folder, own)
    except InputError as fault:
        yield error("splits", str(fault), f"Run 'gcemil split {folder} --force'.")
        return
    for what in faults:
        yield error(
            "splits",
            what,
            f"Make the folds again with 'gcemil split {folder} --force', or, where they are published splits, say so with "
            f"'gcemil split {folder} --official'.",
        )
    for index, placed in by_fold.items():
        path = split_file(folder, index)
        parts: dict[str, set[str]] = defaultdict(set)
        classes: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            part = placed.get(row["slide_id"])
            if part not in PARTS:
                yield error(
                    row["slide_id"], f"{path.name} gives it split '{part}'", "Run 'gcemil split' again."
                )
                continue
            parts[row["case_id"]].add(str(part))
            classes[str(part)].add(row["label"] if card.task == "classification" else row["event"])
        for case_id, found in parts.items():
            if len(found) > 1:
                yield error(
                    case_id,
                    f"the case is in {' and '.join(sorted(found))} of {path.name}: the test set leaks",
                    "Run 'gcemil split --unit case'.",
                )
        yield from _part_problems(classes, card, path)


def _placed(path: Path) -> dict[str, str]:
    return {row["slide_id"]: row["split"] for row in read_table(path, ("slide_id", "split"))}


def _part_problems(classes: dict[str, set[str]], card: CohortCard, path: Path) -> Iterator[Problem]:
    for part in PARTS:
        found = classes.get(part, set())
        if not found:
            yield error(path.name, f"the {part} part is empty", "Run 'gcemil split' again.")
        elif card.task == "survival" and not any(_number(event) == 1 for event in found):
            yield error(
                path.name, f"the {part} part has no event", "Run 'gcemil split' again, with fewer folds."
            )
        elif card.task == "classification" and len(found) < 2:
            yield error(
                path.name,
                f"the {part} part has only class '{next(iter(found))}'",
                "Run 'gcemil split' again, with fewer folds.",
            )
        elif card.task == "classification" and part == "train" and (absent := set(card.classes) - found):
            yield error(
                path.name,
                f"class '{min(absent)}' has no training slide",
                "Run 'gcemil split' again, with fewer folds, or merge classes.",
            )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
