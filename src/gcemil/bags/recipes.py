"""The paper's ten datasets: the official label table and a features folder become a cohort.

A recipe (resources/datasets/<name>.yaml) says which columns and values to read, the order of the classes, the anchor
family, and the number of slides the paper reports; a different number is a warning with both.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from gcemil.bags.cohort import Task
from gcemil.bags.foreign.cohort_import import read_folder
from gcemil.bags.foreign.source import ForeignFolder
from gcemil.bags.foreign.stamp import Mpp
from gcemil.bags.foreign.tables import LabelTable
from gcemil.bags.foreign.write_cohort import ImportReport, write_cohort
from gcemil.bags.recipe_readers import read_camelyon16, read_classes, read_survival
from gcemil.bags.strangers import strangers_files
from gcemil.errors import UsageError


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecipeClass(_Closed):
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


class Recipe(_Closed):
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
    classes: tuple[RecipeClass, ...] = ()
    paper_split_unit: str
    anchors: str
    expected: Expected
    prognostic_factors: tuple[str, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.classes)

    @property
    def class_of(self) -> dict[str, str]:
        """Lower-case value of the official table → class."""
        return {value.lower(): one.name for one in self.classes for value in one.values}


def recipe_names() -> list[str]:
    folder = files("gcemil.resources") / "datasets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


@cache
def recipe(name: str) -> Recipe:
    """The recipe of one dataset."""
    if name not in recipe_names():
        raise UsageError(f"Unknown recipe '{name}'. Choose one of: {', '.join(recipe_names())}.")
    text = (files("gcemil.resources") / "datasets" / f"{name}.yaml").read_text(encoding="utf-8")
    return Recipe.model_validate(yaml.safe_load(text))


def import_recipe(
    name: str,
    source: Path,
    out: Path,
    *,
    labels: Path | None = None,
    splits: Path | None = None,
    copy: bool = False,
    patch_size: int | None = None,
    mpp: Mpp = None,
    encoder: str | None = None,
    coords_dir: Path | None = None,
) -> ImportReport:
    """Write a cohort of one of the paper's datasets."""
    plan = recipe(name)
    with strangers_files():
        folder = read_folder(source, patch_size=patch_size, mpp=mpp, encoder=encoder, coords_dir=coords_dir)
        table = read_recipe_table(plan, folder, labels)
        return write_cohort(
            folder,
            table,
            out,
            classes=plan.class_names or None,
            splits=splits,
            copy=copy,
            anchors=plan.anchors,
            warnings=count_warnings(plan, folder, table),
            provenance=_provenance(plan),
        )


def read_recipe_table(plan: Recipe, folder: ForeignFolder, labels: Path | None) -> LabelTable:
    """The official table as rows of the slides in the features folder."""
    slide_ids = [slide.slide_id for slide in folder.slides]
    if plan.reader == "camelyon16":
        excluded = {one.slide: one.reason for one in plan.exclusions if one.scope == "cohort"}
        return read_camelyon16(
            labels, slide_ids, source=folder.path, class_of=plan.class_of, excluded=excluded
        )
    if labels is None:
        raise UsageError(
            f"Recipe '{plan.name}' needs its label table ({plan.source}). Give it with --labels."
        )
    if plan.reader == "survival":
        return read_survival(labels, slide_ids, columns=plan.columns)
    return read_classes(
        labels, slide_ids, columns=plan.columns, class_of=plan.class_of, sheet=plan.sheet, tcga=plan.tcga
    )


def count_warnings(plan: Recipe, folder: ForeignFolder, table: LabelTable) -> list[str]:
    """A line with both numbers wherever the cohort and the stated counts differ."""
    full = {slide.slide_id for slide in folder.slides if slide.n_patches}
    rows = [row for row in table.rows if row.slide_id in full]
    found = Counter(str(row.label) for row in rows)
    pairs = [("slides", len(rows), plan.expected.slides)]
    pairs += [
        (f"slides of class {name}", found[name], count) for name, count in plan.expected.classes.items()
    ]
    return [
        f"{plan.name}: {here} {what} here, {stated} in {plan.expected.origin}."
        for what, here, stated in pairs
        if here != stated
    ]


def _provenance(plan: Recipe) -> dict[str, object]:
    record: dict[str, object] = {"recipe": plan.name, "paper_split_unit": plan.paper_split_unit}
    if plan.prognostic_factors:
        record["prognostic_factors"] = list(plan.prognostic_factors)
    if plan.exclusions:
        record["exclusions"] = [one.model_dump() for one in plan.exclusions]
    if plan.notes:
        record["notes"] = list(plan.notes)
    return record
