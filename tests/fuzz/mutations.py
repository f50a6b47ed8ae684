"""Ways in which a file can be wrong: any file, and files of a format from the inside.

A mutation takes a source of randomness and the path of a valid file, and leaves something else in its place. What a
seed does is the same on every machine.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import yaml

Mutation = Callable[[Random, Path], None]

LARGEST_COPY = 2**27
"""A file that was grown takes no room; what is read of it and written elsewhere would fill the disk."""
NAMES = (
    "x[/foo]y", "[bold red]hid[/]", "\x1b[31mred", "../../etc/passwd", "/etc/passwd", "..", ".", "", " ", "a/b", "a\\b", "a\nb", "a\0b",
    "x" * 300, "é" * 150, "\u202egnp", "CON", "-rf", "--help", "{0}", "%s", "'; DROP", "<script>alert(1)</script>", "NaN", "None", "null",
    "true", "0", "1e5", "inf", "slide.h5.h5.svs", "😀", "\ufeff", "_", "$HOME", "*", "?",
)  # fmt: skip
NUMBERS = (
    "0", "-1", "1e308", "-1e308", "1e400", "inf", "-inf", "nan", "NaN", "9" * 25, "9" * 400, "0x10", "1_000", "1e-320", "0.5", "\u0661", "1,5", "2",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2, 10**6, 10**12, 2**63, 10**30, 10**400, 0.0, -0.5, 1e308, float("inf"), float("-inf"), float("nan"), "", "x",
    "1", "abmil", [], {}, [1], [[]], [None], ["x"], {"a": 1}, {"": None}, [[1, 2], [3]], *NAMES,
)  # fmt: skip


# Any file


def flip_bits(random: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        if content:
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def set_bytes(random: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 2, 4, 16))):
        if content:
            content[random.randrange(len(content))] = random.choice(
                (0, 1, 0x7F, 0x80, 0xFF, random.randrange(256))
            )
    path.write_bytes(content)


def flip_early_bits(random: Random, path: Path) -> None:
    """Where formats keep their signatures, sizes and offsets."""
    content = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 2, 4))):
        if content:
            content[random.randrange(min(len(content), 512))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def set_word(random: Random, path: Path) -> None:
    """A number of four or eight bytes at its extremes."""
    content = bytearray(path.read_bytes())
    size = random.choice((4, 8))
    if len(content) > size:
        place = random.randrange(0, len(content) - size)
        value = random.choice(
            (0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2**31, 2**24)
        )
        content[place : place + size] = (value % 2 ** (8 * size)).to_bytes(
            size, random.choice(("little", "big"))
        )
    path.write_bytes(content)


def truncate(random: Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content) + 1)])


def cut_out(random: Random, path: Path) -> None:
    content = path.read_bytes()
    start = random.randrange(len(content) + 1)
    path.write_bytes(content[:start] + content[start + random.choice((1, 7, 64, 1000)) :])


def repeat_part(random: Random, path: Path) -> None:
    content = path.read_bytes()
    start = random.randrange(len(content) + 1)
    part = content[start : start + random.choice((1, 10, 100, 1000))]
    path.write_bytes(content[:start] + part * random.choice((2, 10, 100)) + content[start:])


def insert_rubbish(random: Random, path: Path) -> None:
    content = path.read_bytes()
    place = random.choice((0, len(content), random.randrange(len(content) + 1)))
    path.write_bytes(content[:place] + random.randbytes(random.choice((1, 4, 100))) + content[place:])


def zero_part(random: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    start, size = random.randrange(len(content) + 1), random.choice((1, 16, 512, 4096))
    content[start : start + size] = bytes(len(content[start : start + size]))
    path.write_bytes(content)


def swap_parts(random: Random, path: Path) -> None:
    content = path.read_bytes()
    first, second, third = sorted(random.randrange(len(content) + 1) for _ in range(3))
    path.write_bytes(content[:first] + content[second:third] + content[first:second] + content[third:])


def empty(random: Random, path: Path) -> None:
    path.write_bytes(b"")


def remove(random: Random, path: Path) -> None:
    path.unlink()


def only_rubbish(random: Random, path: Path) -> None:
    path.write_bytes(random.randbytes(random.choice((1, 10, 1000, 10_000))))


def grow_sparse(random: Random, path: Path) -> None:
    """A huge file that takes no room on the disk."""
    os.truncate(path, random.choice((2**28 + 1, 2**33, 2**40)))


def folder_in_place(random: Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_in_place(random: Random, path: Path) -> None:
    path.unlink()
    target = random.choice(
        ("/dev/null", "/dev/zero", "/etc/hostname", "nowhere", path.name, "..", "/proc/self/mem", "/dev/tty")
    )
    path.symlink_to(target)


def pipe_in_place(random: Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def no_permission(random: Random, path: Path) -> None:
    path.chmod(0)


def another_file(random: Random, path: Path) -> None:
    """The content of another file of the same folder."""
    others = sorted(other for other in path.parent.rglob("*") if other.is_file() and other != path)
    if others and (source := random.choice(others)).stat().st_size <= LARGEST_COPY:
        shutil.copyfile(source, path)


ANY: tuple[Mutation, ...] = (
    flip_bits, flip_bits, set_bytes, flip_early_bits, set_word, truncate, truncate, cut_out, repeat_part, insert_rubbish, zero_part,
    swap_parts, empty, remove, only_rubbish, grow_sparse, folder_in_place, link_in_place, pipe_in_place, no_permission, another_file,
)  # fmt: skip


# Text


def another_encoding(random: Random, path: Path) -> None:
    text = path.read_text("utf-8") + random.choice(("", "é", "Größe", "ß"))
    path.write_bytes(
        text.encode(random.choice(("latin-1", "utf-16", "utf-32", "utf-8-sig", "cp037")), "replace")
    )


def insert_text(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    place = random.randrange(len(text) + 1)
    new = random.choice(
        (
            *NAMES,
            "\r",
            "\x0b",
            "\u2028",
            '"',
            "'",
            "[" * 2000,
            "{" * 2000,
            "\t",
            "#",
            "&a *a",
            "---\n",
            "\x85",
            "x" * 200_000,
        )
    )
    path.write_text(text[:place] + new + text[place:], "utf-8", errors="surrogateescape")


def replace_number(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    places = [index for index, char in enumerate(text) if char.isdigit()]
    if places:
        place = random.choice(places)
        path.write_text(text[:place] + random.choice(NUMBERS) + text[place + 1 :], "utf-8")


def drop_line(random: Random, path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    lines.pop(random.randrange(len(lines)))
    path.write_text("\n".join(lines), "utf-8")


def repeat_line(random: Random, path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    place = random.randrange(len(lines))
    path.write_text(
        "\n".join([*lines[:place], *[lines[place]] * random.choice((2, 100)), *lines[place:]]), "utf-8"
    )


def long_text(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    path.write_text(
        text
        + random.choice(("x", "\n", ",", " ", "[", "a: b\n", "a,b,c\n", '"'))
        * random.choice((10_000, 1_000_000)),
        "utf-8",
    )


TEXT: tuple[Mutation, ...] = (
    another_encoding,
    insert_text,
    insert_text,
    replace_number,
    replace_number,
    drop_line,
    repeat_line,
    long_text,
)


# Tables


def change_cell(random: Random, path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    delimiter = "\t" if "\t" in lines[0] else ","
    place = random.randrange(len(lines))
    cells = lines[place].split(delimiter)
    cells[random.randrange(len(cells))] = random.choice((*NAMES, *NUMBERS, "train", "val", "test", "é\t;"))
    lines[place] = delimiter.join(cells)
    path.write_text("\n".join(lines), "utf-8")


def change_header(random: Random, path: Path) -> None:
    head, _, body = path.read_text("utf-8").partition("\n")
    cells = head.split(",")
    change = random.randrange(4)
    place = random.randrange(len(cells))
    if change == 0:
        cells[place] = random.choice(NAMES)
    elif change == 1:
        cells.append(
            random.choice(
                (
                    cells[place],
                    "event",
                    "censorship",
                    "fold_0",
                    "train",
                    "PATIENT",
                    "label",
                    "survival_months",
                )
            )
        )
    elif change == 2:
        cells.pop(place)
    else:
        random.shuffle(cells)
    path.write_text("\n".join([",".join(cells), body]), "utf-8")


def wide_table(random: Random, path: Path) -> None:
    """A small file that is a huge table once its gaps are filled."""
    head, _, body = path.read_text("utf-8").partition("\n")
    more = ",".join(f"c{number}" for number in range(random.choice((1000, 20_000))))
    path.write_text(f"{head},{more}\n{body}" + "\na" * random.choice((0, 100_000)), "utf-8")


TABLE: tuple[Mutation, ...] = (
    *TEXT,
    change_cell,
    change_cell,
    change_cell,
    change_header,
    change_header,
    wide_table,
)


# Trees: JSON and YAML


def places_of(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in entries:
        found.append((value, key))
        places_of(item, found)
    return found


def changed_tree(random: Random, value: Any) -> Any:
    """The tree with one to three wrong entries: other types, missing and unknown keys, wild numbers, depth."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = places_of(value, [])
        if not places:
            return random.choice(VALUES)
        holder, key = random.choice(places)
        change = random.randrange(8)
        if change <= 3:
            holder[key] = random.choice(VALUES)
        elif change == 4:
            del holder[key]
        elif change == 5 and isinstance(holder, dict):
            holder[random.choice((*NAMES, "more"))] = random.choice(VALUES)
        elif change == 6 and isinstance(holder, list):
            times = random.choice((1, 100, 10_000))
            # What is in it would be repeated again by the next change.
            holder.extend(
                [holder[key]] * (min(times, 100) if isinstance(holder[key], dict | list) else times)
            )
        elif change == 7:
            nested: Any = random.choice((1, "x", None))
            for _ in range(random.choice((3, 90, 600))):
                nested = [nested] if random.random() < 0.5 else {"a": nested}
            holder[key] = nested
    return value


def change_json(random: Random, path: Path) -> None:
    path.write_text(dumped(changed_tree(random, json.loads(path.read_text("utf-8")))), "utf-8")


def change_json_line(random: Random, path: Path) -> None:
    lines = path.read_text("utf-8").rstrip("\n").split("\n")
    place = random.randrange(len(lines))
    lines[place] = dumped(changed_tree(random, json.loads(lines[place])))
    path.write_text("\n".join(lines) + "\n", "utf-8")


def another_root(random: Random, path: Path) -> None:
    path.write_text(dumped(random.choice(VALUES)), "utf-8")


def deep_json(random: Random, path: Path) -> None:
    bracket = random.choice(("[", '{"a":'))
    path.write_text(bracket * random.choice((200, 900, 100_000)) + random.choice(("", "1")), "utf-8")


def dumped(value: Any) -> str:
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):
        return "[" * 5000


def change_yaml(random: Random, path: Path) -> None:
    value = changed_tree(random, yaml.safe_load(path.read_text("utf-8")))
    try:
        path.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=random.random() < 0.5), "utf-8")
    except (RecursionError, ValueError, yaml.YAMLError):
        path.write_text("[" * 5000, "utf-8")


def yaml_bomb(random: Random, path: Path) -> None:
    """A few hundred bytes that stand for billions of entries, as a list or as merged maps."""
    text = path.read_text("utf-8")
    depth, width = random.choice(((9, 9), (30, 3), (100, 2)))
    if random.random() < 0.5:
        lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
        lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * width)}]" for k in range(1, depth)]
    else:
        lines = ["a0: &a0 {x: 1}"]
        lines += [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * width)}]}}" for k in range(1, depth)]
    path.write_text(random.choice((text + "\n", "")) + "\n".join(lines) + "\n", "utf-8")


def yaml_tags(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    tag = random.choice(
        ("!!python/object/apply:os.system [echo]", "!!binary aGVsbG8=", "!!set {a, b}", "!!timestamp 2001-01-01", "&a [*a]", "!!float x",
         "!!omap [a: 1]", "2001-01-01", "0o777", "1:30:30", "? [a, b]\n: 1", "~", "!!int 0x", "<<: 3", "=", "&x {<<: *x}", "|\n  a", "1e999")
    )  # fmt: skip
    key = random.choice(
        ("name", "epochs", "cohort", "settings", "provenance", "seed", "classes", "hosts", "x")
    )
    path.write_text(f"{text}\n{key}: {tag}\n" if random.random() < 0.7 else tag, "utf-8")


JSON: tuple[Mutation, ...] = (*TEXT, *[change_json] * 8, another_root, deep_json)
JSON_LINES: tuple[Mutation, ...] = (*TEXT, *[change_json_line] * 6, another_root, deep_json)
YAML: tuple[Mutation, ...] = (*TEXT, *[change_yaml] * 8, yaml_bomb, yaml_tags, yaml_tags, another_root)


# HDF5


def change_dataset(random: Random, path: Path) -> None:
    """Another type, shape, order of bytes, storage or content of one dataset."""
    with h5py.File(path, "r+") as file:
        names = [name for name in file if isinstance(file[name], h5py.Dataset)]
        name = random.choice(names)
        values, attributes = file[name][()], dict(file[name].attrs)
        del file[name]
        made = random.choice(DATASETS)(random, file, name, np.asarray(values))
        if made is not None:
            for key, value in attributes.items():
                made.attrs[key] = value


def _as_type(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    kinds = ("<f2", "<f4", "<f8", ">f4", ">f8", ">i8", "<i4", "u1", "<u8", "?", "<c16", "i1", ">u2", "<f4")
    with np.errstate(all="ignore"):
        numbers = values if values.dtype.kind in "fiub" else np.zeros(values.shape)
        return file.create_dataset(name, data=numbers.astype(random.choice(kinds)))


def _as_text(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    texts = [random.choice(NAMES).replace("\0", "") for _ in range(max(1, len(np.atleast_1d(values))))]
    if random.random() < 0.5:
        kind = h5py.string_dtype(random.choice(("utf-8", "ascii")))
        return file.create_dataset(
            name, data=np.array([text.encode("ascii", "replace").decode() for text in texts], dtype=kind)
        )
    return file.create_dataset(
        name, data=np.array([text.encode("utf-8")[:40] for text in texts], dtype="S40")
    )


def _as_shape(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    flat = values.ravel()
    shapes = (
        (0,),
        (),
        (0, 2),
        (len(flat), 1),
        (1, len(flat)),
        (len(flat),),
        (1, 1, len(flat)),
        (0, 0),
        (len(flat), 1, 1),
    )
    shape = random.choice((*shapes, values.T.shape))
    return file.create_dataset(name, shape, values.dtype, data=np.resize(flat, shape) if len(flat) else None)


def _fewer_rows(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    rows = np.atleast_1d(values)
    return file.create_dataset(name, data=rows[: random.randrange(len(rows) + 1)])


def _wild_values(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    wild = np.array(values, dtype=values.dtype if values.dtype.kind in "fiu" else np.float32)
    if wild.size:
        extremes = (
            (np.nan, np.inf, -np.inf, 1e30, -1, 0, 65504)
            if wild.dtype.kind == "f"
            else (np.iinfo(wild.dtype).min, np.iinfo(wild.dtype).max, 0, 1, 127)
        )
        count = random.choice((1, 1, wild.size))
        places = random.sample(range(wild.size), count)
        with np.errstate(all="ignore"):
            wild.reshape(-1)[places] = random.choice(extremes)
    return file.create_dataset(name, data=wild)


def _bomb(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    """Gigabytes of zeros in a file of kilobytes: compressed, never written, or promised."""
    rows = random.choice((10**7, 10**9, 10**12, 2**40))
    width = values.shape[1] if values.ndim == 2 else 1
    shape = (rows, width) if values.ndim == 2 else (rows,)
    how = random.randrange(3)
    dtype = values.dtype if values.dtype.kind in "fiu" else np.dtype("f4")
    if how == 0:
        chunk = (4096, width) if values.ndim == 2 else (4096,)
        made = file.create_dataset(name, shape, dtype, chunks=chunk, compression="gzip")
        made[:1] = 0
        return made
    if how == 1:
        return file.create_dataset(name, shape, dtype, fillvalue=1)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    space = h5py.h5s.create_simple(shape)
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(dtype), space, plist))


def _compressed(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    rows = np.atleast_1d(values)
    options: dict[str, Any] = random.choice(
        (
            {"compression": "gzip"},
            {"compression": "lzf"},
            {"shuffle": True, "compression": "gzip"},
            {"fletcher32": True},
            {},
        )
    )
    chunks = tuple(max(1, min(size, random.choice((1, 3, 7)))) for size in rows.shape)
    return file.create_dataset(name, data=rows, chunks=chunks, **options)


def _group(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    return file.create_group(name)


def _link(random: Random, file: h5py.File, name: str, values: np.ndarray) -> None:
    others = list(file)
    file[name] = random.choice(
        (
            h5py.SoftLink("/nowhere"),
            h5py.SoftLink(f"/{name}"),
            h5py.SoftLink(f"/{others[0]}" if others else "/"),
            h5py.ExternalLink("/etc/passwd", "/features"),
            h5py.ExternalLink("other.h5", f"/{name}"),
            h5py.ExternalLink(Path(file.filename).name, f"/{name}"),
        )
    )


def _external(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    dtype = values.dtype if values.dtype.kind in "fiu" else np.dtype("f4")
    return file.create_dataset(
        name, values.shape or (1,), dtype, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
    )


def _virtual(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    dtype = values.dtype if values.dtype.kind in "fiu" else np.dtype("f4")
    layout = h5py.VirtualLayout(values.shape or (1,), dtype)
    layout[...] = h5py.VirtualSource(
        random.choice((".", "elsewhere.h5", "/dev/zero")), "x", values.shape or (1,)
    )
    return file.create_virtual_dataset(name, layout)


def _odd_type(random: Random, file: h5py.File, name: str, values: np.ndarray) -> Any:
    length = max(1, len(np.atleast_1d(values)))
    choice = random.randrange(6)
    if choice == 0:
        return file.create_dataset(name, data=np.zeros(length, dtype=[("a", "f4"), ("b", "i8")]))
    if choice == 1:
        return file.create_dataset(name, (length,), h5py.vlen_dtype(np.float32))
    if choice == 2:
        return file.create_dataset(name, (length,), h5py.enum_dtype({"A": 0, "B": 1}))
    if choice == 3:
        return file.create_dataset(name, (length,), h5py.ref_dtype)
    if choice == 4:
        return file.create_dataset(name, data=h5py.Empty("f4"))
    return file.create_dataset(name, (length,), np.dtype(("f4", (3, 2))))


def _gone(random: Random, file: h5py.File, name: str, values: np.ndarray) -> None:
    return None


DATASETS: tuple[Callable[[Random, h5py.File, str, np.ndarray], Any], ...] = (
    _as_type, _as_type, _as_text, _as_shape, _as_shape, _fewer_rows, _wild_values, _wild_values, _wild_values, _bomb, _bomb, _compressed,
    _group, _link, _external, _virtual, _odd_type, _gone,
)  # fmt: skip


def change_attribute(random: Random, path: Path) -> None:
    """Another value, another type or none of an attribute of the root or of a dataset."""
    with h5py.File(path, "r+") as file:
        holders = [file, *(file[name] for name in file if isinstance(file[name], h5py.Dataset))]
        holder = random.choice([one for one in holders if len(one.attrs)] or holders)
        known = list(holder.attrs)
        name = (
            random.choice(known)
            if known
            else random.choice(("patch_size", "encoder", "tile_size_um", "prompts", "concepts"))
        )
        if random.random() < 0.2 and known:
            del holder.attrs[name]
            return
        value = random.choice(ATTRIBUTES)
        holder.attrs[name] = value() if callable(value) else value


ATTRIBUTES: tuple[Any, ...] = (
    0, -1, 2**62, 1.5, float("nan"), float("inf"), 1e300, "", "x", "None", "x" * 5000, "[bold]", "\x1b[2J", "../x", "{}", "[", '["a"]', "null",
    "[[]]", b"\xff\xfe", True, lambda: np.zeros(0), lambda: np.zeros((2, 2)), lambda: np.array([1, 2]), lambda: h5py.Empty("f4"),
    lambda: np.array(["a", "b"], dtype=h5py.string_dtype()), lambda: np.complex64(1), lambda: np.zeros(1, dtype=[("a", "f4")]), -0.0, 256, 1e-30,
)  # fmt: skip

HDF5: tuple[Mutation, ...] = (*[change_dataset] * 8, *[change_attribute] * 3)


# Other binary formats


def change_safetensors(random: Random, path: Path) -> None:
    """The header: shapes, types and offsets of tensors, and the record that gcemil keeps there."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    kept = next(iter(header.get("__metadata__", {})), None)
    if kept is not None and random.random() < 0.7:
        record = changed_tree(random, json.loads(header["__metadata__"][kept]))
        header["__metadata__"][kept] = dumped(record) if random.random() < 0.9 else random.choice(NAMES)
    else:
        header = changed_tree(random, header)
    text = dumped(header).encode()
    length = len(text) if random.random() < 0.9 else random.choice((0, 2**63, 2**32, len(text) + 8))
    path.write_bytes(length.to_bytes(8, "little") + text + body)


def change_zip(random: Random, path: Path) -> None:
    """One member of an archive: damaged, gone, twice, or unpacking to far more than it is."""
    with zipfile.ZipFile(path) as archive:
        members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    place = random.randrange(len(members))
    name, content = members[place]
    change = random.randrange(6)
    if change == 0:
        del members[place]
    elif change == 1:
        members.append((random.choice(("../../x", "/etc/x", name, "x" * 300)), content))
    elif change == 2:
        padding = random.choice((b"\0", b" ", b"<a/>", b"<c r='A1'><v>1</v></c>"))
        members[place] = name, content + padding * (random.choice((10**6, 6 * 10**7)) // len(padding))
    else:
        beside = path.with_name(f"{path.name}.member")
        beside.write_bytes(content)
        random.choice(ANY[:11])(random, beside)
        members[place] = name, beside.read_bytes()
        beside.unlink()
    compression = zipfile.ZIP_DEFLATED if path.suffix != ".pt" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
        for name, content in members:
            if not (name == members[place][0] and archive.NameToInfo.get(name)):
                archive.writestr(name, content)


def change_sheet(random: Random, path: Path) -> None:
    """Numbers and names inside the XML of a workbook."""
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = random.choice(sorted(members))
    beside = path.with_name(f"{path.name}.xml")
    beside.write_bytes(members[name])
    random.choice((insert_text, replace_number, change_xml, change_xml))(random, beside)
    members[name] = beside.read_bytes()
    beside.unlink()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def change_xml(random: Random, path: Path) -> None:
    text = path.read_text("utf-8")
    change = random.randrange(6)
    if change == 0:
        bomb = '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb">' + "".join(
            f'<!ENTITY {chr(99 + k)} "{f"&{chr(98 + k)};" * 10}">' for k in range(9)
        )
        text = f"{bomb}]>{text}"
    elif change == 1:
        text = text.replace(">", f">{'<a>' * random.choice((10, 50_000))}", 1)
    elif change == 2:
        quoted = [index for index, char in enumerate(text) if char == '"']
        if len(quoted) > 1:
            place = random.randrange(len(quoted) - 1)
            text = text[: quoted[place] + 1] + random.choice((*NAMES, *NUMBERS)) + text[quoted[place + 1] :]
    elif change == 3:
        start = random.randrange(len(text) + 1)
        text = (
            text[:start]
            + random.choice(("</a>", "<a", "&x;", "]]>", "<!--", "<?x?>", "&#0;", "&#x110000;"))
            + text[start:]
        )
    elif change == 4:
        text = text.replace(
            'encoding="utf-8"', f'encoding="{random.choice(("utf-16", "latin-1", "x", "utf-7"))}"'
        )
    else:
        lines = text.split("\n")
        random.shuffle(lines)
        text = "\n".join(lines)
    path.write_text(text, "utf-8")


def change_npy(random: Random, path: Path) -> None:
    """Another type, shape or header of a NumPy array."""
    values = np.load(path)
    change = random.randrange(5)
    if change == 0:
        with np.errstate(all="ignore"):
            values = values.astype(random.choice(("f2", "f8", ">f4", "c8", "?", "i1", "U5", "S3")))
    elif change == 1:
        values = np.resize(values, random.choice(((0,), (), (0, 2), (1, 1, 3), (values.size,), (5, 1))))
    elif change == 2:
        values = np.asarray(values, dtype=np.float64)
        values.reshape(-1)[: random.choice((1, values.size))] = random.choice(
            (np.nan, np.inf, -np.inf, 1e300, -1)
        )
    elif change == 3:
        values = np.zeros(3, dtype=[("a", "f4"), ("b", "i8")])
    buffer = BytesIO()
    np.save(buffer, values)
    content = buffer.getvalue()
    if change == 4:
        shape = random.choice(
            (
                "(999999999999, 8)",
                "(-1, 8)",
                "(3,)",
                "()",
                "(1e3,)",
                "'x'",
                "(" * 50,
                "__import__('os')",
                "(2**64, 1)",
            )
        )
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content[128:]
    path.write_bytes(content)


def change_png(random: Random, path: Path) -> None:
    """Another size, depth or kind of a picture, with a checksum that is right."""
    content = bytearray(path.read_bytes())
    if random.random() < 0.3:
        from PIL import Image

        side = random.choice(((1, 1), (1, 20_000), (300, 200), (9000, 9000), (12_000, 12_000)))
        # To make the large ones in color takes longer than to refuse them.
        modes = ("1",) if min(side) > 1000 else ("1", "L", "P", "RGB", "RGBA", "I;16", "LA")
        Image.new(random.choice(modes), side).save(path, "PNG", compress_level=1)
        return
    sizes = (0, 1, 2**31 - 1, 2**31, 50_000, 10)
    if random.random() < 0.7:
        content[16:24] = struct.pack(">II", random.choice(sizes), random.choice(sizes))
    else:
        content[24 + random.randrange(5)] = random.randrange(256)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def change_tiff(random: Random, path: Path) -> None:
    """The value, type or count of a tag in the first directories."""
    content = bytearray(path.read_bytes())
    big = content[2:4] == b"+\0"
    head, entry, count_size = (8, 20, 8) if big else (4, 12, 2)
    offset = int.from_bytes(content[head : head + (8 if big else 4)], "little")
    for _ in range(random.choice((1, 1, 2))):
        count = int.from_bytes(content[offset : offset + count_size], "little")
        if not 0 < count < 200:
            break
        place = offset + count_size + entry * random.randrange(count)
        field, size = random.choice(
            ((0, 2), (2, 2), (4, 8 if big else 4), (12 if big else 8, 8 if big else 4))
        )
        value = random.choice(
            (0, 1, 2, 3, 7, 255, 256, 2**16 - 1, 2**31, 2**32 - 1, random.randrange(70_000))
        ) % 2 ** (8 * size)
        content[place + field : place + field + size] = value.to_bytes(size, "little")
        after = offset + count_size + entry * count
        if random.random() < 0.5:
            following = int.from_bytes(content[after : after + (8 if big else 4)], "little")
            offset = following if 0 < following < len(content) - 8 else offset
        elif random.random() < 0.1:
            # A directory that is its own successor.
            content[after : after + (8 if big else 4)] = offset.to_bytes(8 if big else 4, "little")
    path.write_bytes(content)


BY_SUFFIX: dict[str, tuple[Mutation, ...]] = {
    ".csv": TABLE, ".tsv": TABLE, ".txt": TEXT, ".json": JSON, ".geojson": JSON, ".jsonl": JSON_LINES, ".yaml": YAML, ".h5": HDF5,
    ".safetensors": (change_safetensors,), ".xlsx": (change_zip, change_zip, change_sheet, change_sheet), ".pt": (change_zip,),
    ".whl": (change_zip,), ".xml": (*TEXT, *[change_xml] * 6), ".npy": (change_npy,), ".png": (change_png,), ".tif": (change_tiff,),
    ".svs": (change_tiff,),
}  # fmt: skip


def mutate(random: Random, paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Damage one or two of the files; which, and what was done to them in words."""
    damaged: dict[Path, None] = {}
    done = []
    for _ in range(random.choice((1, 1, 1, 1, 2))):
        path = random.choice(paths)
        # What is damaged already can crash or choke whoever opens it by its format.
        inside = () if path in damaged else BY_SUFFIX.get(path.suffix, ())
        damaged[path] = None
        if not path.is_file() or path.is_symlink() or path.stat().st_size > LARGEST_COPY:
            continue
        mutation = random.choice(inside) if inside and random.random() < 0.65 else random.choice(ANY)
        try:
            mutation(random, path)
            done.append(f"{mutation.__name__} {path.name}")
        except Exception as error:
            # The first mutation has left nothing that this one understands.
            done.append(f"{mutation.__name__} {path.name} ({type(error).__name__})")
    return list(damaged), done
