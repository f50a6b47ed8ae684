"""The paper's ten datasets: the official label table and a features folder become a cohort.

A spec (resources/datasets/<name>.yaml) says which columns and values to read, the order of the classes, the anchor
family, and the number of slides the paper reports; a different number is a warning with both.

GDC survival: event = 1 when vital_status is Dead, time = days_to_death then, days_to_last_follow_up otherwise. Cases
without a valid time or status are left out and listed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from gcemil.bags.cohort import SlideRow, Task
from gcemil.bags.folds import Fold, Part
from gcemil.bags.foreign.cohort_import import ImportReport, write_cohort
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.label_tables import LabelTable, parse_event, parse_time, read_labels
from gcemil.bags.foreign.layouts import read_folder
from gcemil.bags.foreign.source import (
    ForeignFolder,
    ReadOptions,
    describe_stripped_ids,
    is_tcga,
    plain_id,
    tcga_case_id,
)
from gcemil.bags.tables import is_missing, list_rows, read_frame
from gcemil.errors import CohortError, UsageError
from gcemil.resources import read_shipped

Roles = Mapping[str, tuple[str, ...]]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassSpec(_Closed):
    """A class of the cohort and the values of the official table that mean it."""

    name: str
    values: tuple[str, ...]


class Exclusion(_Closed):
    """A slide known to be unusable, for the whole cohort or for lesion metrics alone."""

    slide: str
    reason: str
    scope: Literal["cohort", "lesion_metrics"]


class Expected(_Closed):
    """Slide counts to compare with, and who states them."""

    slides: int
    classes: dict[str, int] = Field(default_factory=dict)
    origin: str = "the paper"


class DatasetSpec(_Closed):
    """One dataset of the paper: where its labels stand and what they mean."""

    name: str
    title: str
    source: str
    task: Task
    reader: Literal["classes", "survival", "camelyon16"]
    sheet: str | None = None
    tcga: bool = False
    """Case ids are the first twelve characters of barcodes, and a table may list cases instead of slides."""
    columns: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Role → names of the column in the official tables, the first found wins."""
    classes: tuple[ClassSpec, ...] = ()
    paper_split_unit: str
    anchors: str
    expected: Expected
    prognostic_factors: tuple[str, ...] = ()
    official_test: str | None = None
    """How the names of the official test slides begin; None: there is no official test set."""
    exclusions: tuple[Exclusion, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in their order."""
        return tuple(one.name for one in self.classes)

    @property
    def class_of(self) -> dict[str, str]:
        """Lower-case value of the official table → class."""
        return {value.lower(): one.name for one in self.classes for value in one.values}


@cache
def load_dataset_spec(name: str) -> DatasetSpec:
    """The spec of one dataset."""
    return DatasetSpec.model_validate(read_shipped("datasets", name, "recipe"))


def import_dataset(
    name: str,
    source: Path,
    out: Path,
    *,
    labels: Path | None = None,
    splits: Path | None = None,
    official_split: bool = False,
    copy: bool = False,
    force: bool = False,
    options: ReadOptions = ReadOptions(),
) -> ImportReport:
    """Write a cohort of one of the paper's datasets; `official_split` makes its official test set that of fold 0."""
    plan = load_dataset_spec(name)
    if official_split and (plan.official_test is None or splits is not None):
        reason = (
            "has no official test set" if plan.official_test is None else "was given --splits too"
        )
        raise UsageError(
            f"Recipe '{name}' {reason}. Leave --official-split away, or run 'gcemil split'."
        )
    folder = read_folder(source, options)
    slide_ids = [slide.slide_id for slide in folder.slides]
    if plan.reader == "camelyon16":
        table = _read_camelyon16(plan, labels, slide_ids, source=folder.path)
    elif labels is None:
        raise UsageError(
            f"Recipe '{name}' needs its label table ({plan.source}). Give it with --labels."
        )
    else:
        read = _read_survival if plan.reader == "survival" else _read_classes
        table = read(plan, labels, slide_ids)
    stated = plan.model_dump(
        mode="json", include={"paper_split_unit", "prognostic_factors", "exclusions", "notes"}
    )
    return write_cohort(
        folder,
        table,
        out,
        classes=plan.class_names or None,
        splits=splits,
        official=partial(make_official_fold, test=str(plan.official_test))
        if official_split
        else None,
        copy=copy,
        force=force,
        anchors=plan.anchors,
        warnings=_count_warnings(plan, folder, table),
        provenance={"recipe": name, **{key: value for key, value in stated.items() if value}},
    )


def make_official_fold(rows: Sequence[SlideRow], *, test: str) -> Fold:
    """Fold 0: the official test slides; of the training slides of every class each fifth validates, in a fixed order."""
    part_of: dict[str, Part] = {
        row.slide_id: "test" for row in rows if row.slide_id.startswith(test)
    }
    if len(part_of) in (0, len(rows)):
        which = "No slide is" if not part_of else "All slides are"
        raise CohortError(
            f"{which} of the official test set (names begin with '{test}'), so there is nothing to split. Add the others."
        )
    seen: Counter[str | None] = Counter()
    # By hash: neighbours in the numbering may share a scanner and should not validate together.
    for row in sorted(rows, key=lambda row: sha256(row.slide_id.encode()).hexdigest()):
        if row.slide_id not in part_of:
            part_of[row.slide_id] = "val" if seen[row.label] % 5 == 0 else "train"
            seen[row.label] += 1
    return Fold(0, {row.slide_id: part_of[row.slide_id] for row in rows})


def _count_warnings(plan: DatasetSpec, folder: ForeignFolder, table: LabelTable) -> list[str]:
    """A line with both numbers wherever the cohort and the stated counts differ."""
    full = {slide.slide_id for slide in folder.slides if slide.n_patches}
    rows = [row for row in table.rows if row.slide_id in full]
    found = Counter(f"slides of class {row.label}" for row in rows) + Counter(slides=len(rows))
    stated = {f"slides of class {name}": count for name, count in plan.expected.classes.items()}
    return [
        f"{plan.name}: {found[what]} {what} here, {count} in {plan.expected.origin}."
        for what, count in {"slides": plan.expected.slides, **stated}.items()
        if found[what] != count
    ]


def _read_classes(plan: DatasetSpec, path: Path, slide_ids: Sequence[str]) -> LabelTable:
    """A table of classes, one line per slide; a TCGA table may have one line per case instead."""
    table = read_frame(path, sheet=plan.sheet if path.suffix.lower() == ".xlsx" else None)
    found = _find_columns(table, path, plan.columns, "label")
    unit = "slide" if "slide" in found or not (plan.tcga and "case" in found) else "case"
    found = _find_columns(table, path, plan.columns, "label", unit)
    roles = ", ".join(f"{role} is '{column}'" for role, column in found.items())
    lines = [f"{path.name}: {roles}."]
    if plan.tcga:
        lines.append("Cases are the first 12 characters of TCGA barcodes.")
    elif "case" not in found:
        lines.append("The table names no patients, so every slide is its own case.")
    if unit == "slide":
        lines += describe_stripped_ids(table[found["slide"]], where=path.name)
    excluded: list[str] = []
    rows: dict[str, SlideRow] = {}
    slides_of = _group_slides(slide_ids) if unit == "case" else {}
    for entry in list_rows(table):
        line = {role: entry[column] for role, column in found.items()}
        name = plain_id(line["slide"]) if unit == "slide" else tcga_case_id(line["case"])
        # pandas writes 3.0 for 3 in a column with gaps.
        label = plan.class_of.get(line["label"].lower().removesuffix(".0"))
        if label is None:
            excluded.append(
                f"{unit} '{name}': '{line['label']}' in '{found['label']}' is none of the classes"
            )
            continue
        if unit == "case" and name not in slides_of:
            excluded.append(f"case '{name}': no slide in the features folder")
        for slide_id in [name] if unit == "slide" else slides_of.get(name, []):
            case_id = (
                tcga_case_id(slide_id) if plan.tcga and is_tcga(slide_id) else line.get("case", "")
            )
            case_id = slide_id if is_missing(case_id) else case_id
            row = SlideRow(slide_id, case_id, label=label, site=line.get("site") or None)
            if rows.setdefault(slide_id, row) != row:
                raise CohortError(
                    f"{path}: slide '{slide_id}' has two different rows. Correct the table."
                )
    return _finish_table(path, "official", "classification", rows, lines, excluded)


def _read_survival(plan: DatasetSpec, path: Path, slide_ids: Sequence[str]) -> LabelTable:
    """The clinical table of GDC by case; every other table as `read_labels` knows it."""
    table = pd.DataFrame() if path.is_dir() else read_frame(path)
    if "status" not in _find_columns(table, path, plan.columns):
        return read_labels(path, choice=Choice(task="survival"), slide_ids=slide_ids)
    columns = _find_columns(table, path, plan.columns, "case", "death", "follow_up")
    lines = [
        f"{path.name} read as GDC's clinical table: event = 1 when '{columns['status']}' is Dead.",
        f"Time in days: '{columns['death']}' when dead, else '{columns['follow_up']}'.",
        "Slides joined to cases by the first 12 characters of their barcode.",
    ]
    excluded: list[str] = []
    rows: dict[str, SlideRow] = {}
    slides_of = _group_slides(slide_ids)
    for case_id, entries in table.groupby(table[columns["case"]].map(tcga_case_id), sort=False):
        outcome = _read_gdc_outcome(columns, list_rows(entries))
        if isinstance(outcome, str):
            excluded.append(f"case '{case_id}': {outcome}")
            continue
        time, event, remark = outcome
        lines += [f"case '{case_id}': {remark}"] if remark else []
        own = slides_of.get(str(case_id), [])
        rows |= {
            slide_id: SlideRow(slide_id, str(case_id), time=time, event=event) for slide_id in own
        }
        excluded += [] if own else [f"case '{case_id}': no slide in the features folder"]
    return _finish_table(path, "GDC clinical", "survival", rows, lines, excluded)


def _read_camelyon16(
    plan: DatasetSpec, path: Path | None, slide_ids: Sequence[str], *, source: Path
) -> LabelTable:
    """Training slides by their names, test slides by the header-less reference.csv."""
    excluded = {one.slide: one.reason for one in plan.exclusions if one.scope == "cohort"}
    class_of = plan.class_of
    reference: dict[str, str] = {}
    if path is not None:
        table = read_frame(path, header=False)
        if "1" not in table:
            raise CohortError(
                f"{path} has one column, not slide and label. Download reference.csv again."
            )
        reference = dict(zip(table["0"].map(plain_id), table["1"].str.lower(), strict=True))
    left_out: list[str] = []
    rows: dict[str, SlideRow] = {}
    for slide_id in sorted(slide_ids):
        label = class_of.get(reference.get(slide_id) or slide_id.partition("_")[0].lower())
        if slide_id in excluded:
            left_out.append(f"slide '{slide_id}': {excluded[slide_id]}")
        elif label is None:
            named = path.name if path else "a reference.csv"
            left_out.append(f"slide '{slide_id}': neither its name nor {named} gives a label")
        else:
            rows[slide_id] = SlideRow(slide_id, slide_id, label=label)
    lines = [
        "Labels come from slide names (normal_, tumor_) and, for test slides, from reference.csv.",
        "Every slide is its own case.",
    ]
    return _finish_table(path or source, "CAMELYON16", "classification", rows, lines, left_out)


def _finish_table(
    path: Path,
    dialect: str,
    task: Task,
    rows: dict[str, SlideRow],
    lines: Sequence[str],
    excluded: Sequence[str],
) -> LabelTable:
    if not rows:
        reason = excluded[0] if excluded else "the table has no rows"
        raise CohortError(f"{path}: no slide has a usable target ({reason}).")
    return LabelTable(path, dialect, task, tuple(rows.values()), (), tuple(lines), tuple(excluded))


def _read_gdc_outcome(
    found: Mapping[str, str], entries: Sequence[dict[str, str]]
) -> tuple[float, int, str] | str:
    """Time, event and a remark for a case, or the reason why it has none; GDC repeats a case per treatment."""
    states = {parse_event(entry[found["status"]]) for entry in entries} - {None}
    if len(states) != 1:
        states_text = ", ".join(sorted({entry[found["status"]] for entry in entries}))
        return f"no valid status in '{found['status']}' ({states_text})"
    event = int(states.pop() or 0)
    column = found["death"] if event else found["follow_up"]
    times = sorted({time for entry in entries if (time := parse_time(entry[column])) is not None})
    if not times:
        return f"no valid time in '{column}' ('{entries[0][column]}')"
    remark = f"{len(times)} values in '{column}', the largest taken" if len(times) > 1 else ""
    return times[-1], event, remark


def _group_slides(slide_ids: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for slide_id in sorted(slide_ids):
        groups[tcga_case_id(slide_id)].append(slide_id)
    return dict(groups)


def _find_columns(table: pd.DataFrame, path: Path, columns: Roles, *needed: str) -> dict[str, str]:
    """Role → the first of its column names that the table has, in upper or lower case; `needed` must be there."""
    by_lower = {column.lower(): column for column in table}
    found = {
        role: next(by_lower[name.lower()] for name in names if name.lower() in by_lower)
        for role, names in columns.items()
        if any(name.lower() in by_lower for name in names)
    }
    for role in needed:
        if role not in found:
            raise UsageError(
                f"{path} has no column for the {role} (one of {', '.join(columns.get(role, ()))}); it has: {', '.join(table)}."
            )
    return found
