"""Files appear whole or not at all, are read within bounds, and a folder has one writer at a time."""

import multiprocessing
import os
import socket
import subprocess
import sys
import threading

import pytest

from gcemil.errors import BusyError, InputError, StoreError
from gcemil.files import (
    locked_folder,
    parse_json,
    parse_yaml,
    read_text,
    read_yaml,
    remove_leftovers,
    whole_file,
    whole_folder,
    write_json,
    write_text,
)


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    path = write_text(tmp_path / "table.csv", "old")

    def fail_half_way():
        with whole_file(path) as temporary:
            temporary.write_text("ne")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail_half_way()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.csv"]


def test_a_folder_that_fails_half_way_leaves_nothing(tmp_path):
    def fail_half_way():
        with whole_folder(tmp_path / "splits") as temporary:
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


def test_numbers_that_do_not_exist_are_null(tmp_path):
    path = write_json(tmp_path / "x.json", {"a": float("nan"), "b": [1.0, float("inf")]})
    assert '"a": null' in path.read_text()
    assert "Infinity" not in path.read_text()


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    machine = socket.gethostname()[:40]
    left = tmp_path / "deep" / f".a.h5.{machine}.{dead.stdout.strip()}.00ff00ff.partial"
    left.parent.mkdir()
    left.write_text("")
    mine = tmp_path / f".a.h5.{machine}.{os.getpid()}.00ff00ff.partial"
    mine.write_text("")
    foreign = tmp_path / ".a.h5.partial"
    foreign.write_text("")
    remove_leftovers(tmp_path)
    assert not left.exists()
    assert mine.exists()
    assert foreign.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"caf\xe9", "not UTF-8"), (b"x" * 101, "at most 100")],
)
def test_text_that_cannot_be_read_is_said(tmp_path, content, said):
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_text(path, limit=100)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InputError, match="no regular file"):
        read_text(path)


def test_a_yaml_alias_bomb_is_refused_at_once(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="alias"):
        read_yaml(path)


@pytest.mark.parametrize("text", ["[1", "a: b: c", "[" * 5000, "!!python/object:os.system {}", "x: \x00"])
def test_bad_yaml_is_one_sentence(text):
    with pytest.raises(InputError, match="settings"):
        parse_yaml(text, "settings")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "nope"])
def test_bad_json_is_one_sentence(text):
    with pytest.raises(InputError, match="record"):
        parse_json(text, "record")


def hold(folder, held, release):
    with locked_folder(folder):
        held.set()
        release.wait(30)


def test_a_folder_has_one_writer_at_a_time_and_says_who(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, held, release))
    process.start()
    assert held.wait(60)
    with pytest.raises(BusyError, match=rf"process {process.pid} on"), locked_folder(tmp_path):
        pass
    process.kill()
    process.join()
    with locked_folder(tmp_path):
        pass
