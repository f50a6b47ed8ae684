"""Label tables of other tools as rows of ours: slide_id, case_id, label | time, event.

Rows without a usable target are left out and listed; a table that can be read in two ways is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gcemil.bags.cohort import SlideRow, Task, find_disagreements
from gcemil.bags.foreign.dialects import (
    ID_COLUMNS,
    PATIENT_ID,
    Choice,
    Columns,
    detect_dialect,
    find_case_column,
    find_wide_parts,
)
from gcemil.bags.foreign.source import describe_stripped_ids, is_tcga, plain_id, tcga_case_id
from gcemil.bags.tables import RawTable, check_slide_id, is_missing, read_raw_table, stack_tables
from gcemil.errors import CohortError, UsageError

_HAPPENED = frozenset({"1", "dead", "deceased", "died", "death", "event", "true", "yes"})
_NOT_HAPPENED = frozenset({"0", "alive", "living", "censored", "false", "no"})
MOST_CLASSES = 8
"""Above so many, labels that are mostly unique are no classes."""
STAMP_PATIENT = "PATIENT"
_SPLIT_FOLDER = re.compile(r"k=\d+$")


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
    """The label table in this file (or in a folder of train.csv, test.csv), whatever tool it was written for.

    A table with one row per patient is joined to the slides whose names begin with the patient, where these are given.
    """
    raw = _read_raw_labels(path)
    notes: list[str] = []
    names = list(slide_ids)
    patient = next((name for name in (STAMP_PATIENT, PATIENT_ID) if raw.has(name)), None)
    if slide_table is None and names and (case := find_case_column(raw)) is not None:
        raw, notes = _join_cases(raw, case, names)
    elif patient is not None and not raw.has("FILENAME"):
        raw, notes = _join_slide_table(raw, patient, slide_table)
    if (parts := find_wide_parts(raw)) and all(label for _, label in parts.values()):
        dialect = "CAMIL" if "train" in raw.columns else "MIL_BASELINE"
        columns = Columns("slide", None, label="label")
        raw = _stack_parts(raw, parts)
    else:
        dialect, columns = detect_dialect(raw, choice)
    return _build_label_table(raw, columns, dialect=dialect, notes=notes)


def _build_label_table(raw: RawTable, columns: Columns, *, dialect: str, notes: Sequence[str]) -> LabelTable:
    """Rows of a table whose columns are known."""
    excluded: list[str] = []
    rows: dict[str, SlideRow] = {}
    for line in raw.rows:
        slide_id = check_slide_id(plain_id(line[columns.slide]), raw.path)
        target = _read_target(line, columns)
        if isinstance(target, str):
            excluded.append(f"slide '{slide_id}': {target}")
            continue
        row = replace(target, slide_id=slide_id, case_id=_read_case(line, columns, slide_id))
        # A table may repeat a line, but not contradict itself.
        if rows.setdefault(slide_id, row) != row:
            raise CohortError(
                f"{raw.path}: slide '{slide_id}' stands twice with different targets. Correct the table."
            )
    if not rows:
        raise CohortError(
            f"{raw.path}: no row has a usable target ({excluded[0] if excluded else 'no rows'})."
        )
    # Time and event belong to the case, so its slides must agree.
    for first, row in find_disagreements(rows.values()) if columns.task == "survival" else ():
        raise CohortError(
            f"{raw.path}: slides '{first.slide_id}' and '{row.slide_id}' of case '{row.case_id}' have different survival. Correct the table."
        )
    classes = order_classes(row.label for row in rows.values() if row.label is not None)
    lines = [*notes, *_list_assumptions(raw, columns, dialect, len(rows) + len(excluded))]
    return LabelTable(
        raw.path, dialect, columns.task, tuple(rows.values()), classes, tuple(lines), tuple(excluded)
    )


def choose_classes(
    table: LabelTable, rows: Sequence[SlideRow], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    """The classes asked for, or those of the slides at hand in their natural order; none for survival."""
    if table.task == "survival":
        return ()
    found = {str(row.label) for row in rows}
    if wanted is not None:
        if unknown := sorted(found - set(wanted)):
            raise UsageError(
                f"{table.path} has label '{unknown[0]}', which is none of the classes {', '.join(wanted)}."
            )
        return tuple(wanted)
    if len(found) < 2:
        raise CohortError(
            f"{table.path}: all slides with features have the label '{next(iter(found))}'. Two classes are needed."
        )
    return order_classes(found)


def order_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """Classes by number where all are numbers, else by alphabet."""
    found = sorted(set(labels))
    return tuple(sorted(found, key=float) if all(_is_number(label) for label in found) else found)


def count_targets(rows: Sequence[SlideRow], classes: Sequence[str]) -> tuple[str, ...]:
    """Slides and cases of every class; events and censored cases of a survival cohort."""
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
    spelt: dict[str, list[str]] = {}
    for label in distinct:
        spelt.setdefault(re.sub(r"[\s_-]+", " ", label).strip().casefold(), []).append(label)
    found = [
        f"{' and '.join(repr(label) for label in variants)} are {len(variants)} classes now, and look like one: "
        "write them alike in the table and import again."
        for variants in spelt.values()
        if len(variants) > 1
    ]
    if fractions := [label for label in distinct if _is_number(label) and float(label) % 1 != 0]:
        found.append(
            f"{len(fractions)} of {len(distinct)} classes are fractions such as '{fractions[0]}': a measurement is no class. "
            "Name the label column with --target."
        )
    elif len(distinct) > MOST_CLASSES and len(distinct) > len(labels) / 2:
        found.append(
            f"{len(distinct)} classes for {len(labels)} slides, most of them unique, such as '{distinct[0]}': "
            "name the label column with --target."
        )
    return tuple(found)


def parse_event(text: str) -> int | None:
    """1 when the word or number says that the event happened, 0 when not, None when it says neither."""
    # pandas writes 1.0 for 1 in a column with gaps, cBioPortal 1:DECEASED.
    word = text.strip().lower().partition(":")[0].removesuffix(".0")
    return 1 if word in _HAPPENED else 0 if word in _NOT_HAPPENED else None


def parse_time(text: str) -> float | None:
    """A positive duration, or None."""
    return float(text) if _is_number(text) and 0 < float(text) < float("inf") else None


def _read_raw_labels(path: Path) -> RawTable:
    if not path.is_dir():
        return read_raw_table(path)
    folders = sorted(found for found in path.iterdir() if _SPLIT_FOLDER.search(found.name)) or [path]
    names = ("train.csv", "val.csv", "test.csv")
    files = [folder / name for folder in folders for name in names if (folder / name).is_file()]
    if not files:
        raise CohortError(f"{path} is a folder without train.csv and test.csv. Point at the label table.")
    return stack_tables(path, (read_raw_table(file) for file in files))


def _join_slide_table(
    clinical: RawTable, patient: str, slide_table: Path | None
) -> tuple[RawTable, list[str]]:
    """A clinical table of STAMP or cBioPortal with one row per slide of its slide table."""
    tool = "STAMP" if patient == STAMP_PATIENT else "cBioPortal"
    if slide_table is None:
        raise UsageError(
            f"{clinical.path} is a {tool} clinical table: patients, not slides. Give the slide table ({patient}, FILENAME) with "
            "--slide-table; for a TCGA cohort of the paper, --recipe joins slides by their barcodes."
        )
    slides = read_raw_table(slide_table)
    if not slides.has(patient, "FILENAME"):
        raise CohortError(f"{slide_table} is no {tool} slide table: it needs {patient} and FILENAME.")
    by_patient = {row[patient]: row for row in clinical.rows}
    if len(by_patient) != len(clinical.rows):
        raise CohortError(f"{clinical.path}: a {patient} stands twice. Keep one row per patient.")
    rows = tuple({**by_patient[row[patient]], **row} for row in slides.rows if row[patient] in by_patient)
    unknown = sorted({row[patient] for row in slides.rows} - set(by_patient))
    idle = sorted(set(by_patient) - {row[patient] for row in slides.rows})
    notes = [
        f"Patients joined: {len(by_patient) - len(idle)} of {clinical.path.name} with {len(rows)} slides of {slide_table.name}."
    ]
    notes += [f"Patients of the slide table without clinical row: {', '.join(unknown)}."] if unknown else []
    notes += [f"Patients of the clinical table without slide: {', '.join(idle)}."] if idle else []
    return RawTable(clinical.path, (*clinical.columns, "FILENAME"), rows), notes


def _join_cases(table: RawTable, case: str, slide_ids: Sequence[str]) -> tuple[RawTable, list[str]]:
    """A table of patients with one row per slide: a slide belongs to the patient its name begins with."""
    if not table.rows:
        raise CohortError(f"{table.path} has no row below its header. Give one row per slide or patient.")
    by_case = {row[case]: row for row in table.rows if not is_missing(row[case])}
    if len(by_case) != len(table.rows):
        raise CohortError(f"{table.path}: a {case} is empty or stands twice. Keep one row per patient.")
    slide, own = next((pair for pair in ID_COLUMNS if pair[1] == case), ("slide_id", "case_id"))
    rows = []
    for slide_id in slide_ids:
        if owners := [name for name in by_case if _begins_with(slide_id, name)]:
            # P1 and P1-2 both begin P1-2-A: the longer name is the patient.
            owner = max(owners, key=len)
            rows.append({**by_case[owner], own: owner, slide: slide_id})
    if not rows:
        raise CohortError(
            f"{table.path} has one row per {case} ('{next(iter(by_case))}' …), and no slide begins with one of them "
            f"('{slide_ids[0]}' …). Add a column slide_id, or for STAMP give --slide-table."
        )
    idle = sorted(set(by_case) - {row[own] for row in rows})
    notes = [
        f"{table.path.name} has one row per {case}: {len(rows)} slides joined to {len(by_case) - len(idle)} cases by the beginning of their names."
    ]
    notes += [f"Cases without a slide: {', '.join(idle)}."] if idle else []
    columns = [name for name in table.columns if name != case]
    return RawTable(table.path, (own, slide, *columns), tuple(rows)), notes


def _begins_with(slide_id: str, case: str) -> bool:
    """Whether the name of a slide is that of the case, or goes on after it with a mark that is no letter or digit."""
    rest = slide_id.removeprefix(case)
    return slide_id.startswith(case) and (not rest or not rest[0].isalnum())


def _stack_parts(raw: RawTable, parts: dict[str, tuple[str, str | None]]) -> RawTable:
    """One row per slide out of a table with a pair of columns per part."""
    rows = [
        {"slide": line[ids], "label": line[label or ""]}
        for ids, label in parts.values()
        for line in raw.rows
        if not is_missing(line[ids])
    ]
    return RawTable(raw.path, ("slide", "label"), tuple(rows))


def _read_target(line: dict[str, str], columns: Columns) -> SlideRow | str:
    """A row with its target and no ids yet, or the reason why there is none."""
    site = (line[columns.site] or None) if columns.site else None
    if columns.label is not None:
        text = line[columns.label]
        if is_missing(text):
            return f"no label in '{columns.label}'"
        # Whole numbers lose the '.0' that pandas gives a column with gaps.
        label = text.removesuffix(".0") if _is_number(text) else text
        return SlideRow("", "", label=label, site=site)
    time, event = parse_time(line[columns.time or ""]), parse_event(line[columns.event or ""])
    if time is None:
        return f"no valid time in '{columns.time}' ('{line[columns.time or '']}')"
    if event is None:
        return f"no valid status in '{columns.event}' ('{line[columns.event or '']}')"
    return SlideRow("", "", time=time, event=1 - event if columns.censorship else event, site=site)


def _read_case(line: dict[str, str], columns: Columns, slide_id: str) -> str:
    if columns.case is not None and not is_missing(line[columns.case]):
        return line[columns.case]
    return tcga_case_id(slide_id) if is_tcga(slide_id) else slide_id


def _list_assumptions(raw: RawTable, columns: Columns, dialect: str, n_rows: int) -> list[str]:
    lines = [f"{raw.path.name} read as a {dialect} table ({n_rows} slides)."]
    if columns.censorship:
        lines.append(f"'{columns.event}' 1 means censored: event = 1 - {columns.event}.")
    elif columns.event is not None:
        lines.append(f"'{columns.event}' 1 (or dead) means that the event happened.")
    if columns.time is not None:
        lines.append(f"Time is '{columns.time}' in the unit of the table.")
    if columns.case is None:
        how = "the slide itself, so patients with several slides cannot be kept together"
        if any(is_tcga(plain_id(line[columns.slide])) for line in raw.rows):
            how = "the first 12 characters of TCGA barcodes"
        lines.append(f"The table names no case: the case is {how}.")
    return [*lines, *describe_stripped_ids((line[columns.slide] for line in raw.rows), where=raw.path.name)]


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False
