"""Files on disk: reading with limits of size, atomic writing, and one writer per folder.

A file that is missing, special, too large, of another encoding or of another shape raises one sentence that names it.
YAML is read as plain data, as JSON would hold it: no dates, sets or objects.

Everything gcemil writes goes through `atomic_write` or `atomic_folder`: the content is made beside its target under a
unique hidden name, flushed to the disk, and renamed. A kill at any moment leaves the old content or the new one.
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
import warnings
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
from gcemil.wording import readable

T = TypeVar("T")
MAX_TEXT_BYTES = 256 * 2**20
"""Larger than any table or record; larger files are refused before they are read."""
MAX_PIXELS = 64_000_000
"""Largest mask or thumbnail: 8,000 x 8,000."""
MAX_YAML_BYTES = 2 * 2**20
LARGEST_NUMBER = 1e150
"""The square of a larger number is infinite."""


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


def refuse_special(path: Path) -> None:
    """Raise an InputError for a folder, pipe or device, which cannot be read as a file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file, so it is not read.")


def read_text(path: Path, *, limit: int = MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 file of at most `limit` bytes."""
    content = read_bytes(path, limit=limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start}: {error.reason}). Save it again as UTF-8."
        ) from error


def read_bytes(path: Path, *, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes."""
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
    """Read a JSON file."""
    return parse_json(read_text(path), path)


def parse_json(text: str | bytes, source: Path | str) -> Any:
    """Parse JSON text; `source` is named in errors."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError(f"{source} is nested too deeply to be read as JSON.") from error
    except ValueError as error:
        raise InputError(f"{source} is not valid JSON ({error}).") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file of at most MAX_YAML_BYTES as plain data."""
    return parse_yaml(read_text(path, limit=MAX_YAML_BYTES), path)


def parse_yaml(text: str, source: Path | str) -> Any:
    """Parse YAML text as plain data; `source` is named in errors."""
    try:
        return _PlainLoader(text).get_single_data()
    except RecursionError as error:
        raise InputError(f"{source} is nested too deeply to be read as YAML.") from error
    except (yaml.YAMLError, ValueError, LookupError, OverflowError, TypeError, AttributeError) as error:
        raise InputError(f"{source} is not valid YAML ({error}).") from error


def read_picture(path: Path, mode: str) -> Any:
    """Pixels of a PNG, JPEG or TIFF picture, converted to a mode of Pillow; at most MAX_PIXELS are decoded."""
    import numpy as np
    from PIL import Image

    if not is_file(path):
        raise InputError(f"{path} does not exist, or is not a file.")
    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes that are checked here.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG", "TIFF")) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise InputError(
                        f"{path} has {width} x {height} pixels; at most {MAX_PIXELS:,} are read. Save it smaller."
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
        raise error(f"{source} is not what it should be: {readable(fault, shape)}. {remedy}") from fault
    except (ValueError, ArithmeticError, RecursionError) as fault:
        raise error(f"{source} is not what it should be ({fault}). {remedy}") from fault


def check_finite_numbers(value: Any, where: str = "") -> Any:
    """Return the value, or raise a ValueError for a number in it that is not finite or needs more than 64 bits."""
    if isinstance(value, dict):
        for name, item in value.items():
            check_finite_numbers(item, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            check_finite_numbers(item, where)
    else:
        problem = ""
        if isinstance(value, float) and not math.isfinite(value):
            problem = f"{value} is not a finite number"
        elif isinstance(value, float) and abs(value) > LARGEST_NUMBER:
            problem = f"{value:g} is larger than anything that is measured"
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            problem = "a whole number needs more than 64 bits"
        if problem:
            raise ValueError(f"{where}: {problem}" if where else problem)
    return value


_YAML = "tag:yaml.org,2002:"
_NO_PLAIN_TAGS = {f"{_YAML}timestamp", f"{_YAML}value"}


# libyaml's loader is ten times as fast; every wheel of PyYAML has it.
_FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _PlainLoader(_FastLoader):  # type: ignore[misc, valid-type]
    """Plain data: dates stay text; sets, binary data and objects are refused."""

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


# Writing


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
