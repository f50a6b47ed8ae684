"""A table as other tools write it: CSV, TSV or Excel, with the index column of pandas and ragged ends."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcemil.errors import CohortError, MissingExtraError

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
    if not path.is_file():
        raise CohortError(f"{path} does not exist. Give the path of the table.")
    lines = _excel_lines(path, sheet) if path.suffix.lower() in {".xlsx", ".xlsm"} else _text_lines(path)
    lines = [line for line in lines if any(cell for cell in line)]
    if not lines:
        raise CohortError(f"{path} is an empty table.")
    names = lines[0] if header else [str(index) for index in range(len(lines[0]))]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise CohortError(f"{path}: column '{twice[0]}' stands twice. Rename one.")
    body = lines[1:] if header else lines
    return RawTable(path, tuple(names), tuple(_row(names, line) for line in body))


def joined_tables(path: Path, tables: Iterable[RawTable]) -> RawTable:
    """Tables with the same columns, one below the other."""
    found = list(tables)
    for table in found[1:]:
        if set(table.columns) != set(found[0].columns):
            raise CohortError(
                f"{table.path} and {found[0].path} have different columns, so they are not one table."
            )
    return RawTable(path, found[0].columns, tuple(row for table in found for row in table.rows))


def _row(names: list[str], line: list[str]) -> dict[str, str]:
    return dict(zip(names, line + [""] * (len(names) - len(line)), strict=False))


def _text_lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CohortError(f"{path} is not UTF-8 text ({error}). Save it as CSV in UTF-8.") from error
    first = text.partition("\n")[0]
    delimiter = max(",\t;", key=first.count)
    return [[cell.strip() for cell in line] for line in csv.reader(text.splitlines(), delimiter=delimiter)]


def _excel_lines(path: Path, sheet: str | None) -> list[list[str]]:
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise MissingExtraError("openpyxl", "tables") from error
    book = load_workbook(path, read_only=True, data_only=True)
    try:
        if sheet is not None and sheet not in book.sheetnames:
            raise CohortError(f"{path} has no sheet '{sheet}', only: {', '.join(book.sheetnames)}.")
        page = book[sheet] if sheet else book[book.sheetnames[0]]
        return [[_cell(value) for value in row] for row in page.iter_rows(values_only=True)]
    finally:
        book.close()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
