"""Files appear whole or not at all, are read within bounds, and a folder has one writer at a time."""

import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from gcemil.errors import BusyError, InputError, RunError, StoreError
from gcemil.files import (
    atomic_folder,
    atomic_write,
    cache_folders,
    lock_folder,
    parse_json,
    parse_yaml,
    read_picture,
    read_record,
    read_text,
    replace_folder,
    validate_as,
    write_json,
    write_text,
)


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    path = write_text(tmp_path / "table.csv", "old")

    def fail_half_way():
        with atomic_write(path) as temporary:
            temporary.write_text("ne")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail_half_way()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.csv"]


def test_a_folder_that_fails_half_way_leaves_nothing(tmp_path):
    def fail_half_way():
        with atomic_folder(tmp_path / "splits") as temporary:
            (temporary / "fold_0.csv").write_text("x")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail_half_way()
    assert not list(tmp_path.iterdir())


def test_many_writers_of_one_file_never_meet(tmp_path):
    path = tmp_path / "summary.json"
    failures = []

    def write_often(value):
        try:
            for _ in range(50):
                write_json(path, {"value": value})
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=write_often, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_a_file_in_the_way_of_a_folder_is_one_sentence(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StoreError, match="below.txt cannot be written .* stands in its place"):
        write_text(blocker / "below.txt", "x")


def test_text_in_another_encoding_and_a_pipe_are_refused(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="not UTF-8"):
        read_text(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read_text(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_yaml, text) for text in ("[1", "a: b: c", "[" * 5000, "x: \x00")),
        (parse_yaml, "!!python/object:os.system {}"),
        *((parse_yaml, text) for text in ("!!binary aGk=", "!!set {a}", "!!timestamp 2020-01-01")),
        *((parse_json, text) for text in ("{", "[" * 100_000, "nope")),
    ],
)
def test_bad_yaml_and_json_are_one_sentence(parse, text):
    with pytest.raises(InputError, match="settings is not valid"):
        parse(text, "settings")


def test_yaml_is_plain_data_with_aliases():
    assert parse_yaml("2020-01-01", "x") == "2020-01-01"
    merged = parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}", "grid")
    assert merged == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def hold(folder, held, release):
    with lock_folder(folder):
        held.set()
        release.wait(30)


def test_a_folder_has_one_writer_at_a_time_and_says_who(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, held, release))
    process.start()
    assert held.wait(60)
    with pytest.raises(BusyError, match=rf"process {process.pid} on"), lock_folder(tmp_path):
        pass
    process.kill()
    process.join()
    with lock_folder(tmp_path):
        pass


@dataclass(frozen=True)
class Toy:
    name: str
    sizes: tuple[int, ...]


def test_a_record_is_read_in_its_shape_and_written_without_nan(tmp_path):
    path = write_json(tmp_path / "toy.json", {"name": "a", "sizes": [1, 2], "more": float("nan")})
    assert '"more": null' in path.read_text()
    assert read_record(path, Toy) == Toy("a", (1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "a"}', "sizes is missing"),
        ('{"name": 3, "sizes": []}', "name must be text"),
        ('{"name": "a", "sizes": [1e999]}', "must be a finite number"),
        ('{"name": "a", "sizes": [99999999999999999999]}', "is too large"),
        (
            '{"name": "a", "sizes": ["p", "q", "r", "s"]}',
            r"sizes.0 must be a whole number \(got 'p'\); .*; and 1 more",
        ),
        ("[]", "content must be keys with values"),
        ("", "is not valid JSON"),
    ],
)
def test_a_record_of_another_shape_is_named_with_what_is_wrong(tmp_path, text, message):
    path = write_text(tmp_path / "toy.json", text)
    with pytest.raises(RunError, match=rf"toy\.json .*{message}.* Train again\."):
        read_record(path, Toy, error=RunError, remedy="Train again.")


@pytest.mark.parametrize("text", ["inf", "-Infinity", "nan", "1e200"])
def test_a_text_that_becomes_a_wild_number_is_refused(text):
    assert validate_as({"auc": "0.5"}, dict[str, float], "metrics.json") == {
        "auc": pytest.approx(0.5)
    }
    with pytest.raises(
        InputError, match=r"metrics\.json is not what it should be \(.* (finite|larger)"
    ):
        validate_as({"auc": text}, dict[str, float], "metrics.json")


def test_a_damaged_picture_is_named(tmp_path):
    path = tmp_path / "mask.png"
    Image.new("L", (20, 20)).save(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"mask\.png cannot be read as a picture"):
        read_picture(path, "L")


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "splits"
    for name in ("old", "kept", "both"):
        write_text(folder / name, "before")

    def stop_half_way():
        with replace_folder(folder, keep=lambda name: True) as aside:
            write_text(aside / "new", "after")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert {path.name for path in folder.iterdir()} == {"old", "kept", "both"}
    with replace_folder(folder, keep=lambda name: name != "old") as aside:
        write_text(aside / "both", "after")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "kept": "before",
        "both": "after",
    }
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_in_use_is_waited_for_as_long_as_was_said(tmp_path):
    started = time.monotonic()
    with (
        lock_folder(tmp_path),
        pytest.raises(BusyError, match="another process"),
        lock_folder(tmp_path, wait=0.3),
    ):
        pass
    assert time.monotonic() - started >= 0.3


def test_fetched_files_are_looked_for_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GCEMIL_CACHE", str(tmp_path / "named"))
    named, here, *others = cache_folders()
    assert (named, here) == (tmp_path / "named", Path(".cache"))
    # The checkout that the code runs from, and the home of whoever has none.
    assert Path(__file__).parents[2] / ".cache" in others
    assert others[-1] == Path.home() / ".cache" / "gcemil"
    monkeypatch.delenv("GCEMIL_CACHE")
    assert cache_folders() == [here, *others]
