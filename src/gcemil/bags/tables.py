"""Tables and plain ids: our own CSV files beside the features, and tables as other tools write them.

Those may be CSV, TSV or Excel, with the index column of pandas and ragged ends.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gcemil.errors import CohortError, InputError, MissingExtraError, error_text
from gcemil.files import is_file, read_text, refuse_special
from gcemil.wording import is_there, near_path

Line = TypeVar("Line", bound=Sequence[Any])
MAX_TABLE_BYTES = 64 * 2**20
_MAX_LINES = 500_000
_MAX_CELLS = 5_000_000
"""Of a table in memory, gaps filled: a wide header above many short lines is a small file and a huge table."""
_LONGEST_ID = 200
"""Bytes; file systems take 255 and an ending has to fit."""


_MAX_WORKBOOK_BYTES = 200_000_000
_HONEST_RATIO = 100
"""An Excel file unpacks to forty times its size at most; one that unpacks to far more is no table of slides."""
_SMALL_WORKBOOK = 10_000_000
MISSING = frozenset(
    {"", "nan", "na", "n/a", "none", "null", "'--", "--", "not reported", "unknown", "not available"}
)


def read_table(path: Path, columns: Iterable[str] = ()) -> list[dict[str, str]]:
    """Rows of a CSV file by column name; the columns asked for must be there."""
    lines = _table_lines(path)
    names = next(lines, [])
    _refuse_double_columns(path, names)
    if missing := [column for column in columns if column not in names]:
        raise CohortError(f"{path} has no column '{missing[0]}', only: {', '.join(names)}.")
    return [_row_of(names, line) for line in lines]


def _table_lines(path: Path, *, delimiters: str = ",") -> Iterator[list[str]]:
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
    _refuse_huge_table(path, text.count("\n"), first.count(delimiter) + 1)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for line in _bound_lines(path, lines):
            if any(line):
                yield [cell.strip() for cell in line]
    except csv.Error as error:
        raise CohortError(
            f"{path} is no table after line {lines.line_num} ({error}). Check its quotes and line ends."
        ) from error


def _bound_lines(path: Path, lines: Iterable[Line]) -> Iterator[Line]:
    """The lines, until they are more than a table has; gaps count, as they are filled."""
    width = cells = 0
    for count, line in enumerate(lines):
        width = max(width, len(line))
        cells += width
        _refuse_huge_table(path, count, 1, cells)
        yield line


def _refuse_huge_table(path: Path, lines: int, width: int, cells: int = 0) -> None:
    """Stop before a table that no cohort needs fills the memory."""
    if lines > _MAX_LINES or max(cells, lines * width) > _MAX_CELLS:
        raise CohortError(
            f"{path} has more than {_MAX_LINES:,} lines or {_MAX_CELLS:,} cells. Keep the lines and columns that are needed."
        )


def _row_of(names: list[str], line: list[str]) -> dict[str, str]:
    """A line by column name; what a short line lacks is empty."""
    return dict(zip(names, line + [""] * (len(names) - len(line)), strict=False))


def _refuse_double_columns(path: Path, names: Iterable[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise CohortError(f"{path}: column '{twice[0]}' stands twice. Rename one.")


def check_slide_id(slide_id: str, table: Path) -> str:
    """The id as a plain file name: it must never lead out of the cohort's own folder."""
    unsafe = not slide_id or slide_id in {".", ".."} or any(char in "/\\" or char < " " for char in slide_id)
    if unsafe or len(slide_id.encode()) > _LONGEST_ID:
        raise CohortError(
            f"{table}: '{slide_id[:_LONGEST_ID]}' cannot be a slide id; use a plain name of at most {_LONGEST_ID} bytes "
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


@dataclass(frozen=True)
class RawTable:
    """Rows by column name; an unnamed index column is called ''."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]

    def has(self, *columns: str) -> bool:
        """Whether the table has all these columns."""
        return all(column in self.columns for column in columns)

    def values(self, column: str) -> list[str]:
        """The filled cells of a column."""
        return [row[column] for row in self.rows if not is_missing(row[column])]


def is_missing(text: str) -> bool:
    """Whether a cell says nothing, in the words that tables use for it."""
    return text.strip().lower() in MISSING


def read_raw_table(path: Path, *, sheet: str | None = None, header: bool = True) -> RawTable:
    """The table in this file; without a header its columns are '0', '1', …"""
    if not is_file(path):
        if is_there(path):
            raise CohortError(f"{path} is no file. Give the path of the table.")
        raise CohortError(f"{path} does not exist.{near_path(path)} Give the path of the table.")
    is_excel = path.suffix.lower() in {".xlsx", ".xlsm"}
    lines = _excel_lines(path, sheet) if is_excel else _table_lines(path, delimiters=",\t;")
    first = next(lines, None)
    # cBioPortal puts four lines that begin with # above the names of its columns.
    while header and first is not None and first[0].startswith("#"):
        first = next(lines, None)
    if first is None:
        raise CohortError(f"{path} is an empty table.")
    names = first if header else [str(index) for index in range(len(first))]
    _refuse_double_columns(path, names)
    rows = [] if header else [_row_of(names, first)]
    rows += [_row_of(names, line) for line in lines]
    return RawTable(path, tuple(names), tuple(rows))


def stack_tables(path: Path, tables: Iterable[RawTable]) -> RawTable:
    """Tables with the same columns, one below the other."""
    found = list(tables)
    for table in found[1:]:
        if set(table.columns) != set(found[0].columns):
            raise CohortError(
                f"{table.path} and {found[0].path} have different columns, so they are not one table."
            )
    return RawTable(path, found[0].columns, tuple(row for table in found for row in table.rows))


def _excel_lines(path: Path, sheet: str | None) -> Iterator[list[str]]:
    """The lines of one sheet that are not empty."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise MissingExtraError("openpyxl", "tables") from error
    book = None
    try:
        _refuse_bomb(path)
        book = load_workbook(path, read_only=True, data_only=True)
        if sheet is not None and sheet not in book.sheetnames:
            raise CohortError(f"{path} has no sheet '{sheet}', only: {', '.join(book.sheetnames)}.")
        page = book[sheet] if sheet else book[book.sheetnames[0]]
        for row in _bound_lines(path, page.iter_rows(values_only=True)):
            if any(line := [_cell(value) for value in row]):
                yield line
    except CohortError:
        raise
    except Exception as error:
        # A damaged workbook makes openpyxl and its parsers raise almost anything.
        raise CohortError(
            f"{path} cannot be read as an Excel table ({error_text(error)}). Save it again, or as CSV in UTF-8."
        ) from error
    finally:
        if book is not None:
            book.close()


def _refuse_bomb(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    limit = min(_MAX_WORKBOOK_BYTES, max(_SMALL_WORKBOOK, _HONEST_RATIO * path.stat().st_size))
    if size > limit:
        raise CohortError(
            f"{path} unpacks to {size:,} bytes; at most {limit:,} are read of it. Save the sheet as CSV."
        )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
