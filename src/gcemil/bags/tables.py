"""CSV tables and plain ids: the small files beside the features."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable
from pathlib import Path

from gcemil.errors import CohortError


def read_table(path: Path, columns: Iterable[str] = ()) -> list[dict[str, str]]:
    """Rows of a CSV file by column name; the columns asked for must be there."""
    if not path.is_file():
        raise CohortError(f"{path} does not exist.")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        found = reader.fieldnames or []
        if missing := [column for column in columns if column not in found]:
            raise CohortError(f"{path} has no column '{missing[0]}', only: {', '.join(found)}.")
        return [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]


def check_slide_id(slide_id: str, table: Path) -> str:
    """The id as a plain file name: it must never lead out of the cohort's own folder."""
    if not slide_id or slide_id in {".", ".."} or any(char in slide_id for char in "/\\\0"):
        raise CohortError(
            f"{table}: '{slide_id}' cannot be a slide id; use a plain name without '/' or '\\'."
        )
    return slide_id


def file_fingerprint(path: Path) -> str:
    """Hash of a file's size and of its first and last 64 KiB: cheap, and any re-extraction changes it."""
    edge = 64 * 1024
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(edge))
        file.seek(max(0, size - edge))
        digest.update(file.read(edge))
    return digest.hexdigest()
