"""What a cohort is, as hashes: its card, its labels, its folds, its anchors and pairs, and every feature file to the last byte.

The first time everything is read. After that a file is read again only when its size, times or inode are others than when
it was hashed; the hashes are kept in .gcemil_hashes.json in the cohort folder or, where that is read-only, in the folder of
the run. A damaged cache is no cache. Truth is left out: training never reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import fold_indices, read_parts, split_file
from gcemil.errors import CohortError, GcemilError, InputError, error_text
from gcemil.files import read_json, refuse_special, remove_leftovers_of, write_json

CACHE = ".gcemil_hashes.json"
_PAIRS = "anchor_pairs.h5"
SETTLED_NS = 2 * 10**9
"""A file younger than this may be written again within one tick of its times, so its hash is not kept."""
_ATTEMPTS = 3
LARGE_BYTES, HOLES = 2**28, 100
"""Numbers do not compress a hundredfold, so a large file that takes so little of the disk was never written."""
PARTS = {
    "card": "cohort.yaml",
    "labels": "the labels",
    "splits": "the splits",
    "anchors": "the anchors",
    "pairs": "the anchor pairs",
    "features": "the features of",
}
"""Every part of a cohort that a run depends on, and its name in a sentence."""

Mark = tuple[int, ...]
"""Size, both times and inode of a file: what tells that it was not touched."""

_remembered: dict[Mark, str] = {}
"""Hashes of files that this process has read or whose mark it has verified."""


@dataclass(frozen=True)
class CohortRecord:
    """The hash of everything in a cohort that a run depends on."""

    parts: Mapping[str, Mapping[str, str]]
    """Part of the cohort → name of a file or slide → hash."""

    @property
    def fingerprint(self) -> str:
        """One hash of everything."""
        return _hash_value({part: dict(hashes) for part, hashes in self.parts.items()})

    def differences(self, now: CohortRecord) -> list[str]:
        """What is not as it was, in words."""
        found = []
        for part, name in PARTS.items():
            before, after = self.parts.get(part, {}), now.parts.get(part, {})
            changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
            if not changed:
                continue
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            if part == "features":
                found.append(f"{name} slide '{changed[0]}'{more}")
            elif part in ("card", "labels"):
                found.append(name)
            else:
                found.append(f"{name} ({changed[0]}{more})")
        return found

    def to_json(self) -> dict[str, Any]:
        """The record as it is kept beside a run."""
        return {"fingerprint": self.fingerprint, "parts": self.parts}

    @classmethod
    def from_json(cls, value: Any, source: Path) -> CohortRecord:
        """A record that `to_json` made; `source` is the file that messages name."""
        try:
            record = cls({part: dict(value["parts"][part]) for part in PARTS})
            is_whole = record.fingerprint == value["fingerprint"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{source} is no record of a cohort ({error_text(error)}).") from error
        if not is_whole:
            raise InputError(f"{source} is damaged: its hashes do not give its fingerprint.")
        return record


def record_cohort(cohort: Cohort, run: Path | None = None) -> CohortRecord:
    """The cohort as it is now; `run` is a folder for hashes that cannot be kept in the cohort's."""
    hashes = _Hashes(cohort.folder, run)
    parts = {
        # What the card says of the data; its name and history decide nothing.
        "card": {
            "cohort.yaml": _hash_value(cohort.card.model_dump(mode="json", exclude={"name", "provenance"}))
        },
        "labels": {"slides.csv": _hash_value([asdict(row) | {"site": None} for row in cohort.slides])},
        "splits": {
            split_file(cohort.folder, index).name: _hash_value(
                sorted(map(list, read_parts(cohort.folder, index)))
            )
            for index in fold_indices(cohort.folder)
        },
        "anchors": {name: hashes.of(name) for name in _find_anchor_files(cohort)},
        "pairs": {name: hashes.of(name) for name in (_PAIRS,) if (cohort.folder / name).exists()},
        "features": {row.slide_id: hashes.of(f"features/{row.slide_id}.h5") for row in cohort.slides},
    }
    hashes.save()
    return CohortRecord(parts)


def content_hash(path: Path) -> str:
    """SHA-256 of a whole file, in chunks; read again only when the file was touched since this process read it."""
    for _ in range(_ATTEMPTS):
        started, mark = time.time_ns(), _read_mark(path)
        if mark in _remembered:
            return _remembered[mark]
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error_text(error)}).") from error
        if _read_mark(path) == mark:
            if _is_settled(mark, started):
                _remembered[mark] = found
            return found
    raise InputError(f"{path} is being written by somebody else. Wait for it to end, then run this again.")


class _Hashes:
    """The hashes of a cohort's files, most of them from memory."""

    def __init__(self, folder: Path, run: Path | None) -> None:
        self._folder = folder
        self._caches = [folder / CACHE, *([] if run is None else [run / CACHE])]
        self._kept = [_read_cache(path) for path in self._caches]
        self._found: dict[str, tuple[Mark, str]] = {}

    def of(self, name: str) -> str:
        path, started = self._folder / name, time.time_ns()
        mark = _read_mark(path)
        for cache in self._kept:
            if name in cache and cache[name][0] == mark:
                _remembered[mark] = cache[name][1]
        found = content_hash(path)
        # A file touched meanwhile has the right hash for now, but not one to keep.
        if _is_settled(mark, started) and _read_mark(path) == mark:
            self._found[name] = (mark, found)
        return found

    def save(self) -> None:
        """Into the first place that can be written; without one the next command reads the files again."""
        for path in self._caches:
            remove_leftovers_of(path)
        if any(cache == self._found for cache in self._kept):
            return
        content = {name: [*mark, found] for name, (mark, found) in self._found.items()}
        for path in self._caches:
            with suppress(GcemilError):
                write_json(path, content)
                return


def _read_cache(path: Path) -> dict[str, tuple[Mark, str]]:
    try:
        content = read_json(path)
        found = {str(name): (tuple(mark), hash_) for name, (*mark, hash_) in content.items()}
    except (GcemilError, AttributeError, TypeError, ValueError):
        return {}
    is_whole = all(
        [type(value) for value in mark] == [int] * 4 and isinstance(hash_, str) and len(hash_) == 64
        for mark, hash_ in found.values()
    )
    return found if is_whole else {}


def _read_mark(path: Path) -> Mark:
    try:
        refuse_special(path)
        found = path.stat()
    except OSError as error:
        if path.is_symlink():
            raise CohortError(
                f"{path} is a link to {os.fsdecode(path.readlink())}, which cannot be read ({error_text(error)}). "
                "Put the file back, or import the cohort again from where it lies now."
            ) from error
        raise CohortError(f"{path} cannot be read ({error_text(error)}). Put the file back.") from error
    _refuse_holes(path, found)
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def _refuse_holes(path: Path, found: os.stat_result) -> None:
    """A file that says it is far more than the disk holds of it could be hashed for hours."""
    on_disk = getattr(found, "st_blocks", 0) * 512
    if found.st_size > LARGE_BYTES and 0 < on_disk < found.st_size // HOLES:
        raise CohortError(
            f"{path} has {found.st_size:,} bytes, of which the disk holds {on_disk:,}: the rest are holes. "
            "It is damaged; extract or copy it again."
        )


def _is_settled(mark: Mark, now_ns: int) -> bool:
    return max(mark[1], mark[2]) + SETTLED_NS < now_ns


def _find_anchor_files(cohort: Cohort) -> list[str]:
    """The bank the card names, and everything that may serve as one."""
    named = cohort.card.anchors or ""
    return sorted(
        path.name
        for path in cohort.folder.glob("*.h5")
        if path.name.startswith("anchors") or path.name == named
    )


def _hash_value(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
