"""Files on disk: written whole or not at all, read within bounds, and folders that one process works in at a time.

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
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from gcemil.errors import (
    BusyError,
    GcemilError,
    InputError,
    StoreError,
    describe_fault,
    error_text,
    write_remedy,
)

T = TypeVar("T")

LOCK_NAME = ".gcemil.lock"
PARTIAL, ASIDE = "partial", "aside"
"""Endings of what is being made, and of what makes room for it."""
RENAME_EXCHANGE, AT_FDCWD = 2, -100
MAX_TEXT_BYTES = 256 * 2**20
"""More than any table, record or settings file that people keep; a larger one is refused before it is read."""
MAX_PIXELS = 64_000_000
"""Of a mask or thumbnail: 8,000 x 8,000, far more than either needs."""
MAX_YAML_BYTES = 2 * 2**20
MAX_YAML_NODES = 500_000
MAX_DEPTH = 100
LARGEST_NUMBER = 1e150
"""The squares of larger ones are infinite, so that not even their spread can be told."""
SHOWN_FAULTS = 3
"""Of a record with many wrong fields, so many are told."""


# Writing


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
                aside = _temporary_name(folder, ASIDE)
                folder.replace(aside)
                temporary.replace(folder)
                _remove(aside)
            _flush_folder(folder.parent)


def restore_folder(folder: Path) -> None:
    """Put back what a process that no longer lives had moved aside to replace it, where it got no further."""
    for aside in _leftovers_of(folder, ASIDE):
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
    for path in folder.rglob(f".*.{PARTIAL}"):
        if _left_by_the_dead(path):
            _remove(path)


def remove_leftovers_of(path: Path) -> None:
    """The same for one file or folder that is about to be written."""
    for left in _leftovers_of(path, PARTIAL):
        _remove(left)


# Reading


def is_file(path: Path) -> bool:
    """Whether a regular file can be seen there; a name the system refuses, or a closed folder, has none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def refuse_special(path: Path) -> None:
    """A folder, pipe or device in the place of a file is an InputError: to open one can take for ever."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file, so it is not read.")


def read_text(path: Path, *, limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a UTF-8 file; one that is missing, too large, special or of another encoding is an InputError."""
    content = read_bytes(path, limit=limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start}: {error.reason}). Save it again as UTF-8."
        ) from error


def read_bytes(path: Path, *, limit: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a regular file that is not larger than the limit."""
    try:
        refuse_special(path)
        size = path.stat().st_size
        if size > limit:
            raise InputError(f"{path} has {size:,} bytes; at most {limit:,} are read.")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error_text(error)}). Check the path and its permissions."
        ) from error


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return parse_json(read_text(path), path)


def parse_json(text: str | bytes, source: Path | str) -> Any:
    """The value of JSON text; `source` is named where it is none."""
    try:
        value = json.loads(text)
        if _is_deep(value):
            raise RecursionError
        return value
    except RecursionError as error:
        raise InputError(f"{source} is nested too deeply to be read as JSON.") from error
    except ValueError as error:
        raise InputError(f"{source} is not valid JSON ({error}).") from error


def read_yaml(path: Path) -> Any:
    """The value of a YAML file: plain data, of no more entries than such a file honestly has."""
    return parse_yaml(read_text(path, limit=MAX_YAML_BYTES), path)


def parse_yaml(text: str, source: Path | str | Traversable) -> Any:
    """The value of YAML text: plain data within the bounds of `read_yaml`."""
    try:
        _refuse_depth(text, source)
        loader = _PlainLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _refuse_bomb(node, source)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError as error:
        raise InputError(f"{source} is nested too deeply to be read as YAML.") from error
    except (yaml.YAMLError, ValueError, LookupError, OverflowError, TypeError, AttributeError) as error:
        raise InputError(f"{source} is not valid YAML ({error}).") from error


def read_picture(path: Path, mode: str, *, largest: int = MAX_PIXELS) -> Any:
    """The pixels of a PNG, JPEG or TIFF picture in this mode of Pillow's; a larger one is refused before it is decoded."""
    import numpy as np
    from PIL import Image

    if not is_file(path):
        raise InputError(f"{path} does not exist, or is no file.")
    try:
        with warnings.catch_warnings():
            # Pillow warns of what is bounded here.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG", "TIFF")) as image:
                width, height = image.size
                if width * height > largest:
                    raise InputError(
                        f"{path} has {width} x {height} pixels; at most {largest:,} are read. Save it smaller."
                    )
                return np.asarray(image.convert(mode))
    except GcemilError:
        raise
    except Exception as error:
        # Damaged pictures make Pillow raise almost anything, SyntaxError and ZeroDivisionError among them.
        raise InputError(
            f"{path} cannot be read as a picture ({error_text(error)}). Save it as PNG again."
        ) from error


def read_record(
    path: Path, shape: type[T], *, error: type[GcemilError] = InputError, remedy: str = "Make it again."
) -> T:
    """A JSON file as a value of this shape (a dataclass, a pydantic model, a type); anything else is the error."""
    try:
        value = read_json(path)
    except InputError as fault:
        raise error(f"{fault} {remedy}") from fault
    return checked(value, shape, path, error=error, remedy=remedy)


def checked(
    value: Any,
    shape: type[T],
    source: Path | str,
    *,
    error: type[GcemilError] = InputError,
    remedy: str = "Make it again.",
    finite: bool = True,
) -> T:
    """The value in this shape, with finite numbers unless told otherwise, or the error that names what is wrong."""
    try:
        if finite:
            refuse_wild_numbers(value)
        adapter = _adapter(cast(Hashable, shape))
        found: T = adapter.validate_python(value)
        if finite:
            # Once more: a text such as 'inf' has become a number where the shape has one.
            refuse_wild_numbers(adapter.dump_python(found, warnings=False))
        return found
    except ValidationError as fault:
        raise error(f"{source} is not what it should be: {readable(fault)}. {remedy}") from fault
    except (ValueError, RecursionError) as fault:
        raise error(f"{source} is not what it should be ({fault}). {remedy}") from fault


def refuse_wild_numbers(value: Any) -> Any:
    """The value, unless a number in it is not finite or needs more than 64 bits: no file of gcemil has such."""
    if isinstance(value, dict):
        for item in value.values():
            refuse_wild_numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            refuse_wild_numbers(item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    elif isinstance(value, float) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"{value:g} is larger than anything that is measured")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number needs more than 64 bits")
    return value


def readable(error: Exception) -> str:
    """What is wrong with a record: where, what was given, what is accepted."""
    if not isinstance(error, ValidationError):
        return str(error)
    faults = error.errors(include_url=False)
    lines = [
        f"{'.'.join(map(str, fault['loc'])) or 'content'}: {fault['msg']} (got {_shorten(fault['input'])})"
        for fault in faults[:SHOWN_FAULTS]
    ]
    return "; ".join(lines) + (
        f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
    )


# One process at a time


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


# Private


@cache
def _real_locks_only() -> dict[str, Any]:
    """Newer filelocks replace a lock that the file system does not have by a file, which a kill leaves behind."""
    name = "fallback_to_soft"
    return {name: False} if name in inspect.signature(FileLock).parameters else {}


_YAML = "tag:yaml.org,2002:"
_NO_PLAIN_TAGS = {f"{_YAML}timestamp", f"{_YAML}value"}


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
        if not keep(path.name) or target.exists() or path.name.endswith(f".{PARTIAL}"):
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
    return bool(rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0)


def _temporary_name(path: Path, ending: str = PARTIAL) -> Path:
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


def _left_by_the_dead(path: Path, ending: str = PARTIAL) -> bool:
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


# libyaml's loader is ten times as fast; every wheel of PyYAML has it.
_FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _PlainLoader(_FastLoader):  # type: ignore[misc, valid-type]
    """What JSON can say, and no more: dates stay text; sets and binary data do not exist."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NO_PLAIN_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_YAML) in {"null", "bool", "int", "float", "str", "seq", "map"}
    }


@cache
def _adapter(shape: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, shape))


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _is_deep(value: Any) -> bool:
    """Whether lists and objects stand inside each other more than MAX_DEPTH times; whoever walks them then need not ask."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            for inner in (
                outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
            )
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _refuse_depth(text: str, source: Path | str | Traversable) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_FastLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InputError(f"{source} is nested more than {MAX_DEPTH} deep, which no file of gcemil is.")


def _refuse_bomb(root: yaml.Node, source: Path | str | Traversable) -> None:
    """Aliases are read, but a few bytes of them can stand for more entries than any memory holds."""
    sizes: dict[yaml.Node, int | None] = {}

    def size_of(node: yaml.Node) -> int:
        if node in sizes:
            known = sizes[node]
            if known is None:
                raise InputError(f"{source}: a YAML alias contains itself. Write the value out.")
            return known
        sizes[node] = None
        children: Iterable[yaml.Node] = ()
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = (part for pair in node.value for part in pair)
        total = 1 + sum(map(size_of, children))
        sizes[node] = total
        return total

    if (total := size_of(root)) > MAX_YAML_NODES:
        raise InputError(
            f"{source} stands for {total:,} entries once its YAML aliases are written out; at most {MAX_YAML_NODES:,} are read."
        )


def _holder(path: Path) -> str:
    try:
        machine, pid = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return f" (process {pid} on {machine})"
