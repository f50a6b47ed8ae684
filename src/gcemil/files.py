"""Files on disk: reading, atomic writing, and one writer per folder.

A file that is missing, special, of another encoding or of another shape raises one sentence that
names it. YAML is read as plain data, as JSON would hold it: no dates, sets or objects.

Everything gcemil writes goes through `atomic_write` or `atomic_folder`: the content is made beside
its target under a unique hidden name, flushed to the disk, and renamed. A kill at any moment leaves
the old content or the new one.
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
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
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
from gcemil.wording import is_there, readable

T = TypeVar("T")
LARGEST_NUMBER = 1e150
"""The square of a larger number is infinite."""
LOCK_NAME = ".gcemil.lock"


def cache_folders() -> list[Path]:
    """Folders for downloaded files, first choice first: GCEMIL_CACHE, here, the checkout, home."""
    named = os.environ.get("GCEMIL_CACHE")
    checkout = Path(__file__).parents[2]
    return [
        *([Path(named)] if named else []),
        Path(".cache"),
        # A checkout of the repository, from wherever the command is run.
        *([checkout / ".cache"] if (checkout / "pyproject.toml").is_file() else []),
        Path.home() / ".cache" / "gcemil",
    ]


def is_file(path: Path) -> bool:
    """True if there is a regular file; False also for invalid names and folders without access."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def require_file(path: Path) -> None:
    """Raise an InputError unless there is a regular file: reading a pipe would never end."""
    if not is_file(path):
        reason = "is not a regular file, so it is not read" if is_there(path) else "does not exist"
        raise InputError(f"{path} {reason}.")


def read_bytes(path: Path) -> bytes:
    """Read a regular file."""
    require_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error_text(error)}). Check its permissions."
        ) from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start}: {error.reason}). Save it again as "
            "UTF-8."
        ) from error


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return parse_json(read_text(path), path)


def parse_json(text: str | bytes, source: Path | str) -> Any:
    """Parse JSON text; `source` is named in errors."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid JSON ({error}).") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file as plain data."""
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, source: Path | str) -> Any:
    """Parse YAML text as plain data; `source` is named in errors."""
    try:
        return _PlainLoader(text).get_single_data()
    except Exception as error:  # malformed numbers and keys raise more than YAMLError
        raise InputError(f"{source} is not valid YAML ({error}).") from error


def read_picture(path: Path, mode: str) -> Any:
    """Pixels of a PNG, JPEG or TIFF picture, converted to a mode of Pillow."""
    import numpy as np
    from PIL import Image

    require_file(path)
    try:
        with Image.open(path, formats=("PNG", "JPEG", "TIFF")) as image:
            return np.asarray(image.convert(mode))
    except Exception as error:
        # Damaged pictures make Pillow raise almost anything, SyntaxError and ZeroDivisionError
        # among them.
        raise InputError(
            f"{path} cannot be read as a picture ({error_text(error)}). Save it as PNG again."
        ) from error


def read_record(
    path: Path,
    shape: type[T],
    *,
    error: type[GcemilError] = InputError,
    remedy: str = "Make it again.",
) -> T:
    """Read a JSON file and validate it as this type (a dataclass, a pydantic model, a builtin)."""
    try:
        value = read_json(path)
    except InputError as fault:
        raise error(f"{fault} {remedy}") from fault
    return validate_as(value, shape, path, error=error, remedy=remedy)


def validate_as(
    value: Any,
    shape: type[T],
    source: Path | str,
    *,
    error: type[GcemilError] = InputError,
    remedy: str = "Make it again.",
    finite: bool = True,
) -> T:
    """Validate a value as this type, with finite numbers unless `finite` is False."""
    try:
        adapter = _adapter(cast(Hashable, shape))
        result: T = adapter.validate_python(value)
        if finite:
            check_finite_numbers(adapter.dump_python(result, warnings=False))
        return result
    except ValidationError as fault:
        raise error(
            f"{source} is not what it should be: {readable(fault, shape)}. {remedy}"
        ) from fault
    except (ValueError, ArithmeticError, RecursionError) as fault:
        raise error(f"{source} is not what it should be ({fault}). {remedy}") from fault


def check_finite_numbers(value: Any, where: str = "") -> Any:
    """Return the value, or raise a ValueError for a number that is not finite or over 64 bits."""
    if isinstance(value, dict):
        for name, item in value.items():
            check_finite_numbers(item, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            check_finite_numbers(item, where)
    elif isinstance(value, int | float):
        limit = 2**63 - 1 if isinstance(value, int) else LARGEST_NUMBER
        if not abs(value) <= limit:
            fault = "is too large" if isinstance(value, int) else "is not a finite number"
            raise ValueError(f"{where or 'a number'} {fault}")
    return value


class _PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Plain data: dates stay text; sets, binary data and objects are refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            resolver for resolver in resolvers if not resolver[0].endswith((":timestamp", ":value"))
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None
        or tag.rpartition(":")[2] in {"null", "bool", "int", "float", "str", "seq", "map"}
    }


@cache
def _adapter(shape: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, shape))


# Writing


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; it is flushed and renamed to the target if the block succeeds."""
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
    """Yield a new folder that replaces the old one; old files stay if `keep` accepts their name."""
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
        shutil.rmtree(aside, ignore_errors=True)


def write_bytes(path: Path, content: bytes | memoryview) -> Path:
    """Write a file atomically and return its path."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> Path:
    """Write readable JSON with sorted keys; numbers that are not finite become null."""
    return write_text(
        path,
        json.dumps(
            without_nan(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False
        )
        + "\n",
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
        # A soft lock, which newer versions fall back to, would outlive a killed process.
        is_new = "fallback_to_soft" in inspect.signature(FileLock).parameters
        options: dict[str, Any] = {"fallback_to_soft": False} if is_new else {}
        lock = FileLock(path, timeout=-1 if wait is True else float(wait), **options)
        try:
            lock.acquire()
        except Timeout as error:
            holder = ""
            with suppress(OSError, ValueError):
                machine, pid = path.read_text(encoding="utf-8").split()
                holder = f" (process {pid} on {machine})"
            raise BusyError(
                f"{what or path} is being written by another process{holder}. "
                "Wait for it to end, or give another folder."
            ) from error
        except NotImplementedError as error:
            raise StoreError(
                f"{path} cannot be locked. Use a folder on a file system with locks."
            ) from error
    try:
        with suppress(OSError):
            path.write_text(f"{socket.gethostname()} {os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


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
        raise StoreError(
            f"{path} cannot be written ({error_text(error)}). {write_remedy(error)}"
        ) from error


@contextmanager
def _new_folder_beside(folder: Path) -> Iterator[Path]:
    """A new folder beside this one, removed at the end unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(folder)
    try:
        temporary.mkdir()
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.partial")


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
