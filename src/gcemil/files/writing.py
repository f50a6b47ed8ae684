"""Atomic writes, and one writer per folder.

Everything gcemil writes goes through `atomic_write` or `atomic_folder`: the content is made beside its target under a
unique hidden name, flushed to the disk, and renamed. A kill at any moment leaves the old content or the new one.
`lock_folder` gives a folder one writer at a time.
"""

from __future__ import annotations

import csv
import inspect
import json
import math
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gcemil.errors import BusyError, StoreError, describe_fault, error_text, write_remedy

LOCK_NAME = ".gcemil.lock"


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside the target; it is flushed and renamed to the target if the block succeeds."""
    with _explain_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary_name(path)
        try:
            yield temporary
            _flush(temporary)
            temporary.replace(path)
            _flush_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """The same for a folder; the target must not exist yet, or be empty."""
    with _explain_faults(folder), _new_folder_beside(folder) as temporary:
        yield temporary
        temporary.replace(folder)
        _flush_folder(folder.parent)


@contextmanager
def replace_folder(folder: Path, *, keep: Callable[[str], bool]) -> Iterator[Path]:
    """Yield a new folder that replaces the old one; old files stay if `keep` accepts their name and none is new."""
    with _explain_faults(folder), _new_folder_beside(folder) as temporary:
        yield temporary
        aside = _temporary_name(folder)
        if folder.exists():
            for path in folder.iterdir():
                if keep(path.name) and not (temporary / path.name).exists():
                    copy = shutil.copytree if path.is_dir() else shutil.copy2
                    copy(path, temporary / path.name)
            folder.replace(aside)
        temporary.replace(folder)
        _flush_folder(folder.parent)
        _remove(aside)


def write_bytes(path: Path, content: bytes | memoryview) -> Path:
    """Write a file atomically and return its path."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> Path:
    """Write readable JSON with sorted keys; numbers that are not finite become null, because JSON has no NaN."""
    return write_text(
        path,
        json.dumps(without_nan(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n",
    )


def write_table(path: Path, columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> Path:
    """Write a CSV file of these columns."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def without_nan(value: Any) -> Any:
    """The value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def lock_folder(folder: Path, *, wait: bool | float = False) -> Iterator[None]:
    """Work in a folder that no other process works in; the lock ends with the process."""
    with lock_file(folder / LOCK_NAME, wait=wait, what=str(folder)):
        yield


@contextmanager
def lock_file(path: Path, *, wait: bool | float = False, what: str | None = None) -> Iterator[None]:
    """Hold a lock file, which is free again when its process ends.

    BusyError if another process holds it after `wait` seconds; True waits without end.
    """
    with _explain_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=-1 if wait is True else float(wait), **_real_locks_only())
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"{what or path} is being written by another process{_describe_holder(path)}. "
            "Wait for it to end, or give another folder."
        ) from error
    except (OSError, NotImplementedError) as error:
        raise StoreError(
            f"{path} cannot be locked ({error_text(error)}). "
            "Use a folder you may write to, on a file system with locks."
        ) from error
    try:
        with suppress(OSError):
            path.write_text(f"{socket.gethostname()} {os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


@cache
def _real_locks_only() -> dict[str, Any]:
    """Options against the soft locks of newer versions of filelock, which a killed process leaves behind."""
    name = "fallback_to_soft"
    return {name: False} if name in inspect.signature(FileLock).parameters else {}


def _describe_holder(path: Path) -> str:
    try:
        machine, pid = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return f" (process {pid} on {machine})"


@contextmanager
def _explain_faults(path: Path) -> Iterator[None]:
    """Raise a StoreError with a remedy for every OSError."""
    try:
        yield
    except OSError as error:
        named = os.fsdecode(error.filename) if error.filename is not None else path.name
        if path.name not in named and Path(named) not in path.parents:
            # A file that is read meanwhile, such as the one that is copied.
            raise StoreError(describe_fault(error)) from error
        raise StoreError(f"{path} cannot be written ({error_text(error)}). {write_remedy(error)}") from error


@contextmanager
def _new_folder_beside(folder: Path) -> Iterator[Path]:
    """A new folder beside this one, removed at the end unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(folder)
    try:
        temporary.mkdir()
        yield temporary
    finally:
        _remove(temporary)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.partial")


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder if it exists and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush to the disk: a full disk must be noticed before the old file is replaced."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):
        _flush(folder)
