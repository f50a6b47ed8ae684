"""A features folder and a label table of other tools become a cohort: `gcemil import`.

Feature files that already hold `features` and integer `coords` are linked; everything else is
converted. What was assumed, joined or left out is in the report and in cohort.yaml under
provenance.
"""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gcemil.bags import store
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow, Task, raise_first
from gcemil.bags.folds import Fold, carve_validation, leaking_cases, target_problems, write_folds
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.label_tables import (
    LabelTable,
    choose_classes,
    count_targets,
    find_label_faults,
    find_measurement,
    order_classes,
    read_labels,
    read_value,
)
from gcemil.bags.foreign.layouts import LAYOUTS, read_folder
from gcemil.bags.foreign.source import (
    ForeignFolder,
    ForeignSlide,
    ReadOptions,
    check_finite,
    read_each,
)
from gcemil.bags.foreign.splits import has_splits, match_folds, read_splits
from gcemil.bags.tables import read_frame
from gcemil.bags.targets import write_target_cohorts
from gcemil.errors import CohortError, StoreError, UsageError, error_text, write_remedy
from gcemil.files import atomic_folder, replace_folder
from gcemil.wording import shorten_lines, shorten_list

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
"""Errors of systems and file systems without symbolic links."""


def import_cohort(
    source: Path,
    out: Path,
    *,
    labels: Path | None = None,
    slide_table: Path | None = None,
    choice: Choice = Choice(),
    classes: Sequence[str] | None = None,
    splits: Path | None = None,
    copy: bool = False,
    force: bool = False,
    options: ReadOptions = ReadOptions(),
) -> ImportReport:
    """Write the cohort folder `out` from a foreign features folder and its labels."""
    folder = read_folder(source, options)
    if labels is None:
        table = _read_own_labels(folder, options.encoder, choice.task)
    else:
        names = [slide.slide_id for slide in folder.slides]
        table = read_labels(labels, choice=choice, slide_table=slide_table, slide_ids=names)
    # Splits may come along: as torchmil's splits.csv, in the folder of the labels, or in their
    # table.
    own = folder.path / "splits.csv"
    if splits is None and labels is None and own.is_file():
        splits = own
    elif splits is None and labels is not None and _holds_splits(labels, choice.sheet):
        splits = labels
    return write_cohort(folder, table, out, classes=classes, splits=splits, copy=copy, force=force)


def _holds_splits(labels: Path, sheet: str | None) -> bool:
    return labels.is_dir() or has_splits(read_frame(labels, sheet=sheet))


def _read_own_labels(folder: ForeignFolder, encoder: str | None, task: Task | None) -> LabelTable:
    read = LAYOUTS[folder.tool].read_labels
    if read is None:
        raise UsageError(f"{folder.path} holds features only. Give the label table with --labels.")
    labels = read(folder.path, encoder)
    if task == "survival":
        raise UsageError(
            f"The labels folder of {folder.path} has no times. Give the label table with --labels."
        )
    rows = tuple(SlideRow(name, name, label=label) for name, label in labels.items())
    classes = order_classes(labels.values())
    if task == "regression":
        values = {
            name: read_value(label, "labels", name, folder.path) for name, label in labels.items()
        }
        rows = tuple(SlideRow(name, name, value=value) for name, value in values.items())
        classes = ()
    line = "Labels come from the labels folder, which names no cases: every bag is its own case."
    return LabelTable(folder.path, folder.tool, task or "classification", rows, classes, (line,))


@dataclass(frozen=True)
class ImportReport:
    """What was written, and how."""

    folder: Path
    tool: str
    dialect: str
    n_slides: int
    n_cases: int
    n_linked: int
    n_copied: int
    n_folds: int
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    labels_without_features: tuple[str, ...] = ()
    features_without_labels: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    """Counts of the labels."""

    def lines(self) -> list[str]:
        """The report as text, long lists of slides shortened."""
        head = (
            f"{self.folder}: {self.n_slides} slides of {self.n_cases} cases, "
            f"{self.n_linked} linked, {self.n_copied} copied, {self.n_folds} folds."
        )
        groups = (
            ("to predict", self.targets),
            ("assumed", self.assumptions),
            ("warning", self.warnings),
            ("left out, no patches", shorten_lines(self.empty)),
            ("left out", shorten_lines(self.excluded)),
        )
        joins = (
            ("labels without features", self.labels_without_features),
            ("features without labels", self.features_without_labels),
        )
        return [
            head,
            *(f"{name}: {line}" for name, lines in groups for line in lines),
            *(f"{len(names)} {name}: {shorten_list(names)}" for name, names in joins if names),
        ]


def write_cohort(
    folder: ForeignFolder,
    table: LabelTable,
    out: Path,
    *,
    classes: Sequence[str] | None = None,
    splits: Path | None = None,
    official: Callable[[Sequence[SlideRow]], Fold] | None = None,
    copy: bool = False,
    force: bool = False,
    anchors: str | None = None,
    warnings: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> ImportReport:
    """Join slides with labels and write the folder; `force` replaces a cohort but keeps anchors."""
    is_cohort = (out / "cohort.yaml").is_file()
    if out.exists() and not (force and is_cohort) and (not out.is_dir() or any(out.iterdir())):
        remedy = "replace the cohort with --force" if is_cohort else "remove it first"
        raise UsageError(f"{out} is not an empty folder. Choose another one, or {remedy}.")
    rows, folds, split_lines, excluded = _join_labels(folder, table, splits)
    excluded += folder.broken
    if official is not None:
        folds = (official(rows),)
    by_id = {slide.slide_id: slide for slide in folder.slides}
    slides = [by_id[row.slide_id] for row in rows]
    width = slides[0].feature_dim
    if other := next((slide for slide in slides if slide.feature_dim != width), None):
        raise CohortError(
            f"'{slides[0].slide_id}' has {width} features per patch, '{other.slide_id}' has "
            f"{other.feature_dim}. A cohort comes from one encoder; extract one of them again."
        )
    sizes = Counter(slide.patch_size for slide in slides if slide.patch_size is not None)
    lines = [*folder.assumptions, *table.assumptions, *split_lines]
    if len(sizes) > 1:
        counts = ", ".join(f"{size} px on {count} slides" for size, count in sorted(sizes.items()))
        lines.append(
            f"Patch sizes differ ({counts}), so cohort.yaml names none and each slide's own grid "
            "step is used."
        )
    card = CohortCard(
        name=out.name,
        task=table.task,
        classes=choose_classes(table, rows, classes),
        feature_dim=width,
        encoder=folder.encoder,
        patch_size_level0=next(iter(sizes)) if len(sizes) == 1 else None,
        anchors=anchors,
        provenance={
            **(provenance or {}),
            "source": str(folder.path.resolve()),
            "tool": folder.tool,
            "labels": str(table.path.resolve()),
            "assumptions": lines,
            "left_out": [*(f"slide '{name}': no patches" for name in folder.empty), *excluded],
        },
    )
    # Before anything is written.
    if classes is None and (fault := find_measurement(rows)):
        raise CohortError(f"{table.path}: {fault}")
    problems = [*target_problems(rows)]
    raise_first(problems, table.path)
    for fold in folds:
        if leaks := leaking_cases(Cohort(out, card, rows), fold):
            raise CohortError(
                f"{splits}: in fold {fold.index} slides of {len(leaks)} cases stand in more than "
                f"one part ({', '.join(leaks[:5])}), so the test set is not unseen. Import without "
                "--splits and run 'gcemil split', which splits by case."
            )
    replaced = replace_folder(out, keep=lambda name: name.startswith("anchor"))
    with replaced if is_cohort else atomic_folder(out) as folder_aside:
        cohort = Cohort(folder_aside, card, rows)
        linked = read_each(slides, partial(_place_slide, cohort=cohort, copy=copy), folder.path)
        cohort.save()
        write_folds(cohort, folds, kind="official")
        if card.task == "multilabel":
            write_target_cohorts(cohort)
    known = {slide.slide_id for slide in folder.slides}
    labelled = {row.slide_id for row in table.rows}
    return ImportReport(
        folder=out,
        tool=folder.tool,
        dialect=table.dialect,
        n_slides=len(rows),
        n_cases=len({row.case_id for row in rows}),
        n_linked=sum(linked),
        n_copied=len(linked) - sum(linked),
        n_folds=len(folds),
        assumptions=tuple(lines),
        warnings=(
            *warnings,
            *find_label_faults(rows),
            *(f"{one.where}: {one.what}. {one.remedy}" for one in problems),
        ),
        targets=count_targets(rows, card.classes),
        empty=folder.empty,
        excluded=excluded,
        labels_without_features=tuple(sorted(labelled - known)),
        features_without_labels=tuple(sorted(known - labelled - set(folder.empty))),
    )


def _join_labels(
    folder: ForeignFolder, table: LabelTable, splits: Path | None
) -> tuple[tuple[SlideRow, ...], tuple[Fold, ...], tuple[str, ...], tuple[str, ...]]:
    """Rows that have features, their folds, what the splits assume, and what was left out."""
    full = {slide.slide_id: slide for slide in folder.slides if slide.n_patches}
    rows = [row for row in table.rows if row.slide_id in full]
    if not rows:
        raise CohortError(
            f"No slide of {table.path} ('{table.rows[0].slide_id}' …) has features in "
            f"{folder.path} ('{next(iter(full), 'nothing with patches')}' …). "
            "The ids must be equal once known extensions are taken off."
        )
    folds: tuple[Fold, ...] = ()
    lines: tuple[str, ...] = ()
    excluded = table.excluded
    if splits is not None:
        published, unplaced, assumed = match_folds(read_splits(splits), rows)
        # The test sets stay as published; validation is taken out of training where the split names
        # none.
        folds, lines = tuple(carve_validation(rows, fold) for fold in published), assumed
        if changed := [new for new, old in zip(folds, published, strict=True) if new != old]:
            lines += (
                f"{splits.name} names no validation slides: {len(changed[0].slides('val'))} of its "
                f"training slides validate in fold {changed[0].index}, whole cases of every class; "
                "its test part is as published.",
            )
        elif any(not fold.slides("val") for fold in folds):
            lines += (f"{splits.name} names no validation slides, and training has none to spare.",)
        excluded += tuple(
            f"slide '{name}': no fold of {splits.name} places it" for name in unplaced
        )
        rows = [row for row in rows if row.slide_id not in unplaced]
    return tuple(rows), folds, lines, excluded


def _place_slide(slide: ForeignSlide, cohort: Cohort, *, copy: bool) -> bool:
    """Link or convert one slide, and its patch labels if it has any; True when linked."""
    target = cohort.feature_file(slide.slide_id)
    if slide.thumbnail is not None:
        thumbnail = cohort.folder / "thumbnails" / f"{slide.slide_id}.jpg"
        thumbnail.parent.mkdir(parents=True, exist_ok=True)
        # Pictures are small.
        shutil.copyfile(slide.thumbnail, thumbnail)
    if slide.read_truth is not None:
        store.write(cohort.truth_file(slide.slide_id), slide.read_truth())
    if slide.linkable and not copy:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Absolute: a given path is relative to where the command runs, not to the link.
            target.symlink_to(slide.path.resolve())
        except OSError as error:
            remedy = "Import with --copy." if error.errno in _NO_LINKS else write_remedy(error)
            raise StoreError(
                f"{target} cannot be a link to {slide.path} ({error_text(error)}). {remedy}"
            ) from error
        return True
    features, coords = slide.load()
    check_finite(slide.path, features)
    datasets = {"features": features} | ({} if coords is None else {"coords": coords})
    kept: dict[str, dict[str, Any]] = {name: {} for name in datasets}
    for file in slide.attributes_files:
        for name in kept:
            kept[name] |= store.attributes(file, name)
    store.write(target, datasets, dataset_attributes=kept)
    return False
