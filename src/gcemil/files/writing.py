"""Files are written whole or not at all, in folders that one process works in at a time.

Everything gcemil writes goes through `whole_file` (or `whole_folder`): the content is made beside its target under a
name that no other process uses, flushed to the disk, and renamed. A kill at any moment leaves the old content or the
new one. What a killed process leaves behind is removed by the next one that works in the folder (`remove_leftovers`).
"""

from __future__ import annotations

import csv
import ctypes
import inspect
import json
import math
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gcemil.errors import BusyError, StoreError, describe_fault, error_text, write_remedy

LOCK_NAME = ".gcemil.lock"
_PARTIAL, _ASIDE = "partial", "aside"
"""Endings of what is being made, and of what makes room for it."""
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside the target; when the block ends well it is flushed and takes the target's place."""
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
def whole_folder(folder: Path) -> Iterator[Path]:
    """The same for a folder of files that belong together; the target must not exist yet, or be empty."""
    with _explain_faults(folder), _folder_aside(folder) as temporary:
        yield temporary
        temporary.replace(folder)
        _flush_folder(folder.parent)


@contextmanager
def replaced_folder(folder: Path, *, keep: Callable[[str], bool] | None = None) -> Iterator[Path]:
    """A new folder that takes the place of the one that is there.

    Of the old files those stay that are not made anew and whose names `keep` accepts.
    """
    with _explain_faults(folder):
        restore_folder(folder)
        with _folder_aside(folder) as temporary:
            yield temporary
            if keep is not None and folder.is_dir():
                _carry_over(folder, temporary, keep)
            if not folder.exists():
                temporary.replace(folder)
            elif not _exchange(temporary, folder):
                aside = _temporary_name(folder, _ASIDE)
                folder.replace(aside)
                temporary.replace(folder)
                _remove(aside)
            _flush_folder(folder.parent)


def restore_folder(folder: Path) -> None:
    """Put back what a process that no longer lives had moved aside to replace it, where it got no further."""
    for aside in _leftovers_of(folder, _ASIDE):
        if folder.exists():
            _remove(aside)
        else:
            with suppress(OSError):
                aside.replace(folder)


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file whole; the path, for chaining."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text whole."""
    return write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> Path:
    """Readable JSON with sorted keys; a figure that does not exist (NaN) is null, because JSON has no NaN."""
    return write_text(
        path,
        json.dumps(without_nan(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n",
    )


def write_table(path: Path, columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> Path:
    """A CSV file of these columns."""
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def without_nan(value: Any) -> Any:
    """The value with null for every number that is not finite."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that no longer live left half-written, at any depth."""
    for path in folder.rglob(f".*.{_PARTIAL}"):
        if _left_by_the_dead(path):
            _remove(path)


def remove_leftovers_of(path: Path) -> None:
    """The same for one file or folder that is about to be written."""
    for left in _leftovers_of(path, _PARTIAL):
        _remove(left)


@contextmanager
def working_in(folder: Path, *, wait: bool | float = False) -> Iterator[None]:
    """The lock of a folder, and the folder free of what was left half-written, before the work and after it."""
    with locked_folder(folder, wait=wait):
        remove_leftovers(folder)
        try:
            yield
        finally:
            # Workers that were stopped may have been writing.
            remove_leftovers(folder)


@contextmanager
def locked_folder(folder: Path, *, wait: bool | float = False) -> Iterator[None]:
    """Work in a folder that no other process works in; the lock dies with the process that holds it."""
    with locked_file(folder / LOCK_NAME, wait=wait, what=str(folder)):
        yield


@contextmanager
def locked_file(path: Path, *, wait: bool | float = False, what: str | None = None) -> Iterator[None]:
    """Hold this lock file; BusyError when another process holds it and we do not wait (seconds, or as long as it takes)."""
    with _explain_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=-1 if wait is True else float(wait), **_real_locks_only())
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"{what or path} is being written by another process{_holder(path)}. Wait for it to end, or give another folder."
        ) from error
    except (OSError, NotImplementedError) as error:
        raise StoreError(
            f"{path} cannot be locked ({error_text(error)}). Use a folder you may write to, on a file system with locks."
        ) from error
    try:
        with suppress(OSError):
            path.write_text(f"{socket.gethostname()} {os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


@cache
def _real_locks_only() -> dict[str, Any]:
    """Newer filelocks replace a lock that the file system does not have by a file, which a kill leaves behind."""
    name = "fallback_to_soft"
    return {name: False} if name in inspect.signature(FileLock).parameters else {}


@contextmanager
def _explain_faults(path: Path) -> Iterator[None]:
    """What the system says about writing this path, as one sentence with a remedy."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not _is_about(path, os.fsdecode(error.filename)):
            # Something that is read while this path is written, such as the file it is copied from.
            raise StoreError(describe_fault(error)) from error
        raise StoreError(f"{path} cannot be written ({error_text(error)}). {write_remedy(error)}") from error


def _is_about(path: Path, named: str) -> bool:
    """Whether the system speaks of this path, of its temporary name, or of a folder it lies in."""
    return path.name in named or Path(named) in path.parents


@contextmanager
def _folder_aside(folder: Path) -> Iterator[Path]:
    """A new folder beside this one; gone when the block ends, unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers_of(folder)
    temporary = _temporary_name(folder)
    try:
        temporary.mkdir()
        yield temporary
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    """A file, a link or a folder with all it holds, where it is there and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _carry_over(old: Path, new: Path, keep: Callable[[str], bool]) -> None:
    for path in old.iterdir():
        target = new / path.name
        if not keep(path.name) or target.exists() or path.name.endswith(f".{_PARTIAL}"):
            continue
        if path.is_dir():
            shutil.copytree(path, target, symlinks=True)
        else:
            shutil.copy2(path, target, follow_symlinks=False)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step, where system and file system can; whether they did."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0)


def _temporary_name(path: Path, ending: str = _PARTIAL) -> Path:
    """Hidden, beside the target, named by machine and process so that it can be told whether its writer lives."""
    stem = path.name[:100]
    return path.with_name(
        f".{stem}.{socket.gethostname()[:40]}.{os.getpid()}.{secrets.token_hex(4)}.{ending}"
    )


def _leftovers_of(path: Path, ending: str) -> list[Path]:
    """What writers of this path that no longer live left beside it."""
    start = f".{path.name[:100]}.{socket.gethostname()[:40]}."
    try:
        beside = sorted(path.parent.iterdir())
    except OSError:
        return []
    return [
        found
        for found in beside
        if found.name.startswith(start) and found.name[len(start) :].count(".") == 2
        if _left_by_the_dead(found, ending)
    ]


def _left_by_the_dead(path: Path, ending: str = _PARTIAL) -> bool:
    parts = path.name.split(".")
    if len(parts) < 5 or not parts[-3].isdigit():
        return False
    machine = socket.gethostname()[:40]
    if not path.name.endswith(f".{machine}.{parts[-3]}.{parts[-2]}.{ending}"):
        return False
    return not _is_alive(int(parts[-3]))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _flush(path: Path) -> None:
    """On the disk, not only in the system's memory: a full disk must be noticed before the old file is replaced."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):
        _flush(folder)


def _holder(path: Path) -> str:
    try:
        machine, pid = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return f" (process {pid} on {machine})"
