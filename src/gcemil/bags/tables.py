"""Tables as data frames of text, and ids that are plain file names.

A table is CSV, TSV or Excel, ours or another tool's. Every cell stays text, so that an id such as
007 keeps its zeros.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Hashable, Iterable
from pathlib import Path

import pandas as pd

from gcemil.errors import CohortError, MissingExtraError, error_text
from gcemil.files import is_file, read_bytes
from gcemil.wording import is_there, near_path

_LONGEST_ID = 200
"""Bytes; file systems take 255 and an ending has to fit."""
MISSING = frozenset(
    {"", "nan", "na", "n/a", "none", "null", "'--", "--", "unknown"}
    | {"not reported", "not available"}
)


def read_table(path: Path, columns: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read the rows of a table by column name; `columns` must be among its columns."""
    frame = read_frame(path)
    if note := frame.attrs.get("note"):
        raise CohortError(f"{note} Save it again as UTF-8.")
    if missing := [column for column in columns if column not in frame]:
        raise CohortError(f"{path} has no column '{missing[0]}', only: {', '.join(frame)}.")
    return list_rows(frame)


def read_frame(path: Path, *, sheet: str | None = None, header: bool = True) -> pd.DataFrame:
    """Read a table of text cells, stripped, without empty lines.

    Without a header its columns are '0', '1', …; `attrs["note"]` names an encoding other than
    UTF-8.
    """
    if not is_file(path):
        problem = "is not a file." if is_there(path) else f"does not exist.{near_path(path)}"
        raise CohortError(f"{path} {problem} Give the path of the table.")
    is_excel = path.suffix.lower() in {".xlsx", ".xlsm"}
    rows, note = (_read_excel(path, sheet), "") if is_excel else _read_csv(path, comments=header)
    lines = [line for row in rows if any(line := [cell.strip() for cell in row])]
    if not lines:
        raise CohortError(f"{path} is an empty table.")
    # What a short line lacks is empty; a long line is cut.
    width = len(lines[0])
    lines = [(line + [""] * (width - len(line)))[:width] for line in lines]
    if not header:
        return pd.DataFrame(lines, columns=[str(column) for column in range(width)], dtype=object)
    names = pd.Index(lines[0])
    if len(twice := names[names.duplicated() & (names != "")]):
        raise CohortError(f"{path}: column '{twice[0]}' occurs twice. Rename one.")
    # If several columns have no name, the last is kept.
    table = pd.DataFrame(lines[1:], columns=names, dtype=object).loc[
        :, ~names.duplicated(keep="last")
    ]
    table.attrs["note"] = note
    return table


def list_rows(frame: pd.DataFrame) -> list[dict[str, str]]:
    """List the rows of a table by column name."""
    return [dict(zip(frame, row, strict=True)) for row in frame.to_numpy().tolist()]


def is_missing(text: str) -> bool:
    """Whether a cell is empty, or holds a word that tables use for empty."""
    return text.strip().lower() in MISSING


def has_columns(frame: pd.DataFrame, *columns: Hashable) -> bool:
    """Whether the table has all these columns."""
    return set(columns) <= set(frame)


def list_columns(columns: Iterable[str]) -> str:
    """Name columns in a message."""
    return ", ".join(name or "(index)" for name in columns) or "none"


def _read_csv(path: Path, *, comments: bool) -> tuple[list[list[str]], str]:
    """The lines of a CSV file, and a note on its encoding."""
    content = read_bytes(path)
    # Excel saves tables in the encoding of the machine, or in UTF-16, which begins with a mark.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        encoding = "latin-1"
        text = content.decode(encoding)
    note = f"{path.name} is not UTF-8 and was read as {encoding.upper()}."
    # cBioPortal puts four lines that begin with # above the names of its columns.
    while comments and text.startswith("#"):
        text = text.partition("\n")[2]
    # The delimiter occurs most in the first line.
    first = text.lstrip().partition("\n")[0]
    delimiter = max(",\t;", key=first.count)
    try:
        # pandas.read_csv takes a hundred times longer over tables with thousands of columns.
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise CohortError(
            f"{path} is not a table ({error}). Check its quotes and line ends."
        ) from error
    return lines, "" if encoding == "utf-8-sig" else note


def _read_excel(path: Path, sheet: str | None) -> list[list[str]]:
    try:
        with pd.ExcelFile(path, engine="openpyxl") as book:
            if sheet is not None and sheet not in book.sheet_names:
                raise CohortError(
                    f"{path} has no sheet '{sheet}', only: {', '.join(book.sheet_names)}."
                )
            return (
                book.parse(sheet or 0, header=None, dtype=str, na_filter=False).to_numpy().tolist()
            )
    except CohortError:
        raise
    except ImportError as error:
        raise MissingExtraError("openpyxl", "tables") from error
    except Exception as error:
        # A damaged workbook makes openpyxl and its parsers raise almost anything.
        raise CohortError(
            f"{path} cannot be read as an Excel table ({error_text(error)}). "
            "Save it again, or as CSV in UTF-8."
        ) from error


def check_slide_id(slide_id: str, table: Path) -> str:
    """Return the id if it is a plain file name: it must never lead out of the cohort's folder."""
    if not is_plain_id(slide_id):
        raise CohortError(
            f"{table}: '{slide_id[:_LONGEST_ID]}' cannot be a slide id; use a plain name of at "
            f"most {_LONGEST_ID} bytes without '/', '\\' and control characters."
        )
    return slide_id


def is_plain_id(slide_id: str) -> bool:
    """Whether a slide id can be the name of a file."""
    unsafe = slide_id in {"", ".", ".."} or any(char in "/\\" or char < " " for char in slide_id)
    return not unsafe and len(slide_id.encode()) <= _LONGEST_ID
