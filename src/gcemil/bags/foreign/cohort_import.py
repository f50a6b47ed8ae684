"""A features folder and a label table of other tools become a cohort: the door behind `gcemil import`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcemil.bags.cohort import SlideRow, Task
from gcemil.bags.foreign.clam import read_clam
from gcemil.bags.foreign.detect import tool_of
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.rawtable import read_raw_table
from gcemil.bags.foreign.source import ForeignFolder
from gcemil.bags.foreign.splits import has_splits
from gcemil.bags.foreign.stamp import Mpp, read_stamp
from gcemil.bags.foreign.tables import LabelTable, class_order, read_labels
from gcemil.bags.foreign.torchmil import bag_labels, read_torchmil
from gcemil.bags.foreign.trident import read_trident
from gcemil.bags.foreign.write_cohort import ImportReport, write_cohort
from gcemil.bags.strangers import strangers_files
from gcemil.errors import CohortError, UsageError


def import_cohort(
    source: Path,
    out: Path,
    *,
    labels: Path | None = None,
    slide_table: Path | None = None,
    task: Task | None = None,
    target: str | None = None,
    time: str | None = None,
    event: str | None = None,
    endpoint: str | None = None,
    classes: Sequence[str] | None = None,
    splits: Path | None = None,
    copy: bool = False,
    patch_size: int | None = None,
    mpp: Mpp = None,
    encoder: str | None = None,
    coords_dir: Path | None = None,
    anchors: str | None = None,
) -> ImportReport:
    """Write the cohort folder `out` from a foreign features folder and its labels."""
    with strangers_files():
        folder = read_folder(source, patch_size=patch_size, mpp=mpp, encoder=encoder, coords_dir=coords_dir)
        if labels is None:
            table = _torchmil_labels(folder, encoder)
        else:
            choice = Choice(task=task, target=target, time=time, event=event, endpoint=endpoint)
            table = read_labels(labels, choice=choice, slide_table=slide_table)
        splits = splits or _own_splits(labels, folder)
        return write_cohort(folder, table, out, classes=classes, splits=splits, copy=copy, anchors=anchors)


def read_folder(
    source: Path,
    *,
    patch_size: int | None = None,
    mpp: Mpp = None,
    encoder: str | None = None,
    coords_dir: Path | None = None,
) -> ForeignFolder:
    """The features folder, read by the reader of the tool that wrote it."""
    tool = tool_of(source)
    if tool == "clam":
        return read_clam(source, coords_dir=coords_dir, patch_size=patch_size)
    if tool == "trident":
        return read_trident(source, encoder=encoder, patch_size=patch_size)
    if tool == "stamp":
        return read_stamp(source, mpp=mpp, patch_size=patch_size)
    if tool == "torchmil":
        return read_torchmil(source, encoder=encoder, patch_size=patch_size)
    raise CohortError(
        f"{source} is no features folder of CLAM, TRIDENT, STAMP or torchmil. Try 'gcemil inspect {source}'."
    )


def _torchmil_labels(folder: ForeignFolder, encoder: str | None) -> LabelTable:
    if folder.tool != "torchmil":
        raise UsageError(f"{folder.path} holds features only. Give the label table with --labels.")
    labels = bag_labels(folder.path, encoder)
    rows = tuple(SlideRow(name, name, label=label) for name, label in labels.items())
    lines = ("Labels come from the labels folder; the layout names no cases, so every bag is its own case.",)
    return LabelTable(folder.path, "torchmil", "classification", rows, class_order(labels.values()), lines)


def _own_splits(labels: Path | None, folder: ForeignFolder) -> Path | None:
    """Splits that came along: in the label table, in its folder, or as torchmil's splits.csv."""
    if labels is None:
        found = folder.path / "splits.csv"
        return found if found.is_file() else None
    if labels.is_dir():
        return labels
    return labels if has_splits(read_raw_table(labels)) else None
