"""The process that looks at untrusted files first: what it refuses, how long it lives, and who may ask it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from gcemil.bags import store, untrusted
from gcemil.errors import StoreError, WorkerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def helper(monkeypatch):
    """One of its own for the test, ended with it."""
    made = untrusted._Helper()
    monkeypatch.setattr(untrusted, "_HELPER", made)
    yield made
    made.stop()


def write_old(path, value=1.0):
    """A file in HDF5's older format, which is always looked at."""
    with h5py.File(path, "w", libver="earliest") as file:
        file["features"] = np.full((4, 2), value, np.float32)
    return path


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid, seconds=20.0):
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_a_file_with_checksums_is_not_looked_at(tmp_path, helper):
    store.write(tmp_path / "a.h5", {"features": np.ones((4, 2), np.float32)})
    store.read(tmp_path / "a.h5", "features")
    assert helper._process is None
    with untrusted.untrusted_files():
        store.read(tmp_path / "a.h5", "features")
    assert helper._process is not None


def test_a_file_is_looked_at_once_until_it_changes(tmp_path, helper):
    path = write_old(tmp_path / "a.h5")
    store.read(path, "features")
    first = helper._process.pid
    helper.stop()
    store.read(path, "features")
    assert helper._process is None
    os.utime(path, ns=(1, 1))
    store.read(path, "features")
    assert helper._process.pid != first


def test_the_helper_outlives_the_thread_that_started_it(tmp_path, helper):
    paths = [write_old(tmp_path / f"{number}.h5") for number in range(3)]
    thread = threading.Thread(target=store.read, args=(paths[0], "features"))
    thread.start()
    thread.join()
    pid = helper._process.pid
    time.sleep(0.2)
    for path in paths[1:]:
        store.read(path, "features")
    assert helper._process.pid == pid


def test_many_threads_ask_one_helper(tmp_path, helper):
    paths = [write_old(tmp_path / f"{number}.h5", number) for number in range(24)]
    bad = tmp_path / "bad.h5"
    bad.write_bytes(b"nothing of the kind")

    def read(number):
        if number % 6 == 5:
            with pytest.raises(StoreError, match=r"bad\.h5 cannot be read as HDF5"):
                store.read(bad, "features")
        return store.read(paths[number], "features")[0, 0]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(24))) == list(range(24))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_helper_that_left_is_replaced_and_no_file_is_blamed(tmp_path, helper, how):
    store.read(write_old(tmp_path / "a.h5"), "features")
    gone = helper._process.pid
    os.kill(gone, how)
    # Also while it is only just leaving, which is what happens when it was idle too long.
    assert store.read(write_old(tmp_path / "b.h5"), "features").shape == (4, 2)
    assert helper._process.pid != gone


def test_an_idle_helper_leaves_and_the_next_question_is_answered(tmp_path, helper, monkeypatch):
    started = subprocess.Popen

    def impatient(command, **options):
        code = "from gcemil.bags import untrusted; untrusted.IDLE_S = 0.05; untrusted._serve()"
        return started([command[0], "-P", "-c", code], **options)

    monkeypatch.setattr(untrusted.subprocess, "Popen", impatient)
    # Some questions come before it leaves, some after, some while it does.
    for number in range(6):
        assert store.read(write_old(tmp_path / f"{number}.h5"), "features").shape == (4, 2)
        time.sleep(0.02 * number)


@pytest.mark.parametrize(
    ("walk", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "a process that tried it ended by signal SIGSEGV"),
        ("os._exit(0)", "a process that tried it ended with exit code 0"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "a process that tried it ended by signal SIGKILL, perhaps for want of memory",
        ),
        ("exec('while True: pass')", "reading its structure does not come to an end"),
        ("exec('raise OSError(\"bad heap\")')", "bad heap"),
        ("bytearray(2**34)", "MemoryError"),
    ],
)
def test_a_file_that_harms_the_helper_is_refused_and_the_next_is_read(
    tmp_path, helper, monkeypatch, walk, message
):
    started = subprocess.Popen

    def harmed(command, **options):
        code = textwrap.dedent(f"""
            import os, signal
            from gcemil.bags import store, untrusted
            usual = store.walk
            store.walk = lambda path: {walk} if path.name == "a.h5" else usual(path)
            untrusted._serve()
        """)
        return started([command[0], "-P", "-c", code], **options)

    monkeypatch.setattr(untrusted.subprocess, "Popen", harmed)
    with pytest.raises(StoreError, match=rf"a\.h5 cannot be read as HDF5 \({message}"):
        untrusted.examine_first(write_old(tmp_path / "a.h5"), seconds=0.2)
    assert store.read(write_old(tmp_path / "b.h5"), "features").shape == (4, 2)


def test_a_helper_that_cannot_start_is_said_so(tmp_path, helper, monkeypatch):
    monkeypatch.setattr(untrusted.sys, "executable", "/bin/false")
    with pytest.raises(WorkerError, match="looks at HDF5 files first ended with exit code 1"):
        store.read(write_old(tmp_path / "a.h5"), "features")


def test_a_fork_has_a_helper_of_its_own(tmp_path, helper):
    store.read(write_old(tmp_path / "a.h5"), "features")
    ours = helper._process.pid
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads
        pid = os.fork()
    if pid == 0:
        try:
            store.read(write_old(tmp_path / "b.h5"), "features")
            os.write(writing, json.dumps(helper._process.pid).encode())
            helper.stop()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert json.load(answer) != ours
    store.read(write_old(tmp_path / "c.h5"), "features")
    assert helper._process.pid == ours


def test_the_helper_goes_when_its_parent_is_killed(tmp_path):
    path = write_old(tmp_path / "a.h5")
    code = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from gcemil.bags import store, untrusted
        store.read(Path(sys.argv[1]), "features")
        print(untrusted._HELPER._process.pid, flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    assert wait_until_gone(pid)


def write_texts(path):
    """A file in the newer format with texts in a heap: an attribute of the root, one of a dataset, and a list."""
    with h5py.File(path, "w", libver="latest") as file:
        file["coords"] = np.arange(6).reshape(3, 2)
        file["prompts"] = np.array(["gland", "necrosis"], dtype=h5py.string_dtype())
        file["coords"].attrs["name"] = "a"
        file.attrs["encoder"] = "toy"
    return path


def empty_heaps(path):
    """Leave the heads of the heaps and nothing in them, as a disk that loses a block does."""
    content = bytearray(path.read_bytes())
    place = content.find(untrusted.HEAP)
    assert place > 0
    while place >= 0:
        end = place + int.from_bytes(content[place + 8 : place + 16], "little")
        content[place + 16 : end] = bytes(end - place - 16)
        place = content.find(untrusted.HEAP, end)
    path.write_bytes(content)
    return path


def read_everything(path):
    return store.attributes(path), store.attributes(path, "coords"), store.read_texts(path, "prompts")


def test_texts_in_sound_heaps_are_read_without_a_helper(tmp_path, helper):
    path = write_texts(tmp_path / "a.h5")
    assert read_everything(path) == ({"encoder": "toy"}, {"name": "a"}, ["gland", "necrosis"])
    assert helper._process is None


READS = {
    "root": store.attributes,
    "dataset": lambda path: store.attributes(path, "coords"),
    "list": lambda path: store.read_texts(path, "prompts"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_before_texts_are_read_their_heaps_are_looked_at(tmp_path, monkeypatch, read):
    def refuse(path, occupied):
        raise StoreError(f"{path} was looked at")

    path = write_texts(tmp_path / "a.h5")
    assert store.describe(path).keys() == {"coords", "prompts"}
    monkeypatch.setattr(store, "examine_texts", refuse)
    assert store.read(path, "coords").shape == (3, 2)
    with pytest.raises(StoreError, match="was looked at"):
        read(path)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("place", ["attribute", "list"])
def test_a_heap_without_an_end_is_refused(tmp_path, helper, monkeypatch, libver, place):
    path = tmp_path / "anchors.h5"
    with h5py.File(path, "w", libver=libver) as file:
        if place == "attribute":
            file.attrs["encoder"] = "toy"
        else:
            file["prompts"] = np.array(["gland", "necrosis"], dtype=h5py.string_dtype())
    untrusted.examine_texts(path, [])
    empty_heaps(path)
    monkeypatch.setattr(untrusted, "_COMPUTING_LIMIT_S", 2.0)
    with pytest.raises(StoreError, match=r"anchors\.h5 .* \(reading its structure does not come to an end"):
        untrusted.examine_texts(path, [])


def test_where_heaps_could_lie_anywhere_the_helper_looks(tmp_path, helper, monkeypatch):
    monkeypatch.setattr(untrusted, "_SEARCHED_BYTES", 1000)
    assert store.attributes(write_texts(tmp_path / "a.h5")) == {"encoder": "toy"}
    assert helper._process is not None


def test_plain_numbers_are_not_searched_for_heaps(tmp_path, helper):
    path = tmp_path / "a.h5"
    numbers = np.frombuffer(untrusted.HEAP * 2**20, dtype=np.uint8)
    store.write(path, {"features": numbers}, {"encoder": "toy"})
    assert store.attributes(path) == {"encoder": "toy"}
    assert helper._process is None
