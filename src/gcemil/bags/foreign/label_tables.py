"""Label tables of other tools as rows of ours: slide_id, case_id, label | value | time, event.

Rows without a usable target are left out and listed; a table that can be read in two ways is
refused.
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
    Dialect,
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
_NOT_HAPPENED = frozenset({"0", "alive", "living", "censored", "false", "no"})
_NEGATIVE = frozenset(
    {"0", "-", "neg", "negative", "no", "false", "absent", "low", "wt", "wildtype"}
)
"""Words for the value 0 of a target; of other words the first in their order is 0."""
MOST_CLASSES = 8
"""With more classes, labels that are mostly unique are not classes."""


@dataclass(frozen=True)
class LabelTable:
    """Slides with a target, the order of the classes, and everything assumed or left out."""

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

    A table with one row per patient is joined to the slides whose names begin with the patient.
    """
    table = _read_label_frame(path, choice.sheet)
    read = _parse_targets if choice.task == "multilabel" else parse_labels
    return read(table, path, choice=choice, slide_table=slide_table, slide_ids=tuple(slide_ids))


def parse_labels(
    table: pd.DataFrame,
    path: Path,
    *,
    choice: Choice,
    slide_table: Path | None = None,
    slide_ids: Sequence[str] = (),
) -> LabelTable:
    """The labels of a table of text cells; `path` names it in messages."""
    given, encoding = list(table), table.attrs.get("note")
    table = rename_ids(name_chosen_ids(table, path, choice))
    notes: list[str] = []
    patient = next((name for name in ("PATIENT", PATIENT_ID) if name in table), None)
    if slide_table is None and slide_ids and (case := find_case_column(table)) is not None:
        table, notes = _join_cases(table, path, case, slide_ids)
    elif patient is not None and "FILENAME" not in table:
        table, notes = _join_slide_table(table, path, patient, slide_table)
    if (parts := find_wide_parts(table)) and all(label for _, label in parts.values()):
        tool = "CAMIL" if "train" in table else "MIL_BASELINE"
        dialect = Dialect(tool, "slide", None, "label")
        pairs = [table[list(pair)].set_axis(["slide", "label"], axis=1) for pair in parts.values()]
        table = pd.concat(pairs, ignore_index=True)
        table = table[~table["slide"].map(is_missing)]
    else:
        table = rename_targets(table, choice)
        dialect = detect_dialect(table, path, choice)
    renamed = [
        f"{name} is '{column}'"
        for column in given
        for name, aliases in ALIASES.items()
        if column not in table and name in table and name not in given and column.lower() in aliases
    ]
    notes += [encoding] if encoding else []
    notes += [f"{path.name}: {', '.join(renamed)}."] if renamed else []
    return _build_label_table(table, path, dialect, notes)


def _parse_targets(
    table: pd.DataFrame,
    path: Path,
    *,
    choice: Choice,
    slide_table: Path | None,
    slide_ids: Sequence[str],
) -> LabelTable:
    """Several targets of two values each, from as many columns; a label may be missing."""
    names = tuple(name.strip() for name in (choice.target or "").split(","))
    if len(names) < 2:
        raise UsageError(
            "--task multilabel needs the columns of at least two targets, "
            "such as --target ER,PR,HER2."
        )
    check_target_names(names)
    rows: dict[str, SlideRow] = {}
    lines: list[str] = []
    excluded: set[str] = set()
    for index, name in enumerate(names):
        one = replace(choice, task="classification", target=name)
        labels = parse_labels(table, path, choice=one, slide_table=slide_table, slide_ids=slide_ids)
        values = _order_target_values(name, labels)
        lines = lines or list(labels.assumptions)
        lines.append(f"'{name}': '{values[1]}' is 1, '{values[0]}' is 0.")
        excluded |= set(labels.excluded)
        for row in labels.rows:
            known = rows.get(row.slide_id, replace(row, label=None, labels=(None,) * len(names)))
            bits = list(known.labels)
            bits[index] = values.index(str(row.label))
            rows[row.slide_id] = replace(known, labels=tuple(bits))
    left_out = sorted(line for line in excluded if line.split("'")[1] not in rows)
    return LabelTable(
        path,
        labels.dialect,
        "multilabel",
        tuple(rows.values()),
        names,
        tuple(lines),
        tuple(left_out),
    )


def _order_target_values(name: str, table: LabelTable) -> tuple[str, str]:
    """The two values of a target, the one that stands for 0 first."""
    values = table.classes
    if len(values) != 2:
        raise CohortError(
            f"{table.path}: '{name}' has {len(values)} values ({shorten_list(values)}), and each "
            "of several targets has two. Make a column of two values, or leave it out of --target."
        )
    negative = [value.strip().lower() in _NEGATIVE for value in values]
    return (values[1], values[0]) if negative == [False, True] else (values[0], values[1])


def _build_label_table(
    table: pd.DataFrame, path: Path, dialect: Dialect, notes: Sequence[str]
) -> LabelTable:
    """The rows of a table whose columns are known."""
    excluded: list[str] = []
    rows: dict[str, SlideRow] = {}
    if measured := dialect.label if dialect.is_value else dialect.time:
        commas = table[measured].str.extract(r"^-?\d+,(\d+)$")[0].dropna()
        # 1,234 may be a thousand; 12,5 is a decimal comma, and then all commas of the column are.
        if (commas.str.len() != 3).any():
            table = table.assign(**{measured: table[measured].str.replace(",", ".")})
            notes = [*notes, f"'{measured}' has decimal commas, which are read as points."]
    for line in list_rows(table):
        slide_id = check_slide_id(plain_id(line[dialect.slide]), path)
        row = _read_row(line, dialect, slide_id, path)
        if isinstance(row, str):
            excluded.append(f"slide '{slide_id}': {row}")
        # A table may repeat a line, but not contradict itself.
        elif rows.setdefault(slide_id, row) != row:
            raise CohortError(
                f"{path}: slide '{slide_id}' occurs twice with different targets. "
                "Correct the table."
            )
    if not rows:
        raise CohortError(
            f"{path}: no row has a usable target ({excluded[0] if excluded else 'no rows'})."
        )
    if dialect.time:
        cases: dict[str, SlideRow] = {}
        for row in rows.values():
            first = cases.setdefault(row.case_id, row)
            if first.target != row.target:
                raise CohortError(
                    f"{path}: slides '{first.slide_id}' and '{row.slide_id}' of case "
                    f"'{row.case_id}' have different survival. Correct the table."
                )
    classes = order_classes(row.label for row in rows.values() if row.label is not None)
    count = f"{path.name} read as a {dialect.tool} table ({len(rows) + len(excluded)} slides)."
    lines = (*notes, count, *_list_assumptions(table[dialect.slide], path, dialect))
    return LabelTable(
        path, dialect.tool, dialect.task, tuple(rows.values()), classes, lines, tuple(excluded)
    )


def _read_row(line: dict[str, str], dialect: Dialect, slide_id: str, path: Path) -> SlideRow | str:
    """One row of ours, or the reason why the line has no target."""
    case_id = line[dialect.case] if dialect.case else ""
    if is_missing(case_id):
        case_id = tcga_case_id(slide_id) if is_tcga(slide_id) else slide_id
    row = SlideRow(slide_id, case_id, site=line.get("site") or None)
    if dialect.label is not None:
        text = line[dialect.label]
        if is_missing(text):
            return f"no label in '{dialect.label}'"
        if dialect.is_value:
            return replace(row, value=read_value(text, dialect.label, slide_id, path))
        # Whole numbers lose the '.0' that pandas gives a column with gaps.
        return replace(row, label=text.removesuffix(".0") if _is_number(text) else text)
    time, event = parse_time(line[dialect.time]), parse_event(line[dialect.event])
    if time is None:
        return f"no valid time in '{dialect.time}' ('{line[dialect.time]}')"
    if event is None:
        return f"no valid status in '{dialect.event}' ('{line[dialect.event]}')"
    return replace(row, time=time, event=1 - event if dialect.flip else event)


def read_value(text: str, column: str, slide_id: str, path: Path) -> float:
    """A finite number; words are classes, and a number too large for the column is a mistake."""
    fault = ""
    if not _is_number(text):
        fault = (
            ", which is not a number. Name a column of numbers with --target, or predict classes "
            "with --task classification."
        )
    elif math.isinf(float(text)):
        fault = ". Give a finite number, or leave the cell empty."
    if fault:
        raise CohortError(f"{path}: slide '{slide_id}' has '{text}' in '{column}'{fault}")
    return float(text)


def _list_assumptions(slides: pd.Series, path: Path, dialect: Dialect) -> list[str]:
    lines = []
    if dialect.flip:
        lines.append(f"'{dialect.event}' 1 means censored: event = 1 - {dialect.event}.")
    elif dialect.event:
        lines.append(f"'{dialect.event}' 1 (or dead) means that the event happened.")
    if dialect.is_value:
        lines.append(f"'{dialect.label}' is a value to predict; it keeps the unit of the table.")
    if dialect.time:
        lines.append(f"Time is '{dialect.time}' in the unit of the table.")
    if dialect.case is None:
        how = "the slide itself, so patients with several slides cannot be kept together"
        if slides.map(plain_id).map(is_tcga).any():
            how = "the first 12 characters of TCGA barcodes"
        lines.append(f"The table names no case: the case is {how}.")
    return [*lines, *describe_stripped_ids(slides, where=path.name)]


def parse_event(text: str) -> int | None:
    """1 if the word or number means that the event happened, 0 if not, None for neither."""
    # pandas writes 1.0 for 1 in a column with gaps, cBioPortal 1:DECEASED.
    word = text.strip().lower().partition(":")[0].removesuffix(".0").removesuffix(",0")
    return 1 if word in _HAPPENED else 0 if word in _NOT_HAPPENED else None


def parse_time(text: str) -> float | None:
    """A positive duration, or None."""
    return float(text) if _is_number(text) and 0 < float(text) < math.inf else None


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


# Classes


def choose_classes(
    table: LabelTable, rows: Sequence[SlideRow], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    """The wanted classes, or those of the given slides in their natural order; or the targets."""
    if table.task in ("survival", "regression"):
        return ()
    if table.task == "multilabel":
        for index, name in enumerate(table.classes):
            values = {row.labels[index] for row in rows} - {None}
            if len(values) < 2:
                what = "has no label on any slide"
                what = f"is {values.pop()} on every slide" if values else what
                raise CohortError(
                    f"{table.path}: '{name}' {what} with features, so nothing can be learned. "
                    "Leave it out of --target."
                )
        return table.classes
    labels = {str(row.label) for row in rows}
    if wanted is not None:
        if unknown := sorted(labels - set(wanted)):
            raise UsageError(
                f"{table.path} has label '{unknown[0]}', which is none of the classes "
                f"{', '.join(wanted)}."
            )
        return tuple(wanted)
    if len(labels) < 2:
        raise CohortError(
            f"{table.path}: all slides with features have the label '{next(iter(labels))}'. "
            "Two classes are needed."
        )
    return order_classes(labels)


def order_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """Classes by number where all are numbers, else by alphabet."""
    names = sorted(set(labels))
    return tuple(sorted(names, key=float) if all(map(_is_number, names)) else names)


def count_targets(rows: Sequence[SlideRow], classes: Sequence[str]) -> tuple[str, ...]:
    """Slides and cases of every class, or the range of the values, or the events."""
    values = [row.value for row in rows if row.value is not None]
    if values:
        span = f"{min(values):.3g} to {max(values):.3g}, mean {fmean(values):.3g}"
        return (f"a value: {len(values)} slides, {span}",)
    if not classes:
        events = [event == 1 for event in {row.case_id: row.event for row in rows}.values()]
        n_events = sum(events)
        return (f"survival: {n_events} cases with the event, {len(events) - n_events} censored",)
    lines = []
    for index, name in enumerate(classes):
        if rows and rows[0].labels:
            ones, zeros, unknown = (
                sum(row.labels[index] == value for row in rows) for value in (1, 0, None)
            )
            lines.append(
                f"target '{name}': {ones} slides are 1, {zeros} are 0, {unknown} have no label"
            )
        else:
            cases = [row.case_id for row in rows if row.label == name]
            lines.append(f"class '{name}': {len(cases)} slides of {len(set(cases))} cases")
    return tuple(lines)


def find_label_faults(rows: Sequence[SlideRow]) -> tuple[str, ...]:
    """What looks like a mistake: one class spelt in several ways, numbers, an id per slide."""
    labels = [row.label for row in rows if row.label is not None]
    distinct = sorted(set(labels))
    spellings: dict[str, list[str]] = {}
    for label in distinct:
        spellings.setdefault(re.sub(r"[\s_-]+", " ", label).strip().casefold(), []).append(label)
    faults = [
        f"{' and '.join(map(repr, variants))} are {len(variants)} classes now, and look like one: "
        "write them alike in the table and import again."
        for variants in spellings.values()
        if len(variants) > 1
    ]
    if (fault := find_measurement(rows, most=0)) is not None:
        faults.append(fault)
    elif len(distinct) > MOST_CLASSES and len(distinct) > len(labels) / 2:
        faults.append(
            f"{len(distinct)} classes for {len(labels)} slides, most of them unique, such as "
            f"'{distinct[0]}'. Name the label column with --target."
        )
    return tuple(faults)


def find_measurement(rows: Sequence[SlideRow], *, most: int = MOST_CLASSES) -> str | None:
    """Why labels with many values are measurements; None if they may be classes."""
    distinct = sorted({row.label for row in rows if row.label is not None})
    fractions = [label for label in distinct if _is_number(label) and float(label) % 1 != 0]
    if not fractions or len(distinct) <= most:
        return None
    return (
        f"{len(fractions)} of {len(distinct)} classes are fractions such as '{fractions[0]}': a "
        "measurement is not a class. Predict it with --task regression, name the label column "
        "with --target, or make a column of classes, such as low and high."
    )


# Tables that are joined


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
    tool = "STAMP" if patient == "PATIENT" else "cBioPortal"
    if slide_table is None:
        raise UsageError(
            f"{path} is a {tool} clinical table: patients, not slides. Give the slide table "
            f"({patient}, FILENAME) with --slide-table; for a TCGA cohort of the paper, --recipe "
            "joins slides by their barcodes."
        )
    slides = read_frame(slide_table)
    if not has_columns(slides, patient, "FILENAME"):
        raise CohortError(
            f"{slide_table} is not a {tool} slide table: it needs {patient} and FILENAME."
        )
    if clinical[patient].duplicated().any():
        raise CohortError(f"{path}: a {patient} occurs twice. Keep one row per patient.")
    joined = slides[[patient, "FILENAME"]].merge(clinical, on=patient)
    patients = set(joined[patient])
    notes = [
        f"Patients joined: {len(patients)} of {path.name} with {len(joined)} slides of "
        f"{slide_table.name}."
    ]
    alone = {
        "slide table without clinical row": set(slides[patient]) - patients,
        "clinical table without slide": set(clinical[patient]) - patients,
    }
    notes += [
        f"{len(names)} patients of the {where}: {shorten_list(sorted(names))}."
        for where, names in alone.items()
        if names
    ]
    return joined, notes


def _join_cases(
    table: pd.DataFrame, path: Path, case: str, slide_ids: Sequence[str]
) -> tuple[pd.DataFrame, list[str]]:
    """A table of patients with one row per slide: its name begins with that of its patient."""
    if table.empty:
        raise CohortError(f"{path} has no row below its header. Give one row per slide or patient.")
    if (table[case].duplicated() | table[case].map(is_missing)).any():
        raise CohortError(f"{path}: a {case} is empty or occurs twice. Keep one row per patient.")
    known = ((one.slide, str(one.case)) for one in DIALECTS if one.case == case)
    slide, own = next(known, ("slide_id", "case_id"))
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
            f"{path} has one row per {case} ('{table[case].iloc[0]}' …), and no slide begins with "
            f"one of them ('{slide_ids[0]}' …). Add a column slide_id, or for STAMP give "
            "--slide-table."
        )
    idle = sorted(set(table[case]) - set(joined[case]))
    notes = [
        f"{path.name} has one row per {case}: {len(joined)} slides joined to "
        f"{len(table) - len(idle)} cases by the beginning of their names."
    ]
    notes += [f"{len(idle)} cases without a slide: {shorten_list(idle)}."] if idle else []
    return joined.rename(columns={case: own}), notes
