"""What is wrong with given values, in plain words.

A message of the command line names the key, the value, what is accepted and, where one is close,
the key that was meant.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel
else:
    # A near name needs no pydantic, which takes most of the time that --help would.
    BaseModel = object

SHOWN_FAULTS = 3
"""Largest number of wrong fields of a record that a message lists."""
SHOWN_NAMES = 40
SHOWN_LINES = 3
"""Largest number of slides that a message lists."""
_SEVERAL_TYPES = {Union, types.UnionType}

_PHRASES = {
    "missing": "is missing",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "path_type": "must be a path",
    "model_type": "must be keys with values",
    "model_attributes_type": "must be keys with values",
    "dataclass_type": "must be keys with values",
    "dict_type": "must be keys with values",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "none_required": "must be empty",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt:g}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
"""Our words for the faults of pydantic."""


def suggest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest: by case, by initials (lr is learning_rate), or by letters.

    Dotted names are compared by their last part too, so that `budget` finds `evidence.budget`.
    """
    names = list(known)
    wanted = name.lower().replace("-", "_")
    last = wanted.rpartition(".")[2]
    for ending in (wanted, last):
        for one in names:
            own = one.lower().rpartition(".")[2]
            if ending in (one.lower(), own) or (len(ending) > 1 and ending == _initials(own)):
                return one
    close = get_close_matches(wanted, [one.lower() for one in names], n=1, cutoff=0.6)
    if not close:
        by_last = {one.lower().rpartition(".")[2]: one for one in reversed(names)}
        close = get_close_matches(last, by_last, n=1, cutoff=0.7)
        return by_last[close[0]] if close else None
    return next(one for one in names if one.lower() == close[0])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' where a known name is close, else nothing."""
    suggestion = suggest_name(name, known)
    return "" if suggestion is None else f" Did you mean {suggestion}?"


def near_path(path: Path) -> str:
    """' Did you mean …?' where the folder has a name close to this one."""
    try:
        names = sorted(
            other.name for other in path.parent.iterdir() if not other.name.startswith(".")
        )
    except (OSError, ValueError):
        return ""
    # All of the name counts: in a setting the part behind the last dot would.
    by_lower = {name.lower(): name for name in reversed(names[:10_000])}
    close = get_close_matches(path.name.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {path.parent / by_lower[close[0]]}?" if close else ""


def shorten_list(names: Sequence[str]) -> str:
    """The names, of more than four the first three and how many there are beside them."""
    shown = shorten_lines(names)
    return ", ".join(shown) if len(shown) == len(names) else f"{', '.join(shown[:-1])} {shown[-1]}"


def shorten_lines(lines: Sequence[str]) -> list[str]:
    """The lines, of more than four the first three and how many there are beside them."""
    return (
        list(lines)
        if len(lines) <= SHOWN_LINES + 1
        else [*lines[:SHOWN_LINES], f"and {len(lines) - SHOWN_LINES} more"]
    )


def is_there(path: Path) -> bool:
    """Whether anything can be seen at this path; a name the system refuses is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def describe_unknown(name: str, known: Iterable[str], what: str = "setting") -> str:
    """One sentence about a key that does not exist, with the closest one and all there are."""
    names = list(known)
    listed = ", ".join(names[:SHOWN_NAMES]) + (" …" if len(names) > SHOWN_NAMES else "")
    return f"there is no {what} '{name}'.{did_you_mean(name, names)} There are: {listed}"


def readable(error: Exception, shape: Any = None) -> str:
    """What is wrong with a record: where, what was given, what is accepted.

    The shape is needed to list the known keys.
    """
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    faults = error.errors(include_url=False)
    lines = [_describe(fault, shape) for fault in faults[:SHOWN_FAULTS]]
    return "; ".join(lines) + (
        f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
    )


def dotted_names(shape: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every key of a settings class, those of its stages with their dots."""
    for name, field in shape.model_fields.items():
        yield f"{above}{name}"
        if (inner := model_within(field.annotation)) is not None:
            yield from dotted_names(inner, f"{above}{name}.")


def model_within(annotation: Any) -> type[BaseModel] | None:
    """The settings class that a type is, or may be; None where it is a plain value."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) not in _SEVERAL_TYPES:
        return None
    return next(
        (model for part in get_args(annotation) if (model := model_within(part)) is not None), None
    )


def _describe(fault: Any, shape: Any) -> str:
    where = ".".join(map(str, fault["loc"])) or "content"
    kind = fault["type"]
    if kind == "extra_forbidden":
        known = _keys_at(shape, fault["loc"][:-1])
        name = str(fault["loc"][-1])
        if not known:
            return f"there is no '{where}' (got {_shorten(fault['input'])})"
        return describe_unknown(name, known, "key")
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":
        message = str(fault["msg"].removeprefix("Value error, "))
        # A check of the whole names the part itself; the value would be all of it.
        return f"{where}: {message} (got {_shorten(fault['input'])})" if fault["loc"] else message
    phrase = _PHRASES[kind].format(**fault.get("ctx", {})) if kind in _PHRASES else fault["msg"]
    return f"{where} {phrase} (got {_shorten(fault['input'])})"


def _keys_at(shape: Any, loc: tuple[Any, ...]) -> list[str]:
    """The keys of the settings class that stands at this place; none where it is not known."""
    model = model_within(shape)
    for step in loc:
        if model is None or step not in model.model_fields:
            return []
        model = model_within(model.model_fields[step].annotation)
    return [] if model is None else list(model.model_fields)


def _initials(name: str) -> str:
    return "".join(part[0] for part in name.split("_") if part)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


# Settings in words


def describe_unknown_setting(path: str, shape: type[BaseModel]) -> str | None:
    """Why there is no setting of this dotted name, with the closest ones; None if there is."""
    known = list(dotted_names(shape))
    if path in known or path.startswith("host.options."):
        return None
    above = path
    while above and not any(name.startswith(f"{above}.") for name in known):
        above = above.rpartition(".")[0]
    depth = above.count(".") + 1 if above else 0
    stage = [name for name in known if name.count(".") == depth and name.startswith(above)]
    return (
        f"There is no setting '{path}'.{did_you_mean(path, [*stage, *known])} There are: "
        f"{', '.join(stage)}. "
        "'gcemil train --print-config' explains all of them."
    )


def comment_settings(settings: BaseModel, depth: int = 0) -> list[str]:
    """One line per setting, its meaning and what it accepts above it; stages are indented."""
    import yaml
    from pydantic import BaseModel

    indent, lines, plain = "  " * depth, [], settings.model_dump(mode="json")
    for name, one in type(settings).model_fields.items():
        value = getattr(settings, name)
        meaning = describe_field(one)
        lines += [f"{indent}# {meaning}"] if meaning else []
        if isinstance(value, BaseModel):
            lines += [f"{indent}{name}:", *comment_settings(value, depth + 1)]
            continue
        # Within a list, because a plain value alone is dumped with an end-of-document mark.
        shown = yaml.safe_dump([plain[name]], default_flow_style=True, width=10_000)
        lines.append(f"{indent}{name}: {shown.strip()[1:-1]}")
    return lines


def describe_field(field: Any) -> str:
    """What a setting means, and what it accepts."""
    parts = [field.annotation, *get_args(field.annotation)]
    accepted = [
        " | ".join(map(str, get_args(part))) for part in parts if get_origin(part) is Literal
    ][:1]
    bounds = [text for one in field.metadata if (text := _describe_bound(one))]
    tail = "; ".join([*accepted, *([" and ".join(bounds)] if bounds else [])])
    meaning = (field.description or "").rstrip()
    return f"{meaning} ({tail})" if tail and meaning else meaning or tail


def _describe_bound(bound: object) -> str:
    for name, text in {
        "ge": "at least",
        "gt": "more than",
        "le": "at most",
        "lt": "less than",
    }.items():
        if (value := getattr(bound, name, None)) is not None:
            return f"{text} {value:,g}" if abs(value) < 1e6 else ""
    return ""
