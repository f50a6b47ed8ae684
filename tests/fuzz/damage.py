"""Ordinary damage: cut files, other types, shapes and encodings, missing columns, odd ids, numbers out of range.

A damage takes a source of randomness and the path of a valid file and changes the file in place. A seed does the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import yaml

Damage = Callable[[Random, Path], None]

NAMES = (
    "x[/foo]y", "../../etc/passwd", "..", "", " ", "a/b", "a\nb", "x" * 300, "é" * 150, "CON", "--help", "{0}", "<script>", "NaN", "None", "true",
    "0", "1e5", "inf", "slide.h5.svs", "\ufeff", "*",
)  # fmt: skip
NUMBERS = ("0", "-1", "1e308", "1e400", "inf", "nan", "9" * 25, "0x10", "1_000", "0.5", "1,5", "2")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2, 10**6, 2**63, 10**30, -0.5, 1e308, float("inf"), float("nan"), "x", "1", "abmil", [], {}, [1], [[]], [None], ["x"],
    {"a": 1}, {"": None}, *NAMES,
)  # fmt: skip


# Any file


def truncate(random: Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content) + 1)])


def empty(random: Random, path: Path) -> None:
    path.write_bytes(b"")


def remove(random: Random, path: Path) -> None:
    path.unlink()


def replace_by_noise(random: Random, path: Path) -> None:
    path.write_bytes(random.randbytes(random.choice((1, 10, 1000))))


def replace_by_folder(random: Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


ANY: tuple[Damage, ...] = (truncate, truncate, empty, remove, replace_by_noise, replace_by_folder)


# Text and tables


def change_encoding(random: Random, path: Path) -> None:
    text = path.read_text("utf-8") + random.choice(("", "é", "Größe"))
    path.write_bytes(text.encode(random.choice(("latin-1", "utf-16", "utf-8-sig")), "replace"))


def insert_text(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    place = random.randrange(len(text) + 1)
    new = random.choice((*NAMES, "\r", '"', "'", "\t", "#", "---\n", "[", "{", "\0", "x" * 10_000))
    path.write_text(text[:place] + new + text[place:], "utf-8")


def replace_number(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    if places := [index for index, char in enumerate(text) if char.isdigit()]:
        place = random.choice(places)
        path.write_text(text[:place] + random.choice(NUMBERS) + text[place + 1 :], "utf-8")


def drop_or_repeat_line(random: Random, path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    place = random.randrange(len(lines))
    lines[place : place + 1] = [lines[place]] * random.choice((0, 2, 100))
    path.write_text("\n".join(lines), "utf-8")


def change_cell(random: Random, path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    delimiter = "\t" if "\t" in lines[0] else ","
    place = random.randrange(len(lines))
    cells = lines[place].split(delimiter)
    cells[random.randrange(len(cells))] = random.choice((*NAMES, *NUMBERS, "train", "val", "test"))
    lines[place] = delimiter.join(cells)
    path.write_text("\n".join(lines), "utf-8")


TEXT: tuple[Damage, ...] = (change_encoding, insert_text, replace_number, drop_or_repeat_line)
TABLE: tuple[Damage, ...] = (*TEXT, change_cell, change_cell, change_cell)


# JSON and YAML


def change_tree(random: Random, value: Any) -> Any:
    """The tree with one entry of another type, missing, unknown or repeated."""
    places: list[tuple[Any, Any]] = []

    def visit(holder: Any) -> None:
        entries = (
            holder.items()
            if isinstance(holder, dict)
            else enumerate(holder if isinstance(holder, list) else ())
        )
        for key, item in entries:
            places.append((holder, key))
            visit(item)

    visit(value)
    if not places or random.random() < 0.05:
        return random.choice(VALUES)
    holder, key = random.choice(places)
    change = random.randrange(6)
    if change == 4:
        del holder[key]
    elif change == 5 and isinstance(holder, dict):
        holder[random.choice((*NAMES, "more"))] = random.choice(VALUES)
    elif change == 5:
        holder.extend([holder[key]] * 100)
    else:
        holder[key] = random.choice(VALUES)
    return value


def change_json(random: Random, path: Path) -> None:
    path.write_text(json.dumps(change_tree(random, json.loads(path.read_text("utf-8")))), "utf-8")


def change_json_line(random: Random, path: Path) -> None:
    lines = path.read_text("utf-8").rstrip("\n").split("\n")
    place = random.randrange(len(lines))
    lines[place] = json.dumps(change_tree(random, json.loads(lines[place])))
    path.write_text("\n".join(lines) + "\n", "utf-8")


def change_yaml(random: Random, path: Path) -> None:
    value = change_tree(random, yaml.safe_load(path.read_text("utf-8")))
    path.write_text(yaml.safe_dump(value, sort_keys=False), "utf-8")


# Arrays


def change_array(random: Random, values: np.ndarray) -> Any:
    """The array with another type, another shape, fewer rows, or values that no measurement gives."""
    change = random.randrange(5)
    if change == 0:
        with np.errstate(all="ignore"):
            return values.astype(
                random.choice(("f2", "f8", ">f4", "c8", "?", "i1", "i8", "u1", "S3"))
            )
    if change == 1:
        shape = random.choice(((0,), (0, 2), (1, 1, 3), (values.size,), (5, 1), (*values.shape, 1)))
        return np.resize(values, shape)
    if change == 2:
        return (
            values[: random.randrange(max(1, len(np.atleast_1d(values))))]
            if values.ndim
            else values
        )
    if change == 3:
        return np.zeros(3, dtype=[("a", "f4"), ("b", "i8")])
    wild = values.astype(np.float64)
    wild.reshape(-1)[: random.choice((1, max(1, wild.size)))] = random.choice(
        (np.nan, np.inf, 1e300, -1)
    )
    return wild


def change_npy(random: Random, path: Path) -> None:
    np.save(path, change_array(random, np.load(path)))


def change_hdf5(random: Random, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        name = random.choice([name for name in file if isinstance(file[name], h5py.Dataset)])
        attributes = dict(file[name].attrs)
        if random.random() < 0.3:
            holder = random.choice((file, file[name]))
            key = random.choice([*holder.attrs, "patch_size_level0", "encoder"])
            holder.attrs[key] = random.choice(
                (0, -1, 1.5, float("nan"), "", "x", "[", np.zeros(0), np.zeros((2, 2)))
            )
            return
        values = file[name][()]
        del file[name]
        change = random.random()
        if change < 0.1:
            return
        if change < 0.2:
            file.create_group(name)
            return
        is_numeric = isinstance(values, np.ndarray) and values.dtype.kind in "fiub"
        made = file.create_dataset(
            name, data=change_array(random, values) if is_numeric else np.zeros(3)
        )
        made.attrs.update(attributes)


BY_SUFFIX: dict[str, tuple[Damage, ...]] = {
    ".csv": TABLE, ".tsv": TABLE, ".txt": TEXT, ".xml": TEXT, ".json": (*TEXT, *[change_json] * 6), ".geojson": (*TEXT, *[change_json] * 6),
    ".jsonl": (*TEXT, *[change_json_line] * 6), ".yaml": (*TEXT, *[change_yaml] * 6), ".h5": (change_hdf5,), ".npy": (change_npy,),
}  # fmt: skip


def damage_file(random: Random, path: Path) -> str:
    """Damage a file in one way that fits its format, or in a way that any file can be damaged; returns its name."""
    inside = BY_SUFFIX.get(path.suffix, ())
    damage = random.choice(inside) if inside and random.random() < 0.7 else random.choice(ANY)
    damage(random, path)
    return damage.__name__
