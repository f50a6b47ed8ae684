"""Reading of text, JSON, YAML and pictures, with limits on their size.

A file that is missing, special, too large, of another encoding or of another shape raises one sentence that names it.
YAML is read as plain data, as JSON would hold it: no dates, sets or objects.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from gcemil.errors import GcemilError, InputError, error_text
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
    checkout = Path(__file__).parents[3]
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
