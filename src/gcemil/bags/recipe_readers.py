"""Readers of officially distributed label tables: classes by slide or by case, survival, CAMELYON16.

GDC survival: event = 1 when vital_status is Dead, time = days_to_death then, days_to_last_follow_up otherwise. Cases
without a valid time or status are left out and listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from gcemil.bags.cohort import SlideRow
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.ids import is_tcga, plain_id, stripped_line, tcga_case_id
from gcemil.bags.foreign.rawtable import RawTable, is_missing, read_raw_table
from gcemil.bags.foreign.tables import LabelTable, event_of, read_labels, time_of
from gcemil.errors import CohortError, UsageError

Roles = Mapping[str, tuple[str, ...]]


def read_classes(
    path: Path,
    slide_ids: Sequence[str],
    *,
    columns: Roles,
    class_of: Mapping[str, str],
    sheet: str | None = None,
    tcga: bool = False,
) -> LabelTable:
    """A table of classes, one line per slide; a TCGA table may have one line per case instead."""
    table = read_raw_table(path, sheet=sheet if path.suffix.lower() == ".xlsx" else None)
    found = _roles(table, columns)
    label = _needed(table, found, columns, "label")
    excluded: list[str] = []
    rows: dict[str, SlideRow] = {}
    by_slide = "slide" in found
    if not by_slide and not (tcga and "case" in found):
        raise _missing(table, columns, "slide")
    slides_of = _slides_by_case(slide_ids) if not by_slide else {}
    for line in table.rows:
        name = plain_id(line[found["slide"]]) if by_slide else tcga_case_id(line[found["case"]])
        value = class_of.get(line[label].lower().removesuffix(".0"))
        if value is None:
            excluded.append(
                f"{'slide' if by_slide else 'case'} '{name}': '{line[label]}' in '{label}' is none of the classes"
            )
            continue
        for slide_id in [name] if by_slide else slides_of.get(name, []):
            row = SlideRow(
                slide_id, _case_id(line, found, slide_id, tcga=tcga), label=value, site=_site(line, found)
            )
            if rows.setdefault(slide_id, row) != row:
                raise CohortError(f"{path}: slide '{slide_id}' has two different rows. Correct the table.")
        if not by_slide and name not in slides_of:
            excluded.append(f"case '{name}': no slide in the features folder")
    lines = _class_lines(table, found, tcga=tcga)
    return _finished(path, "official", "classification", rows, lines, excluded)


def read_survival(path: Path, slide_ids: Sequence[str], *, columns: Roles) -> LabelTable:
    """MCAT-style and PANTHER-style tables by slide, or GDC's clinical table by case."""
    if path.is_dir():
        return read_labels(path, choice=Choice(task="survival"))
    table = read_raw_table(path)
    found = _roles(table, columns)
    if "status" not in found:
        return read_labels(path, choice=Choice(task="survival"))
    for role in ("case", "death", "follow_up"):
        _needed(table, found, columns, role)
    lines = [
        f"{path.name} read as GDC's clinical table: event = 1 when '{found['status']}' is Dead.",
        f"Time in days: '{found['death']}' when dead, else '{found['follow_up']}'.",
        "Slides joined to cases by the first 12 characters of their barcode.",
    ]
    excluded: list[str] = []
    rows: dict[str, SlideRow] = {}
    slides_of = _slides_by_case(slide_ids)
    for case_id, entries in _entries_by_case(table, found["case"]).items():
        outcome = _gdc_outcome(entries, found)
        if isinstance(outcome, str):
            excluded.append(f"case '{case_id}': {outcome}")
            continue
        time, event, remark = outcome
        lines += [f"case '{case_id}': {remark}"] if remark else []
        rows |= {one: SlideRow(one, case_id, time=time, event=event) for one in slides_of.get(case_id, [])}
        excluded += [] if case_id in slides_of else [f"case '{case_id}': no slide in the features folder"]
    return _finished(path, "GDC clinical", "survival", rows, lines, excluded)


def read_camelyon16(
    path: Path | None,
    slide_ids: Sequence[str],
    *,
    source: Path,
    class_of: Mapping[str, str],
    excluded: Mapping[str, str],
) -> LabelTable:
    """Training slides by their names, test slides by the header-less reference.csv."""
    reference: dict[str, str] = {}
    if path is not None:
        reference = {
            plain_id(line["0"]): line["1"].lower() for line in read_raw_table(path, header=False).rows
        }
    left_out: list[str] = []
    rows: dict[str, SlideRow] = {}
    for slide_id in sorted(slide_ids):
        label = class_of.get(reference.get(slide_id) or slide_id.partition("_")[0].lower())
        if slide_id in excluded:
            left_out.append(f"slide '{slide_id}': {excluded[slide_id]}")
        elif label is None:
            left_out.append(
                f"slide '{slide_id}': neither its name nor {path.name if path else 'a reference.csv'} gives a label"
            )
        else:
            rows[slide_id] = SlideRow(slide_id, slide_id, label=label)
    lines = [
        "Labels come from slide names (normal_, tumor_) and, for test slides, from reference.csv.",
        "Every slide is its own case.",
    ]
    return _finished(path or source, "CAMELYON16", "classification", rows, lines, left_out)


def _finished(
    path: Path,
    dialect: str,
    task: Literal["classification", "survival"],
    rows: dict[str, SlideRow],
    lines: Sequence[str],
    excluded: Sequence[str],
) -> LabelTable:
    if not rows:
        reason = excluded[0] if excluded else "the table has no rows"
        raise CohortError(f"{path}: no slide has a usable target ({reason}).")
    return LabelTable(path, dialect, task, tuple(rows.values()), (), tuple(lines), tuple(excluded))


def _gdc_outcome(entries: Sequence[dict[str, str]], found: Mapping[str, str]) -> tuple[float, int, str] | str:
    """Time, event and a remark for a case, or the reason why it has none; GDC repeats a case per treatment."""
    states = {event_of(entry[found["status"]]) for entry in entries} - {None}
    if len(states) != 1:
        return f"no valid status in '{found['status']}' ({', '.join(sorted({entry[found['status']] for entry in entries}))})"
    event = int(states.pop() or 0)
    column = found["death"] if event else found["follow_up"]
    times = sorted({time for entry in entries if (time := time_of(entry[column])) is not None})
    if not times:
        return f"no valid time in '{column}' ('{entries[0][column]}')"
    remark = f"{len(times)} values in '{column}', the largest taken" if len(times) > 1 else ""
    return times[-1], event, remark


def _entries_by_case(table: RawTable, column: str) -> dict[str, list[dict[str, str]]]:
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line in table.rows:
        groups[tcga_case_id(line[column])].append(line)
    return groups


def _slides_by_case(slide_ids: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for slide_id in sorted(slide_ids):
        groups[tcga_case_id(slide_id)].append(slide_id)
    return dict(groups)


def _case_id(line: dict[str, str], found: Mapping[str, str], slide_id: str, *, tcga: bool) -> str:
    if tcga and is_tcga(slide_id):
        return tcga_case_id(slide_id)
    value = line[found["case"]] if "case" in found else ""
    return slide_id if is_missing(value) else value


def _site(line: dict[str, str], found: Mapping[str, str]) -> str | None:
    return (line[found["site"]] or None) if "site" in found else None


def _class_lines(table: RawTable, found: Mapping[str, str], *, tcga: bool) -> list[str]:
    lines = [
        f"{table.path.name}: {', '.join(f'{role} is {chr(39)}{column}{chr(39)}' for role, column in found.items())}."
    ]
    if tcga:
        lines.append("Cases are the first 12 characters of TCGA barcodes.")
    elif "case" not in found:
        lines.append("The table names no patients, so every slide is its own case.")
    names = (line[found["slide"]] for line in table.rows) if "slide" in found else ()
    return [*lines, *stripped_line(names, where=table.path.name)]


def _roles(table: RawTable, columns: Roles) -> dict[str, str]:
    """Role → the first of its column names that the table has, whatever the case of letters."""
    own = {column.strip().lower(): column for column in table.columns}
    found = {}
    for role, names in columns.items():
        if column := next((own[name.lower()] for name in names if name.lower() in own), None):
            found[role] = column
    return found


def _needed(table: RawTable, found: Mapping[str, str], columns: Roles, role: str) -> str:
    if role not in found:
        raise _missing(table, columns, role)
    return found[role]


def _missing(table: RawTable, columns: Roles, role: str) -> UsageError:
    return UsageError(
        f"{table.path} has no column for the {role} (one of {', '.join(columns.get(role, ()))}); it has: {', '.join(table.columns)}."
    )
