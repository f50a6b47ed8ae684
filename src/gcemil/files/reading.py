"""Files are read within bounds: regular ones, of a size people keep, holding plain data of the shape that was asked for.

What is missing, special, too large, of another encoding, nested too deeply or not of its shape is one sentence that names the
file. YAML is JSON in another hand: no dates, sets or objects, and no alias that stands for more than memory holds.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Hashable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from gcemil.errors import GcemilError, InputError, error_text
from gcemil.wording import readable

T = TypeVar("T")
MAX_TEXT_BYTES = 256 * 2**20
"""More than any table, record or settings file that people keep; a larger one is refused before it is read."""
MAX_PIXELS = 64_000_000
"""Of a mask or thumbnail: 8,000 x 8,000, far more than either needs."""
MAX_YAML_BYTES = 2 * 2**20
MAX_YAML_NODES = 500_000
MAX_DEPTH = 100
LARGEST_NUMBER = 1e150
"""The squares of larger ones are infinite, so that not even their spread can be told."""


def cache_folders() -> list[Path]:
    """Where files that are fetched once may lie, the first choice first: GCEMIL_CACHE, here, beside the code, at home."""
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


def parse_yaml(text: str, source: Path | str) -> Any:
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


def read_picture(path: Path, mode: str) -> Any:
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
        raise error(f"{source} is not what it should be: {readable(fault, shape)}. {remedy}") from fault
    except (ValueError, RecursionError) as fault:
        raise error(f"{source} is not what it should be ({fault}). {remedy}") from fault


def refuse_wild_numbers(value: Any, where: str = "") -> Any:
    """The value, unless a number in it is not finite or needs more than 64 bits: no file of gcemil has such."""
    if isinstance(value, dict):
        for name, item in value.items():
            # Cut, because names of any length stand above any number of others.
            refuse_wild_numbers(item, (f"{where}.{name}" if where else str(name))[:200])
    elif isinstance(value, list | tuple):
        for item in value:
            refuse_wild_numbers(item, where)
    elif what := _describe_wild_number(value):
        raise ValueError(f"{where}: {what}" if where else what)
    return value


def _describe_wild_number(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    if isinstance(value, float) and abs(value) > LARGEST_NUMBER:
        return f"{value:g} is larger than anything that is measured"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number needs more than 64 bits"
    return ""


_YAML = "tag:yaml.org,2002:"
_NO_PLAIN_TAGS = {f"{_YAML}timestamp", f"{_YAML}value"}


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


def _refuse_depth(text: str, source: Path | str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_FastLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InputError(f"{source} is nested more than {MAX_DEPTH} deep, which no file of gcemil is.")


def _refuse_bomb(root: yaml.Node, source: Path | str) -> None:
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
