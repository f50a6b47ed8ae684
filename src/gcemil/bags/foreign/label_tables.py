"""Label tables of other tools as rows of ours: slide_id, case_id, label | value | time, event.

Rows without a usable target are left out and listed; a table that can be read in two ways is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import pandas as pd

from gcemil.bags.cohort import SlideRow, Task
from gcemil.bags.foreign.dialects import (
    ALIASES,
    DIALECTS,
    PATIENT_ID,
    Choice,
    Columns,
    detect_dialect,
    find_case_column,
    find_wide_parts,
    name_chosen_ids,
    rename_ids,
    rename_targets,
)
from gcemil.bags.foreign.source import describe_stripped_ids, is_tcga, plain_id, tcga_case_id
from gcemil.bags.tables import check_slide_id, has_columns, is_missing, list_rows, read_frame
from gcemil.bags.targets import check_target_names
from gcemil.errors import CohortError, UsageError
from gcemil.wording import shorten_list

_HAPPENED = frozenset({"1", "dead", "deceased", "died", "death", "event", "true", "yes"})
_NEGATIVE = frozenset(
    {"0", "-", "neg", "negative", "no", "false", "absent", "low", "wt", "wildtype"}
)
"""Words for the value 0 of a target; of other words the first in their order is 0."""
_NOT_HAPPENED = frozenset({"0", "alive", "living", "censored", "false", "no"})
MOST_CLASSES = 8
"""With more classes, labels that are mostly unique are not classes."""
STAMP_PATIENT = "PATIENT"


@dataclass(frozen=True)
class LabelTable:
    """Slides with a target, the order of the classes, and everything assumed or left out on the way."""

    path: Path
    dialect: str
    task: Task
    rows: tuple[SlideRow, ...]
    classes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def read_labels(
    path: Path,
    *,
    choice: Choice = Choice(),
    slide_table: Path | None = None,
    slide_ids: Iterable[str] = (),
) -> LabelTable:
    """Read a label table of any known tool, or a folder of train.csv, test.csv.

    A table with one row per patient is joined to the slides whose names begin with the patient, where these are given.
    """
    if choice.task == "multilabel":
        return _read_target_labels(path, choice, slide_table, tuple(slide_ids))
    table = _read_label_frame(path, choice.sheet)
    notes: list[str] = []
    given, encoding = list(table), table.attrs.get("note")
    table = rename_ids(name_chosen_ids(table, path, choice))
    names = list(slide_ids)
    patient = next((name for name in (STAMP_PATIENT, PATIENT_ID) if name in table), None)
    if slide_table is None and names and (case := find_case_column(table)) is not None:
        table, notes = _join_cases(table, path, case, names)
    elif patient is not None and "FILENAME" not in table:
        table, notes = _join_slide_table(table, path, patient, slide_table)
    if (parts := find_wide_parts(table)) and all(label for _, label in parts.values()):
        dialect = "CAMIL" if "train" in table else "MIL_BASELINE"
        columns = Columns("slide", None, label="label")
        pairs = [table[list(pair)].set_axis(["slide", "label"], axis=1) for pair in parts.values()]
        table = pd.concat(pairs, ignore_index=True)
        table = table[~table["slide"].map(is_missing)]
    else:
        table = rename_targets(table, choice)
        dialect, columns = detect_dialect(table, path, choice)
    renamed = [
        f"{name} is '{column}'"
        for column in given
        for name, aliases in ALIASES.items()
        if column not in table and name in table and name not in given and column.lower() in aliases
    ]
    notes += [encoding] if encoding else []
    notes += [f"{path.name}: {', '.join(renamed)}."] if renamed else []
    return _build_label_table(table, path, columns, dialect=dialect, notes=notes)


def _read_target_labels(
    path: Path, choice: Choice, slide_table: Path | None, slide_ids: Sequence[str]
) -> LabelTable:
    """Several targets of two values each, from as many columns of one table; a label may be missing."""
    names = tuple(name.strip() for name in (choice.target or "").split(","))
    if len(names) < 2:
        raise UsageError(
            "--task multilabel needs the columns of at least two targets, such as --target ER,PR,HER2."
        )
    check_target_names(names)
    found: dict[str, SlideRow] = {}
    unlabelled: list[set[str]] = []
    lines: list[str] = []
    for index, name in enumerate(names):
        one = replace(choice, task="classification", target=name)
        table = read_labels(path, choice=one, slide_table=slide_table, slide_ids=slide_ids)
        values = _order_target_values(name, table)
        lines = lines or list(table.assumptions)
        lines.append(f"'{name}': '{values[1]}' is 1, '{values[0]}' is 0.")
        unlabelled.append(set(table.excluded))
        for row in table.rows:
            known = found.get(row.slide_id, replace(row, label=None, labels=(None,) * len(names)))
            labels = (
                *known.labels[:index],
                values.index(str(row.label)),
                *known.labels[index + 1 :],
            )
            found[row.slide_id] = replace(known, labels=labels)
    excluded = sorted(
        {line for lines in unlabelled for line in lines if line.split("'")[1] not in found}
    )
    return LabelTable(
        path,
        table.dialect,
        "multilabel",
        tuple(found.values()),
        names,
        tuple(lines),
        tuple(excluded),
    )


def _order_target_values(name: str, table: LabelTable) -> tuple[str, str]:
    """The two values of a target, the one that stands for 0 first."""
    values = table.classes
    if len(values) != 2:
        raise CohortError(
            f"{table.path}: '{name}' has {len(values)} values ({shorten_list(values)}), and each of several targets has "
            "two. Make a column of two values, or leave it out of --target."
        )
    negative = [value for value in values if value.strip().lower() in _NEGATIVE]
    first = negative[0] if len(negative) == 1 else values[0]
    return first, next(value for value in values if value != first)


def _build_label_table(
    table: pd.DataFrame, path: Path, columns: Columns, *, dialect: str, notes: Sequence[str]
) -> LabelTable:
    """The rows of a table whose columns are known."""
    excluded: list[str] = []
    rows: dict[str, SlideRow] = {}
    if (measured := columns.label if columns.is_value else columns.time) is not None:
        commas = table[measured].str.extract(r"^-?\d+,(\d+)$")[0].dropna()
        # 1,234 may be a thousand; 12,5 is a decimal comma, and then all commas of the column are.
        if (commas.str.len() != 3).any():
            table = table.assign(**{measured: table[measured].str.replace(",", ".")})
            notes = [*notes, f"'{measured}' has decimal commas, which are read as points."]
    for line in list_rows(table):
        slide_id = check_slide_id(plain_id(line[columns.slide]), path)
        row = _read_row(line, columns, slide_id, path)
        if isinstance(row, str):
            excluded.append(f"slide '{slide_id}': {row}")
        # A table may repeat a line, but not contradict itself.
        elif rows.setdefault(slide_id, row) != row:
            raise CohortError(
                f"{path}: slide '{slide_id}' occurs twice with different targets. Correct the table."
            )
    if not rows:
        raise CohortError(
            f"{path}: no row has a usable target ({excluded[0] if excluded else 'no rows'})."
        )
    # Time and event belong to the case, so its slides must agree.
    cases: dict[str, SlideRow] = {}
    for row in rows.values():
        first = cases.setdefault(row.case_id, row)
        if (first.time, first.event) != (row.time, row.event):
            raise CohortError(
                f"{path}: slides '{first.slide_id}' and '{row.slide_id}' of case '{row.case_id}' have different survival. Correct the table."
            )
    classes = order_classes(row.label for row in rows.values() if row.label is not None)
    count = f"{path.name} read as a {dialect} table ({len(rows) + len(excluded)} slides)."
    lines = (*notes, count, *_list_assumptions(table[columns.slide], path, columns))
    return LabelTable(
        path, dialect, columns.task, tuple(rows.values()), classes, lines, tuple(excluded)
    )


def choose_classes(
    table: LabelTable, rows: Sequence[SlideRow], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    """The classes asked for, or those of the slides at hand in their natural order; targets; none for survival and regression."""
    if table.task in ("survival", "regression"):
        return ()
    if table.task == "multilabel":
        for index, name in enumerate(table.classes):
            if len(values := {row.labels[index] for row in rows} - {None}) < 2:
                said = (
                    f"is {values.pop()} on every slide" if values else "has no label on any slide"
                )
                raise CohortError(
                    f"{table.path}: '{name}' {said} with features, so nothing can be learned. Leave it out of --target."
                )
        return table.classes
    labels = {str(row.label) for row in rows}
    if wanted is not None and (unknown := sorted(labels - set(wanted))):
        raise UsageError(
            f"{table.path} has label '{unknown[0]}', which is none of the classes {', '.join(wanted)}."
        )
    if wanted is None and len(labels) < 2:
        raise CohortError(
            f"{table.path}: all slides with features have the label '{next(iter(labels))}'. Two classes are needed."
        )
    return order_classes(labels) if wanted is None else tuple(wanted)


def order_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """Classes by number where all are numbers, else by alphabet."""
    found = sorted(set(labels))
    return tuple(sorted(found, key=float) if all(_is_number(label) for label in found) else found)


def count_targets(rows: Sequence[SlideRow], classes: Sequence[str]) -> tuple[str, ...]:
    """Slides and cases of every class or target; the range of the values; events and censored cases of a survival cohort."""
    values = [row.value for row in rows if row.value is not None]
    if values:
        return (
            f"a value: {len(values)} slides, {min(values):.3g} to {max(values):.3g}, mean {fmean(values):.3g}",
        )
    if rows and rows[0].labels:
        return tuple(
            f"target '{name}': {known.count(1)} slides are 1, {known.count(0)} are 0, {known.count(None)} have no label"
            for index, name in enumerate(classes)
            for known in [[row.labels[index] for row in rows]]
        )
    if not classes:
        cases = {row.case_id: row.event for row in rows}
        events = sum(event == 1 for event in cases.values())
        return (f"survival: {events} cases with the event, {len(cases) - events} censored",)
    return tuple(
        f"class '{name}': {len(own)} slides of {len({row.case_id for row in own})} cases"
        for name in classes
        for own in [[row for row in rows if row.label == name]]
    )


def find_label_faults(rows: Sequence[SlideRow]) -> tuple[str, ...]:
    """What looks like a mistake in a column of labels: one class spelt in several ways, numbers, an id per slide."""
    labels = [row.label for row in rows if row.label is not None]
    distinct = sorted(set(labels))
    spellings: dict[str, list[str]] = {}
    for label in distinct:
        spellings.setdefault(re.sub(r"[\s_-]+", " ", label).strip().casefold(), []).append(label)
    faults = [
        f"{' and '.join(map(repr, variants))} are {len(variants)} classes now, and look like one: write them alike in "
        "the table and import again."
        for variants in spellings.values()
        if len(variants) > 1
    ]
    remedy = "Name the label column with --target."
    if (fault := find_measurement(rows, most=0)) is not None:
        faults.append(fault)
    elif len(distinct) > MOST_CLASSES and len(distinct) > len(labels) / 2:
        count = f"{len(distinct)} classes for {len(labels)} slides, most of them unique, such as '{distinct[0]}'"
        faults.append(f"{count}. {remedy}")
    return tuple(faults)


def find_measurement(rows: Sequence[SlideRow], *, most: int = MOST_CLASSES) -> str | None:
    """Why labels of more than so many values are measurements; None where they may be classes."""
    distinct = sorted({row.label for row in rows if row.label is not None})
    fractions = [label for label in distinct if _is_number(label) and float(label) % 1 != 0]
    if not fractions or len(distinct) <= most:
        return None
    return (
        f"{len(fractions)} of {len(distinct)} classes are fractions such as '{fractions[0]}': a measurement is not a "
        "class. Predict it with --task regression, name the label column with --target, or make a column of classes, "
        "such as low and high."
    )


def parse_event(text: str) -> int | None:
    """1 when the word or number says that the event happened, 0 when not, None when it says neither."""
    # pandas writes 1.0 for 1 in a column with gaps, cBioPortal 1:DECEASED.
    word = text.strip().lower().partition(":")[0].removesuffix(".0").removesuffix(",0")
    return 1 if word in _HAPPENED else 0 if word in _NOT_HAPPENED else None


def parse_time(text: str) -> float | None:
    """A positive duration, or None."""
    return float(text) if _is_number(text) and 0 < float(text) < float("inf") else None


def _read_label_frame(path: Path, sheet: str | None) -> pd.DataFrame:
    """The table of a file, or the tables of a folder one below the other."""
    if not path.is_dir():
        return read_frame(path, sheet=sheet)
    if sheet is not None:
        raise UsageError(f"{path} is a folder, and --sheet names a sheet of an Excel file.")
    folders = sorted(one for one in path.iterdir() if re.search(r"k=\d+$", one.name)) or [path]
    names = ("train.csv", "val.csv", "test.csv")
    files = [folder / name for folder in folders for name in names if (folder / name).is_file()]
    if not files:
        raise CohortError(
            f"{path} is a folder without train.csv and test.csv. Point at the label table."
        )
    tables = [read_frame(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if set(table) != set(tables[0]):
            raise CohortError(
                f"{file} and {files[0]} have different columns, so they are not one table."
            )
    return pd.concat(tables, ignore_index=True)


def _join_slide_table(
    clinical: pd.DataFrame, path: Path, patient: str, slide_table: Path | None
) -> tuple[pd.DataFrame, list[str]]:
    """A clinical table of STAMP or cBioPortal with one row per slide of its slide table."""
    tool = "STAMP" if patient == STAMP_PATIENT else "cBioPortal"
    if slide_table is None:
        raise UsageError(
            f"{path} is a {tool} clinical table: patients, not slides. Give the slide table ({patient}, FILENAME) with "
            "--slide-table; for a TCGA cohort of the paper, --recipe joins slides by their barcodes."
        )
    slides = read_frame(slide_table)
    if not has_columns(slides, patient, "FILENAME"):
        raise CohortError(
            f"{slide_table} is not a {tool} slide table: it needs {patient} and FILENAME."
        )
    if clinical[patient].duplicated().any():
        raise CohortError(f"{path}: a {patient} occurs twice. Keep one row per patient.")
    joined = slides[[patient, "FILENAME"]].merge(clinical, on=patient)
    slideless = sorted(set(clinical[patient]) - set(joined[patient]))
    unknown = sorted(set(slides[patient]) - set(joined[patient]))
    notes = [
        f"Patients joined: {len(clinical) - len(slideless)} of {path.name} with {len(joined)} slides of {slide_table.name}."
    ]
    notes += (
        [
            f"{len(unknown)} patients of the slide table without clinical row: {shorten_list(unknown)}."
        ]
        if unknown
        else []
    )
    notes += (
        [
            f"{len(slideless)} patients of the clinical table without slide: {shorten_list(slideless)}."
        ]
        if slideless
        else []
    )
    return joined, notes


def _join_cases(
    table: pd.DataFrame, path: Path, case: str, slide_ids: Sequence[str]
) -> tuple[pd.DataFrame, list[str]]:
    """A table of patients with one row per slide: a slide belongs to the patient its name begins with."""
    if table.empty:
        raise CohortError(f"{path} has no row below its header. Give one row per slide or patient.")
    if (table[case].duplicated() | table[case].map(is_missing)).any():
        raise CohortError(f"{path}: a {case} is empty or occurs twice. Keep one row per patient.")
    slide, own = next(
        ((one.slide, one.case) for one in DIALECTS if one.case == case), ("slide_id", "case_id")
    )
    # P1 and P1-2 both begin P1-2-A: the longer name is the patient. P1 does not begin P10.
    owners = [
        max(
            (name for name in table[case] if re.match(rf"{re.escape(name)}(?![^\W_])", slide_id)),
            key=len,
            default=None,
        )
        for slide_id in slide_ids
    ]
    joined = pd.DataFrame({case: owners, slide: slide_ids}).dropna().merge(table, on=case)
    if joined.empty:
        raise CohortError(
            f"{path} has one row per {case} ('{table[case].iloc[0]}' …), and no slide begins with one of them "
            f"('{slide_ids[0]}' …). Add a column slide_id, or for STAMP give --slide-table."
        )
    idle = sorted(set(table[case]) - set(joined[case]))
    notes = [
        f"{path.name} has one row per {case}: {len(joined)} slides joined to {len(table) - len(idle)} cases by the beginning of their names."
    ]
    notes += [f"{len(idle)} cases without a slide: {shorten_list(idle)}."] if idle else []
    return joined.rename(columns={case: own}), notes


def _read_row(line: dict[str, str], columns: Columns, slide_id: str, path: Path) -> SlideRow | str:
    """One row of ours, or the reason why the line has no target."""
    site = (line[columns.site] or None) if columns.site else None
    case_id = line[columns.case] if columns.case else ""
    if is_missing(case_id):
        case_id = tcga_case_id(slide_id) if is_tcga(slide_id) else slide_id
    if columns.label is not None:
        text = line[columns.label]
        if is_missing(text):
            return f"no label in '{columns.label}'"
        if columns.is_value:
            return SlideRow(
                slide_id, case_id, value=read_value(text, columns.label, slide_id, path), site=site
            )
        # Whole numbers lose the '.0' that pandas gives a column with gaps.
        label = text.removesuffix(".0") if _is_number(text) else text
        return SlideRow(slide_id, case_id, label=label, site=site)
    time, event = parse_time(line[columns.time or ""]), parse_event(line[columns.event or ""])
    if time is None:
        return f"no valid time in '{columns.time}' ('{line[columns.time or '']}')"
    if event is None:
        return f"no valid status in '{columns.event}' ('{line[columns.event or '']}')"
    return SlideRow(
        slide_id, case_id, time=time, event=1 - event if columns.flip else event, site=site
    )


def read_value(text: str, column: str, slide_id: str, path: Path) -> float:
    """A finite number; words are classes, and a number too large for the column is a mistake."""
    if not _is_number(text):
        raise CohortError(
            f"{path}: slide '{slide_id}' has '{text}' in '{column}', which is no number. Name a column of numbers with "
            "--target, or predict classes with --task classification."
        )
    value = float(text)
    if math.isinf(value):
        raise CohortError(
            f"{path}: slide '{slide_id}' has '{text}' in '{column}'. Give a finite number, or leave the cell empty."
        )
    return value


def _list_assumptions(slides: pd.Series, path: Path, columns: Columns) -> list[str]:
    lines = []
    if columns.flip:
        lines.append(f"'{columns.event}' 1 means censored: event = 1 - {columns.event}.")
    elif columns.event is not None:
        lines.append(f"'{columns.event}' 1 (or dead) means that the event happened.")
    if columns.is_value:
        lines.append(f"'{columns.label}' is a value to predict; it keeps the unit of the table.")
    if columns.time is not None:
        lines.append(f"Time is '{columns.time}' in the unit of the table.")
    if columns.case is None:
        how = "the slide itself, so patients with several slides cannot be kept together"
        if slides.map(plain_id).map(is_tcga).any():
            how = "the first 12 characters of TCGA barcodes"
        lines.append(f"The table names no case: the case is {how}.")
    return [*lines, *describe_stripped_ids(slides, where=path.name)]


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False
