"""Sizes that the directories of a TIFF file claim, judged before a library believes them.

A directory lists tags: a number, a type, a count, and the values or the place where they lie. OpenSlide and libtiff read
as many bytes as these say a tile or a text has, whatever that tile can hold. One changed number, and gigabytes are read
for every tile: from the rest of a large file, or from the holes of one that takes no room on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import SEEK_END
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt

from gcemil.errors import InputError

Numbers = UInt[np.ndarray, "n"]

IMAGE_WIDTH, TILE_WIDTH, TILE_HEIGHT, TILE_BYTE_COUNTS, NDPI = 256, 322, 323, 325, 65420
TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}  # fmt: skip
INTEGERS = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
MOST_DIRECTORIES, MOST_TAGS = 1000, 4096
LARGEST_TAG = 2**27
"""Bytes: sixteen million tiles, or far more than any description or colour profile."""
LARGEST_TILE = 2**26
"""Pixels: 8,192 x 8,192; tiles of scanners are far smaller."""
BYTES_PER_PIXEL, TILE_OVERHEAD = 8, 2**16
"""Four samples of 16 bits, and the tables of a tile of its own: compressed tiles are smaller, hardly ever larger."""
REMEDY = "The file is damaged; copy it again or leave it out."


def refuse_absurd_sizes(path: Path) -> None:
    """Refuse a TIFF whose tags or tiles claim more bytes than they can have; files of other formats pass."""
    read = 0
    with path.open("rb") as file:
        for directory in _directories(file):
            # Hamamatsu stretches the format with offsets of its own, and its strips are decoded piece by piece.
            if NDPI in directory.tags:
                return
            for tag, (kind, count, _) in directory.tags.items():
                if (size := count * TYPE_BYTES.get(kind, 0)) > LARGEST_TAG:
                    raise InputError(f"{path}: TIFF tag {tag} claims {size:,} bytes. {REMEDY}")
            counts = directory.numbers(file, TILE_BYTE_COUNTS)
            read += counts.nbytes
            if read > LARGEST_TAG:
                raise InputError(
                    f"{path}: its tables of tiles take more than {LARGEST_TAG:,} bytes. {REMEDY}"
                )
            width, height = (
                int(directory.numbers(file, tag, most=1).sum()) for tag in (TILE_WIDTH, TILE_HEIGHT)
            )
            tile = f"{path}: a tile of {width} x {height} pixels"
            if width * height > LARGEST_TILE:
                raise InputError(f"{tile} cannot be. {REMEDY}")
            largest = int(counts.max(initial=0))
            if width * height and largest > BYTES_PER_PIXEL * width * height + TILE_OVERHEAD:
                raise InputError(f"{tile} claims {largest:,} bytes, more than it can hold. {REMEDY}")


@dataclass(frozen=True)
class _Directory:
    """Tags by number: type, count and the bytes that hold the value or its place."""

    order: str
    tags: dict[int, tuple[int, int, bytes]]

    def numbers(self, file: BinaryIO, tag: int, *, most: int = LARGEST_TAG) -> Numbers:
        """The first values of a tag; none where it is absent, no integer or beyond the end of the file."""
        kind, count, field = self.tags.get(tag, (0, 0, b""))
        if kind not in INTEGERS:
            return np.empty(0, dtype="u4")
        dtype = np.dtype(self.order + INTEGERS[kind])
        wanted = min(count, most) * dtype.itemsize
        content = field[:wanted]
        if count * dtype.itemsize > len(field):
            content = _read_at(file, _integer(field, self.order), wanted)
        return np.frombuffer(content[: len(content) // dtype.itemsize * dtype.itemsize], dtype=dtype)


def _directories(file: BinaryIO) -> Iterator[_Directory]:
    """Each directory as far as the file can be followed; none where it is no TIFF."""
    head = _read_at(file, 0, 16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    if order is None or len(head) < 16:
        return
    version = _integer(head[2:4], order)
    if version not in (42, 43):
        return
    word, count_bytes = (4, 2) if version == 42 else (8, 8)
    entry = np.dtype(
        [("tag", f"{order}u2"), ("kind", f"{order}u2"), ("count", f"{order}u{word}"), ("field", f"V{word}")]
    )
    offset = _integer(head[4:8] if version == 42 else head[8:16], order)
    seen: set[int] = set()
    while offset and offset not in seen and len(seen) < MOST_DIRECTORIES:
        seen.add(offset)
        n_tags = min(_integer(_read_at(file, offset, count_bytes), order), MOST_TAGS)
        content = file.read(n_tags * entry.itemsize)
        if len(content) < n_tags * entry.itemsize:
            return
        rows = np.frombuffer(content, dtype=entry)
        # Of a tag that occurs twice, libtiff takes the first.
        tags = {
            int(row["tag"]): (int(row["kind"]), int(row["count"]), row["field"].tobytes())
            for row in rows[::-1]
        }
        # What lies where a directory should is none, as in an NDPI file beyond 4 GB.
        if IMAGE_WIDTH not in tags:
            return
        yield _Directory(order, tags)
        offset = _integer(_read_at(file, offset + count_bytes + len(content), word), order)


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """So many bytes from there on; fewer where the file ends."""
    if offset >= file.seek(0, SEEK_END):
        return b""
    file.seek(offset)
    return file.read(size)


def _integer(content: bytes, order: str) -> int:
    return int.from_bytes(content, "little" if order == "<" else "big")
