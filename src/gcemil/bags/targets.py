"""The targets of a multilabel cohort, each as an ordinary cohort of two classes.

  COHORT/targets/<target>/   cohort.yaml, slides.csv (slides whose label is known, as 'not <target>'
                             and '<target>'), truth, and links to everything else of COHORT

Evidence is that of one target, so every command takes such a folder as it takes any cohort.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gcemil.bags.cohort import Cohort, SlideRow
from gcemil.bags.tables import is_plain_id
from gcemil.errors import CohortError, StoreError, UsageError, error_text

TARGETS = "targets"
SHARED = ("features", "splits", "slides", "thumbnails")
"""Folders that are linked before they exist; folds are made after the import."""


def write_target_cohorts(cohort: Cohort) -> tuple[Cohort, ...]:
    """The cohort of every target, in the order of the card."""
    return tuple(_write_target(cohort, index) for index in range(len(cohort.card.classes)))


def refuse_targets(cohort: Cohort) -> None:
    """Refuse a multilabel cohort where a model of one target is wanted."""
    if cohort.card.task == "multilabel":
        folders = ", ".join(str(cohort.folder / TARGETS / name) for name in cohort.card.classes)
        raise UsageError(
            f"{cohort.folder} has several targets, which 'gcemil train' trains together. Give the "
            f"cohort of one: {folders}."
        )


def _write_target(cohort: Cohort, index: int) -> Cohort:
    name = cohort.card.classes[index]
    folder = cohort.folder / TARGETS / name
    classes = (f"not {name}", name)
    rows = tuple(
        SlideRow(row.slide_id, row.case_id, label=classes[label], site=row.site)
        for row in cohort.slides
        if (label := row.labels[index]) is not None
    )
    card = cohort.card.model_copy(
        update={
            "name": f"{cohort.card.name}: {name}",
            "task": "classification",
            "classes": classes,
            "negative_class": classes[0],
        }
    )
    made = Cohort(folder, card, rows)
    if (folder / "cohort.yaml").is_file():
        there = Cohort.load(folder)
        # Anchors and patch sizes may have been decided for a target alone.
        made = replace(made, card=there.card.model_copy(update={"classes": classes}))
        if there.slides != rows:
            made.save()
    else:
        folder.mkdir(parents=True, exist_ok=True)
        made.save()
    for shared in (*SHARED, *sorted(path.name for path in cohort.folder.glob("*.h5"))):
        _link(folder / shared, Path("..", "..", shared))
    if (folder / "splits").resolve() != (cohort.folder / "splits").resolve():
        raise CohortError(
            f"{folder / 'splits'} holds folds of its own, and the targets of a cohort share one "
            "model and its folds. "
            f"Remove it, and split {cohort.folder}."
        )
    return made


def _link(link: Path, target: Path) -> None:
    """A relative link, so that the cohort can be moved as a whole."""
    if os.path.lexists(link):
        return
    try:
        link.symlink_to(target)
    except OSError as error:
        raise StoreError(
            f"{link} cannot be a link ({error_text(error)}), and the targets of a cohort share its "
            "files by links. "
            "Write the cohort to a file system that has them."
        ) from error


def check_target_names(names: tuple[str, ...]) -> None:
    """Targets name columns and folders: refuse other names, reserved ones and repetitions."""
    reserved = ("slide_id", "case_id", "site")
    for name in names:
        if not is_plain_id(name) or name in reserved or names.count(name) > 1:
            raise CohortError(
                f"'{name}' cannot name a target. Name a column of its own in the table."
            )
