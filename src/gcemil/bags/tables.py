"""CSV tables and plain ids: the small files beside the features."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from gcemil.errors import CohortError, InputError
from gcemil.files import is_file, read_text, refuse_special

MAX_TABLE_BYTES = 64 * 2**20
MAX_LINES = 500_000
MAX_CELLS = 5_000_000
"""Of a table in memory, gaps filled: a wide header above many short lines is a small file and a huge table."""
LONGEST_ID = 200
"""Bytes; file systems take 255 and an ending has to fit."""


def read_table(path: Path, columns: Iterable[str] = ()) -> list[dict[str, str]]:
    """Rows of a CSV file by column name; the columns asked for must be there."""
    lines = table_lines(path)
    names = next(lines, [])
    refuse_double_columns(path, names)
    if missing := [column for column in columns if column not in names]:
        raise CohortError(f"{path} has no column '{missing[0]}', only: {', '.join(names)}.")
    return [row_of(names, line) for line in lines]


def table_lines(path: Path, *, delimiters: str = ",") -> Iterator[list[str]]:
    """The lines of a CSV file that are not empty, cells stripped; the delimiter its first line has most of."""
    if not is_file(path):
        raise CohortError(f"{path} does not exist, or is no file. Give the path of the table.")
    try:
        text = read_text(path, limit=MAX_TABLE_BYTES)
    except InputError as error:
        raise CohortError(str(error)) from error
    return text_lines(text, path, delimiters=delimiters)


def text_lines(text: str, path: Path, *, delimiters: str = ",") -> Iterator[list[str]]:
    """The lines of a text that is a table; `path` is what messages call it."""
    first = text.partition("\n")[0]
    delimiter = max(delimiters, key=first.count)
    # Counted before anything is made of it; the exact width of every line follows below.
    refuse_huge_table(path, text.count("\n"), first.count(delimiter) + 1)
    width = cells = 0
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for count, line in enumerate(lines):
            width = max(width, len(line))
            cells += width
            refuse_huge_table(path, count, 1, cells)
            if any(line):
                yield [cell.strip() for cell in line]
    except csv.Error as error:
        raise CohortError(
            f"{path} is no table after line {lines.line_num} ({error}). Check its quotes and line ends."
        ) from error


def refuse_huge_table(path: Path, lines: int, width: int, cells: int = 0) -> None:
    """Stop before a table that no cohort needs fills the memory."""
    if lines > MAX_LINES or max(cells, lines * width) > MAX_CELLS:
        raise CohortError(
            f"{path} has more than {MAX_LINES:,} lines or {MAX_CELLS:,} cells. Keep the lines and columns that are needed."
        )


def row_of(names: list[str], line: list[str]) -> dict[str, str]:
    """A line by column name; what a short line lacks is empty."""
    return dict(zip(names, line + [""] * (len(names) - len(line)), strict=False))


def refuse_double_columns(path: Path, names: Iterable[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise CohortError(f"{path}: column '{twice[0]}' stands twice. Rename one.")


def check_slide_id(slide_id: str, table: Path) -> str:
    """The id as a plain file name: it must never lead out of the cohort's own folder."""
    unsafe = not slide_id or slide_id in {".", ".."} or any(char in "/\\" or char < " " for char in slide_id)
    if unsafe or len(slide_id.encode()) > LONGEST_ID:
        raise CohortError(
            f"{table}: '{slide_id[:LONGEST_ID]}' cannot be a slide id; use a plain name of at most {LONGEST_ID} bytes "
            "without '/', '\\' and control characters."
        )
    return slide_id


def file_fingerprint(path: Path) -> str:
    """Hash of a slide's size and of its first and last 64 KiB, because slides are gigabytes; other files have `content_hash`."""
    refuse_special(path)
    edge = 64 * 1024
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(edge))
        file.seek(max(0, size - edge))
        digest.update(file.read(edge))
    return digest.hexdigest()
