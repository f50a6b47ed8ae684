"""The checks of slides.csv: `Cohort.load` raises the first problem, `gcemil validate` lists all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gcemil.bags.tables import check_slide_id
from gcemil.errors import CohortError, InputError

if TYPE_CHECKING:
    from gcemil.bags.cohort import CohortCard


@dataclass(frozen=True)
class Problem:
    """What is wrong with a cohort, and what to do about it."""

    level: Literal["error", "warning"]
    where: str
    """The slide, case, class or file it is about."""
    what: str
    remedy: str


def make_error(where: str, what: str, remedy: str) -> Problem:
    """A problem that stops training."""
    return Problem("error", where, what, remedy)


def make_warning(where: str, what: str, remedy: str) -> Problem:
    """A problem that is recorded in the run."""
    return Problem("warning", where, what, remedy)


def from_exception(where: str, error: InputError, remedy: str = "") -> Problem:
    """An exception as a problem, with this remedy or else the one of its message."""
    what, _, stated = str(error).partition(". ")
    remedy = remedy or stated or "Correct the file named, then validate again."
    return make_error(where, what.removesuffix("."), remedy)


def raise_first(problems: Iterable[Problem], path: Path) -> None:
    """Raise the first error in this file."""
    for problem in problems:
        if problem.level == "error":
            raise CohortError(f"{path}: {problem.where}: {problem.what}. {problem.remedy}")


def check_slides(rows: Sequence[Mapping[str, str]], card: CohortCard) -> Iterator[Problem]:
    """Every problem of the lines of slides.csv, each alone and together."""
    for slide_id, count in Counter(row["slide_id"] for row in rows).items():
        if count > 1:
            yield make_error(slide_id, f"the slide id occurs {count} times in slides.csv", "Keep one line.")
    for row in rows:
        yield from check_slide(row, card)
    if "case" not in {card.bag_unit, "case" if card.task == "survival" else None}:
        return
    first_of: dict[str, Mapping[str, str]] = {}
    for row in rows:
        first = first_of.setdefault(case_of(row), row)
        if _target_of(first) != _target_of(row):
            what = f"slides '{first['slide_id']}' and '{row['slide_id']}' of the case disagree on the target"
            yield make_error(case_of(row), what, "A case has one target; correct slides.csv.")


def check_slide(row: Mapping[str, str], card: CohortCard) -> Iterator[Problem]:
    """Every problem of one line of slides.csv."""
    slide_id = row["slide_id"]
    try:
        check_slide_id(slide_id, Path("slides.csv"))
    except CohortError as error:
        yield from_exception(slide_id, error, "Rename the slide.")
    if card.task == "classification":
        if row["label"] not in card.classes:
            what = f"label '{row['label']}' is not among {', '.join(card.classes)}"
            yield make_error(slide_id, what, "Correct the label, or add the class to cohort.yaml.")
        return
    time, event = parse_number(row["time"]), parse_number(row["event"])
    if time is None or not 0 < time < math.inf:
        what = f"survival time '{row['time']}' is not a finite number above 0"
        yield make_error(slide_id, what, "Correct the time, or exclude the case.")
    if event not in (0, 1):
        what = f"event '{row['event']}' is neither 0 nor 1"
        yield make_error(slide_id, what, "Code 1 for happened and 0 for censored.")


def case_of(row: Mapping[str, str]) -> str:
    """The case of a line, the slide itself where it names none."""
    return row["case_id"] or row["slide_id"]


def parse_number(text: str) -> float | None:
    """The number in a cell, None where there is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _target_of(row: Mapping[str, str]) -> tuple[str, float | None, float | None]:
    # 12 and 12.0 are one time.
    return row.get("label", ""), parse_number(row.get("time", "")), parse_number(row.get("event", ""))
