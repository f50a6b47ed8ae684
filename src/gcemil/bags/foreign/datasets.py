"""The paper's ten datasets: the official label table and a features folder become a cohort.

A spec (resources/datasets/<name>.yaml) names the columns and values to read, the order of the
classes, the anchor family, and the number of slides the paper reports; a different number is a
warning with both.

GDC survival: event = 1 when vital_status is Dead, time = days_to_death then, else
days_to_last_follow_up. Cases without a valid time or status are left out and listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from gcemil.bags.foreign.label_tables import (
    LabelTable,
    parse_event,
    parse_labels,
    parse_time,
    read_labels,
)
from gcemil.bags.foreign.layouts import read_folder
from gcemil.bags.foreign.source import ForeignFolder, ReadOptions, is_tcga, plain_id, tcga_case_id
from gcemil.bags.tables import read_frame
from gcemil.errors import CohortError, UsageError
from gcemil.resources import read_shipped


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
    """Case ids are the first twelve characters of barcodes; a table may list cases, not slides."""
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
    """Write a cohort of one of the paper's datasets, with its official test set on request."""
    plan = load_dataset_spec(name)
    if official_split and (plan.official_test is None or splits is not None):
        given = "was given --splits too"
        reason = "has no official test set" if plan.official_test is None else given
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
    kept = {"paper_split_unit", "prognostic_factors", "exclusions", "notes"}
    stated = plan.model_dump(mode="json", include=kept)
    official = partial(make_official_fold, test=str(plan.official_test))
    return write_cohort(
        folder,
        table,
        out,
        classes=tuple(one.name for one in plan.classes) or None,
        splits=splits,
        official=official if official_split else None,
        copy=copy,
        force=force,
        anchors=plan.anchors,
        warnings=_count_warnings(plan, folder, table),
        provenance={"recipe": name, **{key: value for key, value in stated.items() if value}},
    )


def make_official_fold(rows: Sequence[SlideRow], *, test: str) -> Fold:
    """Fold 0: the official test slides; each fifth training slide of every class validates."""
    part_of: dict[str, Part] = {
        row.slide_id: "test" for row in rows if row.slide_id.startswith(test)
    }
    if len(part_of) in (0, len(rows)):
        which = "No slide is" if not part_of else "All slides are"
        raise CohortError(
            f"{which} of the official test set (names begin with '{test}'), "
            "so there is nothing to split. Add the others."
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
    counts = Counter(f"slides of class {row.label}" for row in rows) + Counter(slides=len(rows))
    stated = {f"slides of class {name}": count for name, count in plan.expected.classes.items()}
    return [
        f"{plan.name}: {counts[what]} {what} here, {count} in {plan.expected.origin}."
        for what, count in {"slides": plan.expected.slides, **stated}.items()
        if counts[what] != count
    ]


def _read_classes(plan: DatasetSpec, path: Path, slide_ids: Sequence[str]) -> LabelTable:
    """A table of classes, one line per slide; a TCGA table may have one line per case instead."""
    table = read_frame(path, sheet=plan.sheet if path.suffix.lower() == ".xlsx" else None)
    columns = _find_columns(table, path, plan.columns)
    unit = "case" if plan.tcga and "case" in columns and "slide" not in columns else "slide"
    columns = _find_columns(table, path, plan.columns, "label", unit)
    roles = ", ".join(f"{role} is '{column}'" for role, column in columns.items())
    ours = {"slide": "slide_id", "case": "case_id"}
    table = table[list(columns.values())].set_axis([ours.get(one, one) for one in columns], axis=1)
    names = table[f"{unit}_id"]
    # pandas writes 3.0 for 3 in a column with gaps.
    labels = table["label"].str.lower().str.removesuffix(".0").map(plan.class_of)
    excluded = [
        f"{unit} '{plain_id(name)}': '{text}' in '{columns['label']}' is none of the classes"
        for name, text in zip(names[labels.isna()], table["label"][labels.isna()], strict=True)
    ]
    table = table.assign(label=labels).dropna(subset="label")
    if plan.tcga:
        # A barcode of a sample names its case too.
        barcodes = table[f"{unit}_id"].map(plain_id)
        is_barcode = (unit == "case") | barcodes.map(is_tcga)
        cases = table.get("case_id", pd.Series("", table.index))
        table = table.assign(case_id=cases.mask(is_barcode, barcodes[is_barcode].map(tcga_case_id)))
    return _parse_table(table, path, "official", (f"{path.name}: {roles}.",), excluded, slide_ids)


def _read_survival(plan: DatasetSpec, path: Path, slide_ids: Sequence[str]) -> LabelTable:
    """The clinical table of GDC by case; every other table as `read_labels` returns it."""
    table = pd.DataFrame() if path.is_dir() else read_frame(path)
    if "status" not in _find_columns(table, path, plan.columns):
        return read_labels(path, choice=Choice(task="survival"), slide_ids=slide_ids)
    columns = _find_columns(table, path, plan.columns, "case", "death", "follow_up")
    lines = [
        f"{path.name} read as GDC's clinical table: event = 1 when '{columns['status']}' is Dead.",
        f"Time in days: '{columns['death']}' when dead, else '{columns['follow_up']}'.",
    ]
    excluded: list[str] = []
    outcomes = []
    for case_id, entries in table.groupby(table[columns["case"]].map(tcga_case_id), sort=False):
        outcome = _read_gdc_outcome(columns, entries)
        if isinstance(outcome, str):
            excluded.append(f"case '{case_id}': {outcome}")
            continue
        time, event, remark = outcome
        lines += [f"case '{case_id}': {remark}"] if remark else []
        outcomes.append((case_id, str(time), str(event)))
    known = pd.DataFrame(outcomes, columns=["case_id", "time", "event"], dtype=object)
    return _parse_table(known, path, "GDC clinical", lines, excluded, slide_ids)


def _read_gdc_outcome(
    columns: Mapping[str, str], entries: pd.DataFrame
) -> tuple[float, int, str] | str:
    """Time, event and a remark for a case, or why it has none; GDC repeats a case per treatment."""
    status = entries[columns["status"]]
    states = set(status.map(parse_event).dropna())
    if len(states) != 1:
        return f"no valid status in '{columns['status']}' ({', '.join(sorted(set(status)))})"
    event = int(states.pop())
    column = columns["death"] if event else columns["follow_up"]
    times = sorted(set(entries[column].map(parse_time).dropna()))
    if not times:
        return f"no valid time in '{column}' ('{entries[column].iloc[0]}')"
    remark = f"{len(times)} values in '{column}', the largest taken" if len(times) > 1 else ""
    return times[-1], event, remark


def _read_camelyon16(
    plan: DatasetSpec, path: Path | None, slide_ids: Sequence[str], *, source: Path
) -> LabelTable:
    """Training slides by their names, test slides by the header-less reference.csv."""
    unusable = {one.slide: one.reason for one in plan.exclusions if one.scope == "cohort"}
    reference: dict[str, str] = {}
    if path is not None:
        table = read_frame(path, header=False)
        if "1" not in table:
            raise CohortError(
                f"{path} has one column, not slide and label. Download reference.csv again."
            )
        reference = dict(zip(table["0"].map(plain_id), table["1"].str.lower(), strict=True))
    excluded, labels = [], {}
    for slide_id in sorted(slide_ids):
        label = plan.class_of.get(reference.get(slide_id) or slide_id.partition("_")[0].lower())
        if slide_id in unusable:
            excluded.append(f"slide '{slide_id}': {unusable[slide_id]}")
        elif label is None:
            named = path.name if path else "a reference.csv"
            excluded.append(f"slide '{slide_id}': neither its name nor {named} gives a label")
        else:
            labels[slide_id] = label
    table = pd.DataFrame({"slide_id": list(labels), "label": list(labels.values())}, dtype=object)
    line = (
        "Labels come from slide names (normal_, tumor_) and, for test slides, from reference.csv."
    )
    return _parse_table(table, path or source, "CAMELYON16", (line,), excluded, slide_ids)


def _parse_table(
    table: pd.DataFrame,
    path: Path,
    dialect: str,
    lines: Sequence[str],
    excluded: Sequence[str],
    slide_ids: Sequence[str],
) -> LabelTable:
    """The labels of a table whose columns have our names, one row per slide or per case."""
    if table.empty:
        reason = excluded[0] if excluded else "the table has no rows"
        raise CohortError(f"{path}: no slide has a usable target ({reason}).")
    task: Task = "survival" if "time" in table else "classification"
    labels = parse_labels(
        table.drop_duplicates(), path, choice=Choice(task=task), slide_ids=slide_ids
    )
    return replace(
        labels,
        dialect=dialect,
        assumptions=(*lines, *labels.assumptions),
        excluded=(*excluded, *labels.excluded),
    )


def _find_columns(
    table: pd.DataFrame, path: Path, columns: Mapping[str, tuple[str, ...]], *needed: str
) -> dict[str, str]:
    """Role → the first of its column names that the table has, in upper or lower case."""
    by_lower = {column.lower(): column for column in table}
    column_of = {}
    for role, names in columns.items():
        present = [by_lower[name.lower()] for name in names if name.lower() in by_lower]
        if present:
            column_of[role] = present[0]
        elif role in needed:
            raise UsageError(
                f"{path} has no column for the {role} (one of {', '.join(names)}); "
                f"it has: {', '.join(table)}."
            )
    return column_of
