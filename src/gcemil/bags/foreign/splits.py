"""Splits of other tools as our folds: every slide in train, val or test of every fold.

CLAM splits_k.csv (ragged columns of slide ids, or _bool) · MCAT (the same with case ids and no test
column: its `val` is what is reported, so it becomes test) · PANTHER folders …_k=0/{train,test}.csv
· Patho-Bench fold_k columns · STAMP splits.json · torchmil splits.csv · MIL_BASELINE, CAMIL, MHIM
and BRACS split columns · our own fold_k.csv.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gcemil.bags.cohort import SlideRow
from gcemil.bags.folds import PARTS, Fold, Part
from gcemil.bags.foreign.dialects import find_fold_columns, find_wide_parts
from gcemil.bags.foreign.source import plain_id
from gcemil.bags.tables import has_columns, is_missing, list_columns, read_frame
from gcemil.errors import CohortError, error_text
from gcemil.files import read_json

_PART_NAMES: dict[str, Part] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_SPLIT_COLUMNS = (
    ("slide_id", "split"),
    ("bag_name", "split"),
    ("ID", "Split"),
    ("WSI Filename", "Set"),
)

IdParts = dict[str, Part]


@dataclass(frozen=True)
class SplitTable:
    """The part of every id, slide or case, in every fold."""

    path: Path
    folds: tuple[IdParts, ...]
    assumptions: tuple[str, ...] = ()


def read_splits(path: Path) -> SplitTable:
    """The splits in this file or folder."""
    folds: list[IdParts] = []
    if path.is_dir():
        for files in _find_fold_files(path):
            if files[0].stem in _PART_NAMES:
                pairs = [
                    (name, _PART_NAMES[one.stem])
                    for one in files
                    for name in _slide_column(read_frame(one), one)
                ]
                folds.append(_collect_fold(pairs, files[0].parent))
            else:
                folds += _read_fold_table(read_frame(files[0]), files[0])
    elif path.suffix == ".json":
        try:
            for split in read_json(path)["splits"]:
                pairs = [
                    (str(name), one) for one in PARTS for name in split.get(f"{one}_patients", ())
                ]
                folds.append(_collect_fold(pairs, path))
        except (KeyError, TypeError, AttributeError) as error:
            raise CohortError(
                f"{path} is not a STAMP splits.json ({error_text(error)}): "
                "it needs 'splits' with train_patients and test_patients."
            ) from error
    else:
        folds = _read_fold_table(read_frame(path), path)
    if any("test" in fold.values() for fold in folds):
        return SplitTable(path, tuple(folds))
    # MCAT and its successors report on the part they call val and have no other.
    renamed: dict[Part, Part] = {"train": "train", "val": "test"}
    folds = [{name: renamed[part] for name, part in fold.items()} for fold in folds]
    line = f"{path.name} has no test part: its 'val' is the held-out part and becomes 'test'."
    return SplitTable(path, tuple(folds), (line,))


def has_splits(table: pd.DataFrame) -> bool:
    """Whether a label table carries its own splits."""
    pairs = any(has_columns(table, *pair) for pair in _SPLIT_COLUMNS)
    return pairs or bool(find_fold_columns(table) or find_wide_parts(table))


def match_folds(
    table: SplitTable, rows: Sequence[SlideRow]
) -> tuple[list[Fold], list[str], tuple[str, ...]]:
    """Folds of the slides in `rows`, the slides that none of them names, and what was assumed."""
    unit, line = _find_unit(table, rows)
    names = {row.slide_id: row.slide_id if unit == "slide" else row.case_id for row in rows}
    folds = []
    for index, parts in enumerate(table.folds):
        by_id = _normalise_ids(parts)
        own = {slide: by_id[name] for slide, name in names.items() if name in by_id}
        folds.append(Fold(index, own))
    placed = set().union(*(fold.part_of for fold in folds))
    for fold in folds:
        if missing := sorted(placed - set(fold.part_of)):
            raise CohortError(
                f"{table.path}: fold {fold.index} does not place slide '{missing[0]}' "
                f"({len(missing)} in all), though other folds do. Complete the splits."
            )
    return folds, sorted(set(names) - placed), (*table.assumptions, line)


def _find_fold_files(folder: Path) -> list[list[Path]]:
    for pattern in (r"splits_(\d+)\.csv$", r"splits_(\d+)_bool\.csv$", r"fold_(\d+)\.csv$"):
        if paths := _find_numbered(folder, pattern):
            return [[path] for path in paths]
    subfolders = _find_numbered(folder, r"k=(\d+)$")
    folds = []
    for place in subfolders or [folder]:
        files = [path for part in PARTS if (path := place / f"{part}.csv").is_file()]
        if subfolders and not files:
            raise CohortError(
                f"{place} holds none of train.csv, val.csv and test.csv. "
                "Put them back, or remove the folder."
            )
        folds.append(files)
    if all(folds):
        return folds
    tables = sorted(
        folder.glob("*.csv"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.stem)]
    )
    if not tables:
        raise CohortError(
            f"{folder} holds no splits that are known here. "
            "Point at the file, or use 'gcemil split'."
        )
    return [[path] for path in tables]


def _find_numbered(folder: Path, pattern: str) -> list[Path]:
    paths = {
        int(match[1]): path for path in folder.iterdir() if (match := re.search(pattern, path.name))
    }
    return [paths[number] for number in sorted(paths)]


def _slide_column(table: pd.DataFrame, path: Path) -> pd.Series:
    if "slide_id" not in table:
        raise CohortError(f"{path} has no column 'slide_id'; it has: {', '.join(table)}.")
    return table["slide_id"]


def _read_fold_table(table: pd.DataFrame, path: Path) -> list[IdParts]:
    """The folds of a table: a column each, one column of parts, or a column of ids per part."""
    if columns := find_fold_columns(table):
        ids = _slide_column(table, path)
        return [_read_parts(ids, table[column], path) for column in columns]
    for ids, part in _SPLIT_COLUMNS:
        if has_columns(table, ids, part):
            return [_read_parts(table[ids], table[part], path)]
    parts = [(column, _PART_NAMES[part]) for part, (column, _) in find_wide_parts(table).items()]
    if not parts:
        raise CohortError(
            f"{path} holds no splits that are known here; its columns are: {list_columns(table)}."
        )
    wide = table[[column for column, _ in parts]].apply(lambda cells: cells.str.lower())
    # In a _bool file the first column names the slide, and the others whether it is in a part.
    is_flagged = wide.isin({"true", "false"}).eq(~wide.map(is_missing)).all(axis=None)
    named = [
        (name, part)
        for column, part in parts
        for name in (table.iloc[:, 0][wide[column] == "true"] if is_flagged else table[column])
        if not is_missing(name)
    ]
    return [_collect_fold(named, path)]


def _read_parts(ids: pd.Series, parts: pd.Series, path: Path) -> IdParts:
    """The parts of a column with one word per id."""
    is_filled = ~parts.map(is_missing)
    words = parts[is_filled].str.lower()
    if len(unknown := words[~words.isin(_PART_NAMES)]):
        row = unknown.index[0]
        raise CohortError(
            f"{path}: '{ids[row]}' has split '{parts[row]}' in '{parts.name}'; "
            f"known are {', '.join(_PART_NAMES)}."
        )
    return _collect_fold(zip(ids[is_filled], words.map(_PART_NAMES), strict=True), path)


def _collect_fold(pairs: Iterable[tuple[str, Part]], path: Path) -> IdParts:
    parts: IdParts = {}
    for name, part in pairs:
        if parts.setdefault(name, part) != part:
            raise CohortError(
                f"{path}: '{name}' is in {parts[name]} and in {part}, "
                "so the test set is not unseen. Correct the split."
            )
    return parts


def _normalise_ids(parts: IdParts) -> IdParts:
    """Ids without extensions, and without the '.0' that pandas gives a column with gaps."""
    return {re.sub(r"^(\d+)\.0$", r"\1", plain_id(name)): part for name, part in parts.items()}


def _find_unit(table: SplitTable, rows: Sequence[SlideRow]) -> tuple[str, str]:
    """Whether the ids are slides or cases, whichever the cohort has more of, and a line on it."""
    names = set().union(*(_normalise_ids(parts) for parts in table.folds))
    slides, cases = {row.slide_id for row in rows}, {row.case_id for row in rows}
    counts = {"slide": len(names & slides), "case": len(names & cases)}
    if not any(counts.values()):
        raise CohortError(
            f"{table.path}: none of its {len(names)} ids ('{min(names, default='')}') is a slide "
            "or "
            f"case of the cohort ('{min(slides, default='')}')."
        )
    if counts["slide"] == counts["case"] and any(row.slide_id != row.case_id for row in rows):
        raise CohortError(
            f"{table.path}: its ids are slides as well as cases of the cohort, "
            "so the splits can be read in two ways. Use distinct ids."
        )
    # Equal counts are left only where every slide is its own case.
    unit = max(counts, key=lambda one: counts[one])
    line = f"{counts[unit]} of {len(names)} ids are in the cohort."
    return unit, f"Splits in {table.path.name} name {unit}s: {line}"
