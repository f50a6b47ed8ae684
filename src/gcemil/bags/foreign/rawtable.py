"""A table as other tools write it: CSV, TSV or Excel, with the index column of pandas and ragged ends."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcemil.bags.tables import refuse_double_columns, refuse_huge_table, row_of, table_lines
from gcemil.errors import CohortError, MissingExtraError
from gcemil.files import is_file

MAX_WORKBOOK_BYTES = 200_000_000
HONEST_RATIO = 100
"""An Excel file unpacks to forty times its size at most; one that unpacks to far more is no table of slides."""
SMALL_WORKBOOK = 10_000_000

MISSING = frozenset(
    {"", "nan", "na", "n/a", "none", "null", "'--", "--", "not reported", "unknown", "not available"}
)


@dataclass(frozen=True)
class RawTable:
    """Rows by column name; an unnamed index column is called ''."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]

    def has(self, *columns: str) -> bool:
        return all(column in self.columns for column in columns)

    def values(self, column: str) -> list[str]:
        """The filled cells of a column."""
        return [row[column] for row in self.rows if not is_missing(row[column])]


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def read_raw_table(path: Path, *, sheet: str | None = None, header: bool = True) -> RawTable:
    """The table in this file; without a header its columns are '0', '1', …"""
    if not is_file(path):
        raise CohortError(f"{path} does not exist. Give the path of the table.")
    is_excel = path.suffix.lower() in {".xlsx", ".xlsm"}
    lines = _excel_lines(path, sheet) if is_excel else table_lines(path, delimiters=",\t;")
    first = next(lines, None)
    if first is None:
        raise CohortError(f"{path} is an empty table.")
    names = first if header else [str(index) for index in range(len(first))]
    refuse_double_columns(path, names)
    rows = [] if header else [row_of(names, first)]
    rows += [row_of(names, line) for line in lines]
    return RawTable(path, tuple(names), tuple(rows))


def joined_tables(path: Path, tables: Iterable[RawTable]) -> RawTable:
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
        width = cells = 0
        for count, row in enumerate(page.iter_rows(values_only=True)):
            width = max(width, len(row))
            cells += width
            refuse_huge_table(path, count, 1, cells)
            if any(line := [_cell(value) for value in row]):
                yield line
    except CohortError:
        raise
    except Exception as error:
        # A damaged workbook makes openpyxl and its parsers raise almost anything.
        raise CohortError(
            f"{path} cannot be read as an Excel table ({type(error).__name__}: {error}). Save it again, or as CSV in UTF-8."
        ) from error
    finally:
        if book is not None:
            book.close()


def _refuse_bomb(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    limit = min(MAX_WORKBOOK_BYTES, max(SMALL_WORKBOOK, HONEST_RATIO * path.stat().st_size))
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
