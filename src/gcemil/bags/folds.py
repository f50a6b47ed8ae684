"""Cross-validation by case: stratified folds as splits/fold_<k>.csv, and checks that nothing leaks.

Fold k tests; half of fold k+1 (mod the number of folds) validates; the rest trains. Cases are dealt
round-robin out of each stratum: the label, the quartile of the value, or for survival the event and
the quartile of the time among cases with that event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import yaml
from numpy.random import Generator
from pydantic import BaseModel, ConfigDict

from gcemil.bags.cohort import Cohort, Problem, SlideRow, raise_first
from gcemil.bags.tables import read_table
from gcemil.errors import CohortError, UsageError
from gcemil.files import read_yaml, replace_folder, validate_as, write_table, write_text

Part = Literal["train", "val", "test"]
SplitUnit = Literal["case", "slide"]
SplitKind = Literal["partition", "official"]
PARTS: tuple[Part, ...] = ("train", "val", "test")
_N_FOLDS = 5
_CARD = "splits.yaml"
_DUTIES: dict[Part, str] = {"train": "train", "val": "validate", "test": "test"}
_VALUE = "value"
"""The stratum of cases with a value, which is numbered by quartile."""
_CASES_PER_VALIDATION = 8
"""One in this many training cases validates if a published split has no validation part."""


class SplitCard(BaseModel):
    """The content of splits/splits.yaml, about the folds beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: SplitKind
    """partition: every slide is tested in one fold; official: published splits as they are."""
    folds: tuple[int, ...]
    """The numbers of the folds: another one beside them belongs to another split."""


@dataclass(frozen=True)
class Fold:
    """The part of every slide in one fold."""

    index: int
    part_of: dict[str, Part]

    def slides(self, part: Part) -> list[str]:
        """The slides of one part, in the order of the cohort."""
        return [slide_id for slide_id, assigned in self.part_of.items() if assigned == part]


def make_folds(
    cohort: Cohort, *, n_folds: int = 5, unit: SplitUnit = "case", seed: int = 0
) -> list[Fold]:
    """Stratified folds of whole cases, or of slides on request."""
    if n_folds < 3:
        raise UsageError(
            f"Cross-validation needs at least 3 folds (test, validation, training), got {n_folds}."
        )
    raise_first(target_problems(cohort.slides, least_cases=2), cohort.folder)
    groups = _group_rows(cohort.slides, unit)
    if len(groups) < n_folds:
        raise CohortError(
            f"{cohort.folder}: {len(groups)} {unit}s cannot be split into {n_folds} folds. "
            "Give fewer --folds."
        )
    generator = np.random.default_rng(seed)
    # Round-robin, so that folds stay equal in size.
    dealt = _deal_cases(_group_by_stratum(groups), generator)
    position = {name: number for number, name in enumerate(dealt)}

    def part_in(k: int, name: str) -> Part:
        turn, fold = divmod(position[name], n_folds)
        # Every other case of the next fold validates, so that halves are stratified too.
        return "test" if fold == k else "val" if fold == (k + 1) % n_folds and turn % 2 else "train"

    folds = []
    for k in range(n_folds):
        names = {row.slide_id: getattr(row, f"{unit}_id") for row in cohort.slides}
        fold = Fold(k, {slide_id: part_in(k, name) for slide_id, name in names.items()})
        folds.append(fold)
        if empty := [part for part in PARTS if not fold.slides(part)]:
            most = len(groups) // 2
            remedy = f"--folds {most} or fewer" if most >= 3 else "--parts, such as --parts 3,1,1"
            raise CohortError(
                f"{cohort.folder}: {len(groups)} {unit}s are too few for {n_folds} folds: "
                f"fold {k} would {_DUTIES[empty[0]]} on nothing. "
                f"Give {remedy}, or add {unit}s. Nothing was written."
            )
    return folds


def target_problems(rows: Sequence[SlideRow], *, least_cases: int = 0) -> Iterator[Problem]:
    """Targets that cannot be learned, and classes with too few cases for the folds.

    A class of fewer than `least_cases` cases is an error, of fewer than five a warning.
    """
    survival = [row for row in rows if row.time is not None]
    if survival and not any(row.event for row in survival):
        what = f"all {len(rows)} slides are censored, so no risk can be learned"
        yield Problem("slides", what, "Check the event column.")
    elif _looks_inverted(survival):
        share = np.mean([row.event == 1 for row in survival])
        what = (
            f"{share:.0%} of the slides have an event and these have the longer times: "
            "event and censorship look swapped"
        )
        remedy = "If the column was 'censorship', write event = 1 - censorship."
        yield Problem("slides", what, remedy, "warning")
    if len({row.value for row in rows}) == 1 and rows[0].value is not None:
        what = f"all {len(rows)} slides have the value {rows[0].value:g}"
        remedy = "Name another column with --target."
        yield Problem("slides", f"{what}, so there is nothing to predict", remedy)
    cases: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.label is not None:
            cases[row.label].add(row.case_id)
    for label, own in cases.items():
        what, remedy = "", "Merge it with another class, or leave it out."
        if len(own) == 1:
            what = "the class has a single case, so no fold can train and test on it"
        elif len(own) < _N_FOLDS:
            what = f"the class has {len(own)} cases, fewer than the {_N_FOLDS} folds"
            remedy = "Some folds cannot test it; merge classes or use fewer folds."
        if what:
            level: Literal["error", "warning"] = "error" if len(own) < least_cases else "warning"
            yield Problem(f"class '{label}'", what, remedy, level)


def _looks_inverted(rows: Sequence[SlideRow]) -> bool:
    """Censoring ends a follow-up, so censored times are the longer ones; the reverse is odd."""
    # Loading scipy.stats takes longer than most commands that import this module.
    from scipy.stats import mannwhitneyu

    happened, censored = ([row.time for row in rows if row.event == event] for event in (1, 0))
    if len(happened) <= len(censored) or len(censored) < 5:
        return False
    return bool(mannwhitneyu(happened, censored, alternative="greater").pvalue < 1e-3)


def describe_part(cohort: Cohort, fold: Fold, part: Part) -> str:
    """Slides of one part, with those of each class, their mean value, or the events."""
    rows = [row for row in cohort.slides if fold.part_of.get(row.slide_id) == part]
    if cohort.card.task == "regression":
        values = [row.value for row in rows if row.value is not None]
        return f"{len(rows)} (mean {np.mean(values):.3g})" if values else "0"
    counts = [
        sum((row.labels[index] == 1) if row.labels else (row.label == name) for row in rows)
        for index, name in enumerate(cohort.card.classes)
    ]
    if counts:
        return f"{len(rows)} ({', '.join(map(str, counts))})"
    events = {row.case_id: row.event for row in rows}
    return f"{len(rows)} ({sum(event == 1 for event in events.values())} of {len(events)})"


def carve_validation(rows: Sequence[SlideRow], fold: Fold) -> Fold:
    """The fold with an eighth of its training cases for validation; its test part stays as it is.

    An eighth of every class, of every quartile of the value, or of the cases with and without an
    event, and one case at least where there are two. A fold that validates already, or has no case
    to spare, is returned unchanged.
    """
    if "val" in fold.part_of.values():
        return fold
    groups = _group_rows([row for row in rows if fold.part_of.get(row.slide_id) == "train"])
    strata: dict[str, list[str]] = defaultdict(list)
    for (kind, quartile), names in _group_by_stratum(groups).items():
        strata[kind if kind != _VALUE else f"{kind} {quartile}"] += names
    # Always the same cases: an import has no seed.
    generator = np.random.default_rng(0)
    chosen: set[str] = set()
    for kind in sorted(strata):
        names = sorted(strata[kind])
        count = max(1, round(len(names) / _CASES_PER_VALIDATION)) if len(names) > 1 else 0
        chosen |= {names[index] for index in generator.permutation(len(names))[:count]}
    validates = {row.slide_id for name in chosen for row in groups[name]}
    return Fold(
        fold.index,
        {slide: "val" if slide in validates else part for slide, part in fold.part_of.items()},
    )


def make_parts(cohort: Cohort, sizes: tuple[int, int, int], *, generator: Generator) -> Fold:
    """One fold of whole cases with these numbers to train, validate and test on, stratified.

    Where test cases cost nothing, as in a simulated cohort, a large test part is better than five
    small ones. Numbers that add up to the slides are shares: cases are dealt in these proportions.
    """
    groups = _group_rows(cohort.slides)
    if min(sizes) < 1 or sum(sizes) not in (len(groups), len(cohort.slides)):
        slides = f" and {len(cohort.slides)} slides" if len(cohort.slides) > len(groups) else ""
        raise UsageError(
            f"{cohort.folder} has {len(groups)} cases{slides}, so three parts of at least one that "
            f"add up to that are wanted, got {', '.join(map(str, sizes))}."
        )
    # In the proportions of the sizes; at least one case each, the rest is tested.
    train, val = (max(1, round(size * len(groups) / sum(sizes))) for size in sizes[:2])
    wanted = np.array([train, val, len(groups) - train - val])
    placed = np.zeros(len(PARTS), dtype=np.int64)
    part_of: dict[str, Part] = {}
    for done, name in enumerate(_deal_cases(_group_by_stratum(groups), generator), start=1):
        # The part that lags most behind its share of the cases placed so far.
        behind = np.where(placed < wanted, wanted * done / wanted.sum() - placed, -np.inf)
        chosen = int(np.argmax(behind))
        placed[chosen] += 1
        part_of |= {row.slide_id: PARTS[chosen] for row in groups[name]}
    return Fold(0, {row.slide_id: part_of[row.slide_id] for row in cohort.slides})


def write_folds(cohort: Cohort, folds: Sequence[Fold], *, kind: SplitKind = "partition") -> None:
    """All folds at once, in place of those that were there."""
    if not folds:
        return
    # What people keep beside the folds stays.
    with replace_folder(
        cohort.folder / "splits", keep=lambda name: not name.startswith("fold_")
    ) as folder:
        for fold in folds:
            rows = [
                {"slide_id": slide_id, "split": part} for slide_id, part in fold.part_of.items()
            ]
            write_table(folder / f"fold_{fold.index}.csv", ("slide_id", "split"), rows)
        write_split_card(folder, SplitCard(kind=kind, folds=tuple(fold.index for fold in folds)))


def write_split_card(folder: Path, card: SplitCard) -> None:
    """splits.yaml beside the folds."""
    write_text(folder / _CARD, yaml.safe_dump(card.model_dump(mode="json"), sort_keys=False))


def fold_faults(folder: Path, placed: Mapping[int, Mapping[str, str]]) -> list[str]:
    """What is wrong with the folds of a cohort together, from the part of every slide in each fold.

    Folds of cross-validation test every slide once; published splits (splits.yaml) need not.
    """
    path = folder / "splits" / _CARD
    if path.is_file():
        card = validate_as(
            read_yaml(path),
            SplitCard,
            path,
            error=CohortError,
            remedy="Run 'gcemil split --force'.",
        )
        stated, there = (", ".join(map(str, sorted(one))) for one in (card.folds, placed))
        if stated != there:
            what = f"{_CARD} names the folds {stated}, but there are {there}: two splits are mixed"
            return [what]
        if card.kind == "official":
            return []
    if len(placed) < 2:
        return []
    tested: dict[str, list[int]] = defaultdict(list)
    for index, parts in placed.items():
        for slide_id, part in parts.items():
            tested[slide_id] += [index] if part == "test" else []
    often = [slide_id for slide_id, folds in tested.items() if len(folds) > 1]
    never = [slide_id for slide_id, folds in tested.items() if not folds]
    faults = []
    if often:
        where = " and ".join(f"fold_{index}.csv" for index in tested[often[0]])
        faults.append(f"slide '{often[0]}' is tested in {where} ({len(often)} slides in all)")
    if never:
        faults.append(f"slide '{never[0]}' is tested in no fold ({len(never)} slides in all)")
    return faults


def read_fold(cohort: Cohort, index: int) -> Fold:
    """One fold, complete and free of leakage, or an error."""
    path = split_file(cohort.folder, index)
    if not path.is_file():
        if there := fold_indices(cohort.folder):
            raise CohortError(
                f"{cohort.folder} has no fold {index}; its folds are "
                f"{', '.join(map(str, there))}. Give --folds or --fold one of these."
            )
        raise CohortError(
            f"{cohort.folder} has no folds. Make them with 'gcemil split {cohort.folder}'."
        )
    case_of = {row.slide_id: row.case_id for row in cohort.slides}
    placed = read_parts(cohort.folder, index)
    raise_first(check_fold(case_of, placed, path.name), path)
    # A published split may name slides that this cohort leaves out.
    known = {slide_id: part for slide_id, part in placed.items() if slide_id in case_of}
    return Fold(index, cast(dict[str, Part], known))


def check_fold(
    case_of: Mapping[str, str], placed: Mapping[str, str], name: str
) -> Iterator[Problem]:
    """Every slide without a part, and every case in more than one."""
    for slide_id in case_of:
        if slide_id not in placed:
            yield Problem(slide_id, f"{name} does not place the slide", "Run 'gcemil split' again.")
        elif placed[slide_id] not in PARTS:
            what = (
                f"{name} gives the slide split '{placed[slide_id]}'; there are {', '.join(PARTS)}"
            )
            yield Problem(slide_id, what, "Run 'gcemil split' again.")
    for case_id, parts in _list_parts(case_of, placed).items():
        if len(parts) > 1:
            what = f"the case is in {' and '.join(sorted(parts))} of {name}: the test set leaks"
            yield Problem(case_id, what, "Run 'gcemil split --unit case'.")


def read_parts(folder: Path, index: int) -> dict[str, str]:
    """The part of every slide of a fold, as the file has it."""
    rows = read_table(split_file(folder, index), ("slide_id", "split"))
    return {row["slide_id"]: row["split"] for row in rows}


def leaking_cases(cohort: Cohort, fold: Fold) -> list[str]:
    """Cases whose slides are in more than one part."""
    case_of = {row.slide_id: row.case_id for row in cohort.slides}
    return sorted(
        case for case, parts in _list_parts(case_of, fold.part_of).items() if len(parts) > 1
    )


def _list_parts(case_of: Mapping[str, str], placed: Mapping[str, str]) -> dict[str, set[str]]:
    parts: dict[str, set[str]] = defaultdict(set)
    for slide_id, case_id in case_of.items():
        if placed.get(slide_id) in PARTS:
            parts[case_id].add(placed[slide_id])
    return parts


def fold_indices(folder: Path) -> list[int]:
    """The folds that exist on disk."""
    names = (path.stem.removeprefix("fold_") for path in (folder / "splits").glob("fold_*.csv"))
    return sorted(int(name) for name in names if name.isdigit())


def split_file(folder: Path, index: int) -> Path:
    """Where a fold lies in a cohort folder."""
    return folder / "splits" / f"fold_{index}.csv"


def _group_rows(rows: Iterable[SlideRow], unit: SplitUnit = "case") -> dict[str, list[SlideRow]]:
    groups: dict[str, list[SlideRow]] = defaultdict(list)
    for row in rows:
        groups[row.case_id if unit == "case" else row.slide_id].append(row)
    return groups


def _group_by_stratum(groups: dict[str, list[SlideRow]]) -> dict[tuple[str, int], list[str]]:
    """Cases by label, by quartile of the value, or by event and quartile of the time."""
    numbers: dict[str, dict[str, float]] = defaultdict(dict)
    for name, rows in groups.items():
        first = rows[0]
        if first.value is not None:
            numbers[_VALUE][name] = float(np.mean([row.value for row in rows]))
        elif first.time is not None:
            numbers[f"event {first.event}"][name] = first.time
        else:
            # A case with slides of several labels is placed by the last of them in order.
            numbers[max(str(row.labels or row.label) for row in rows)][name] = 0.0
    strata: dict[tuple[str, int], list[str]] = defaultdict(list)
    for kind, own in numbers.items():
        edges = np.quantile(list(own.values()), [0.25, 0.5, 0.75])
        for name, number in own.items():
            strata[kind, int(np.searchsorted(edges, number))].append(name)
    return strata


def _deal_cases(strata: dict[tuple[str, int], list[str]], generator: Generator) -> list[str]:
    """One stratum after the other, each in random order: all are dealt in the same shares."""
    dealt = []
    for key in sorted(strata):
        # Sorted, so that the order of slides.csv does not change the folds.
        names = sorted(strata[key])
        dealt += [names[index] for index in generator.permutation(len(names))]
    return dealt
