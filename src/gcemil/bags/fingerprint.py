"""Content hashes of a cohort: its card, labels, folds, anchors, pairs and feature files.

A file is read again only if its size, times or inode changed since it was hashed. The hashes are
kept in .gcemil_hashes.json in the cohort folder if that is writable; a damaged cache is ignored.
Truth is left out: training never reads it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gcemil.bags import store
from gcemil.bags.cohort import Cohort, SlideRow
from gcemil.bags.folds import fold_indices, read_parts, split_file
from gcemil.errors import CohortError, GcemilError, InputError, error_text
from gcemil.files import read_json, require_file, validate_as, write_json

CACHE = ".gcemil_hashes.json"
SETTLED_NS = 2 * 10**9
"""A younger file could change again within one tick of its times, so its hash is not kept."""
PARTS = {
    "card": "cohort.yaml",
    "labels": "the labels",
    "splits": "the splits",
    "anchors": "the anchors",
    "pairs": "the anchor pairs",
    "features": "the features of",
}
"""Parts of a cohort that a run depends on, and their names in messages."""

Mark = tuple[int, int, int, int]
"""Size, time of writing, time of change and inode of a file: equal marks mean equal content."""

HashCache = dict[str, tuple[Mark, str]]
"""Path within the cohort → its mark when it was read, and its hash."""

_known_hashes: dict[Mark, str] = {}


@dataclass(frozen=True)
class CohortRecord:
    """The hashes of everything in a cohort that a run depends on."""

    parts: Mapping[str, Mapping[str, str]]
    """Part of the cohort → name of a file or slide → hash."""

    @property
    def fingerprint(self) -> str:
        """One hash of everything."""
        return _hash_value({part: dict(hashes) for part, hashes in self.parts.items()})

    def differences(self, now: CohortRecord) -> list[str]:
        """The parts that changed, in words."""
        result = []
        for part, name in PARTS.items():
            before, after = self.parts.get(part, {}), now.parts.get(part, {})
            changed = sorted({key for key, _ in {*before.items()} ^ {*after.items()}})
            if not changed:
                continue
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            if part == "features":
                result.append(f"{name} slide '{changed[0]}'{more}")
            elif part in ("card", "labels"):
                result.append(name)
            else:
                result.append(f"{name} ({changed[0]}{more})")
        return result

    def to_json(self) -> dict[str, Any]:
        """The record as it is kept in a run folder."""
        return {"fingerprint": self.fingerprint, "parts": self.parts}

    @classmethod
    def from_json(cls, value: Any, source: Path) -> CohortRecord:
        """Read a record that `to_json` made; `source` is the file that messages name."""
        try:
            return cls({part: dict(value["parts"][part]) for part in PARTS})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{source} is not a record of a cohort ({error_text(error)})."
            ) from error


def record_cohort(cohort: Cohort) -> CohortRecord:
    """Hash the cohort as it is now."""
    folder = cohort.folder
    cached: HashCache = {}
    with suppress(GcemilError):
        cached = validate_as(read_json(folder / CACHE), HashCache, folder / CACHE)
    _known_hashes.update(cached.values())
    bank = cohort.card.anchors or ""
    anchors = sorted(
        path.name
        for path in folder.glob("*.h5")
        if path.name.startswith("anchors") or path.name == bank
    )
    pairs = [name for name in ("anchor_pairs.h5",) if (folder / name).exists()]
    features = {row.slide_id: f"features/{row.slide_id}.h5" for row in cohort.slides}
    hashes = {name: content_hash(folder / name) for name in [*anchors, *pairs, *features.values()]}
    marks = {name: _read_mark(folder / name) for name in hashes}
    content = {
        name: (mark, _known_hashes[mark]) for name, mark in marks.items() if mark in _known_hashes
    }
    if content != cached:
        # Without the cache, the next command reads the files again.
        with suppress(GcemilError):
            write_json(folder / CACHE, content)
    # The name and the history of a cohort change no result.
    card = cohort.card.model_dump(mode="json", exclude={"name", "provenance"})
    splits = {
        split_file(folder, index).name: _hash_value(
            sorted(map(list, read_parts(folder, index).items()))
        )
        for index in fold_indices(folder)
    }
    return CohortRecord(
        {
            "card": {"cohort.yaml": _hash_value(card)},
            "labels": {"slides.csv": _hash_value([_list_labels(row) for row in cohort.slides])},
            "splits": splits,
            "anchors": {name: hashes[name] for name in anchors},
            "pairs": {name: hashes[name] for name in pairs},
            "features": {slide_id: hashes[name] for slide_id, name in features.items()},
        }
    )


def _list_labels(row: SlideRow) -> dict[str, Any]:
    """What training reads of a line; runs of earlier versions have no labels of several targets."""
    values = asdict(row) | {"site": None}
    return values if row.labels else {name: one for name, one in values.items() if name != "labels"}


def content_hash(path: Path) -> str:
    """SHA-256 of a file; it is read again only if it changed since it was hashed."""
    mark = _read_mark(path)
    if mark in _known_hashes:
        return _known_hashes[mark]
    started = time.time_ns()
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error_text(error)}).") from error
    if max(mark[1], mark[2]) + SETTLED_NS < started:
        _known_hashes[mark] = digest
    return digest


def file_fingerprint(path: Path) -> str:
    """Hash a slide's size and its first and last 64 KiB, because slides are gigabytes."""
    require_file(path)
    edge = 64 * 1024
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(edge))
        file.seek(max(0, size - edge))
        digest.update(file.read(edge))
    return digest.hexdigest()


def _read_mark(path: Path) -> Mark:
    if not path.is_file():
        raise CohortError(store.describe_absence(path))
    info = path.stat()
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def _hash_value(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
