"""How `gcemil` ends when something goes wrong: one sentence with a path and a remedy, an exit code, no traceback."""

import errno
import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from gcemil.cli import doctor, main
from gcemil.errors import InputError, UsageError


@pytest.fixture
def ending(monkeypatch, capsys):
    """Exit code and standard error of a command that meets this exception."""
    monkeypatch.delenv(main.DEBUG, raising=False)

    def end(error, *arguments):
        def fail():
            raise error

        monkeypatch.setattr(doctor, "_check_core", fail)
        monkeypatch.setattr(sys, "argv", ["gcemil", *(arguments or ("doctor",))])
        with pytest.raises(SystemExit) as left:
            main.main()
        return left.value.code, capsys.readouterr().err

    return end


def system(number, *names):
    return OSError(number, os.strerror(number), *names)


FAULTS = {
    "gone": (system(errno.ENOENT, "features/a.h5"), ["features/a.h5 is not there", "put it back"]),
    "read-only": (
        system(errno.EROFS, "runs/one"),
        ["runs/one", "Read-only file system", "Give a folder"],
    ),
    "permission": (
        system(errno.EACCES, b"runs/one"),
        ["runs/one", "Permission denied", "Check its perm"],
    ),
    "no space": (system(errno.ENOSPC, "runs/x"), ["runs/x", "No space left", "Free some space"]),
    "no name": (
        OSError(errno.ENOSPC, "No space left on device"),
        ["A file", "No space left", "Free some space"],
    ),
    "too many files": (system(errno.EMFILE, "a.h5"), ["a.h5", "Too many open files", "ulimit -n"]),
    "disk": (system(errno.EIO, "a.h5"), ["a.h5", "Check the disk"]),
    "weights": (
        SafetensorError("Error while serializing: IoError"),
        ["IoError", "Check free space"],
    ),
    "pool": (
        BrokenProcessPool("A process in the process pool"),
        ["A worker process", "fewer --jobs"],
    ),
    "memory": (MemoryError(), ["Not enough memory", "fewer --jobs"]),
    "array": (
        np._core._exceptions._ArrayMemoryError((2**40,), np.dtype("f8")),
        ["Not enough memory"],
    ),
    "cuda memory": (
        torch.OutOfMemoryError("CUDA out of memory."),
        ["Not enough memory", "--batch-size"],
    ),
    "cuda": (
        AssertionError("Torch not compiled with CUDA enabled"),
        ["CUDA cannot be used", "cpu"],
    ),
    "ours": (
        InputError("labels.csv has no rows. Add some."),
        ["labels.csv has no rows. Add some."],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_the_system_says_is_one_sentence_with_a_remedy(ending, name):
    error, expected = FAULTS[name]
    code, said = ending(error)
    assert code == 1
    assert said.startswith("gcemil: ")
    assert said.count("\n") == 1
    assert all(part in said for part in expected), said


def test_a_mistake_of_ours_is_one_sentence_that_asks_for_a_report(ending):
    code, said = ending(KeyError("tenth"))
    assert code == 1
    assert said == (
        "gcemil: unexpected KeyError: 'tenth'. This is a mistake in gcemil, not yours: run the same command with "
        "--debug and report what it prints.\n"
    )


def test_a_command_that_is_not_understood_exits_with_2(ending):
    assert ending(UsageError("No such thing.")) == (2, "gcemil: No such thing.\n")


@pytest.mark.parametrize("arguments", [("--debug", "doctor"), ("doctor", "--debug")])
def test_debug_shows_the_traceback_before_the_sentence(ending, arguments):
    code, said = ending(system(errno.ENOSPC, "runs/x"), *arguments)
    os.environ.pop(main.DEBUG)
    assert code == 1
    assert said.startswith("Traceback")
    assert "in fail" in said
    assert said.splitlines()[-1].startswith(
        "gcemil: runs/x cannot be read or written (No space left"
    )


def test_stopping_a_command_says_whether_it_goes_on(ending, monkeypatch):
    assert ending(KeyboardInterrupt()) == (130, "\ngcemil: stopped.\n")
    monkeypatch.setattr(main, "RESUMING", {"doctor"})
    said = "\ngcemil: stopped; run the same command again to go on.\n  gcemil doctor\n"
    assert ending(KeyboardInterrupt()) == (130, said)


def command(*arguments):
    return [sys.executable, "-m", "gcemil", *map(str, arguments)]


def test_a_reader_that_leaves_is_no_error():
    # The pipe closes before anything is printed, as with `gcemil --help | true`.
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        command("--version"), stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        ([], 0, "gcemil demo", ""),
        (["anchors"], 2, "", "Missing command. See 'gcemil anchors --help'"),
    ],
)
def test_gcemil_alone_names_the_first_commands(monkeypatch, capsys, arguments, code, out, err):
    monkeypatch.setattr(sys, "argv", ["gcemil", *arguments])
    with pytest.raises(SystemExit) as left:
        main.main()
    printed = capsys.readouterr()
    assert (left.value.code or 0) == code
    assert out in printed.out
    assert err in printed.err if err else printed.err == ""
