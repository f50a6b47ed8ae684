"""HDF5 files that another process looks at before this one opens them.

A damaged file can keep libhdf5 busy for ever or crash it, and neither can be caught in the process it happens in: of
12,000 TRIDENT files with a few flipped bits, some twenty did one or the other. So a helper process first does with a file
what readers do: names, types, attributes, chunk indexes, first and last rows. Where it dies or computes too long, the file
is refused with a sentence; so is one that the library objects to. The rest is for readers to judge.

Every file of HDF5's older format is looked at, once by each process, because that format has no checksums (CLAM's,
TRIDENT's and STAMP's files have it, ours do not). Inside `untrusted_files`, every file is.

The helper lives as long as its line: it ends when that is closed, as it is when its parent dies however that happens, and
after some idle seconds. It says that it has taken a question before it opens the file, so a helper that had just left is
never mistaken for one that a file has killed.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from gcemil.errors import StoreError, WorkerError, error_text
from gcemil.processes import describe_exit

_COMPUTING_LIMIT_S = 3.0
"""Of the processor, for one file: structure alone takes milliseconds, and a slow disk costs none."""
_WAITING_LIMIT_S = 600.0
IDLE_S = 30.0
_EXIT_WAIT_S = 1.0
READY, TAKEN, HARMLESS = "ready", "taken", "done"
"""What the helper says when it has started, before it opens a file, and when that did no harm."""
_MEMORY_LIMIT = 2 * 2**30
_SEARCHED_BYTES = 2**20
"""Of a file that is searched for heaps; in larger ones the helper looks."""
HEAP = b"GCOL"
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_WITH_CHECKSUMS = 2
"""Version of the superblock, which follows the signature."""

REMEDY = "It is truncated, damaged or no HDF5 file; extract it again."

_all_are_strange: ContextVar[bool] = ContextVar("_all_are_strange", default=False)


@contextmanager
def untrusted_files() -> Iterator[None]:
    """Every HDF5 file that is opened inside is looked at first, whatever its format."""
    token = _all_are_strange.set(True)
    try:
        yield
    finally:
        _all_are_strange.reset(token)


def examine_first(path: Path, *, seconds: float = _COMPUTING_LIMIT_S) -> None:
    """Have the helper look at a file that could harm this process; one that harms the helper is a StoreError."""
    if _all_are_strange.get() or not _has_checksums(path):
        _HELPER.look_at(path, seconds)


def examine_texts(path: Path, occupied: Sequence[tuple[int, int]]) -> None:
    """Have the helper look at a file whose heaps of texts could harm this process.

    Texts of variable length lie in heaps, the one part of newer files that has no checksums: an object of no size keeps
    libhdf5 busy for ever. `occupied` are the first and last bytes of plain data, which is no heap and is not searched.
    """
    if not _heaps_are_sound(path, occupied):
        _HELPER.look_at(path, _COMPUTING_LIMIT_S)


def _heaps_are_sound(path: Path, occupied: Sequence[tuple[int, int]]) -> bool:
    """Whether every heap can be walked to its end; False where that is not seen without reading much."""
    with path.open("rb", buffering=0) as file:
        size, place, searched = file.seek(0, os.SEEK_END), 0, 0
        for start, stop in (*sorted(occupied), (size, size)):
            searched += max(0, start - place)
            if searched > _SEARCHED_BYTES:
                return False
            file.seek(place)
            between = file.read(max(0, start - place))
            if not all(_ends(between[found.start() :]) for found in re.finditer(HEAP, between)):
                return False
            place = max(place, stop)
    return True


def _ends(heap: bytes) -> bool:
    """Whether the objects of a heap follow each other to its end: number, references, size, and the bytes themselves."""
    length = int.from_bytes(heap[8:16], "little")
    place = 16
    while place + 16 <= min(length, len(heap)):
        number, size = heap[place : place + 2], int.from_bytes(heap[place + 8 : place + 16], "little")
        # The last object is the free space, whose size counts its own head.
        step = size if number == b"\0\0" else 16 + -(-size // 8) * 8
        if step < 16:
            return False
        place += step
    return place == length or length - place < 16


def _has_checksums(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        start = file.read(len(_SIGNATURE) + 1)
    # A file that begins otherwise may still be HDF5, with something else in front.
    return start[:-1] == _SIGNATURE and start[-1] >= _FIRST_WITH_CHECKSUMS


class _Helper:
    """The helper process, started when there is a file to look at, and what it has looked at."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._harmless: set[tuple[int, ...]] = set()

    def look_at(self, path: Path, seconds: float) -> None:
        found = path.stat()
        version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if version in self._harmless:
            return
        with self._lock:
            process = self._process_that_takes(json.dumps([str(path.absolute()), seconds]))
            answer = _read_answer(process)
            code = None if answer else self._end()
        if answer != HARMLESS:
            raise StoreError(f"{path} cannot be read as HDF5 ({_describe_verdict(answer, code)}). {REMEDY}")
        self._harmless.add(version)

    def stop(self) -> None:
        with self._lock:
            self._end()

    def forget(self) -> None:
        """In a fork of this process: the helper is its parent's."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            _close_line(process)
            process.returncode = 0  # not ours to wait for

    def _process_that_takes(self, question: str) -> subprocess.Popen[bytes]:
        """A helper that is about to look; one that was found idle may leave before it hears us, a new one does not."""
        if self._process is not None:
            if _accepts_question(self._process, question):
                return self._process
            self._end()
        self._process = _start_helper()
        if _accepts_question(self._process, question):
            return self._process
        raise _helper_error(self._end())

    def _end(self) -> int | None:
        """End the process; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        _close_line(process)
        # Without its line it goes by itself; one that has crashed keeps its own exit code.
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_EXIT_WAIT_S)
        process.kill()
        return process.wait()


def _describe_verdict(answer: str | None, code: int | None) -> str:
    if answer:
        return answer
    if answer is None or (code is not None and -code == getattr(signal, "SIGPROF", 0)):
        return "reading its structure does not come to an end"
    return f"a process that tried it ended {describe_exit(code)}"


def _start_helper() -> subprocess.Popen[bytes]:
    variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gcemil.bags.untrusted"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
        bufsize=0,  # what is buffered here, the system does not see when it is asked whether there is an answer
    )
    if _read_answer(process) != READY:
        process.kill()
        _close_line(process)
        raise _helper_error(process.wait())
    return process


def _helper_error(code: int | None) -> WorkerError:
    return WorkerError(
        f"The process that looks at HDF5 files first ended {describe_exit(code)}. Run the same command again."
    )


def _accepts_question(process: subprocess.Popen[bytes], question: str) -> bool:
    """Whether the helper hears the question and sets about it."""
    if process.stdin is None:
        return False
    try:
        process.stdin.write(question.encode() + b"\n")
    except OSError:
        return False
    return _read_answer(process) == TAKEN


def _read_answer(process: subprocess.Popen[bytes]) -> str | None:
    """Its next line; empty when it died, None when it never comes."""
    if process.stdout is None or not select.select([process.stdout], [], [], _WAITING_LIMIT_S)[0]:
        return None
    return process.stdout.readline().decode().strip()


def _close_line(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _serve() -> None:
    """The life of the helper: a path in, a line back, until nobody asks any more."""
    # Ctrl-C reaches the whole group; the parent decides what happens then, and its line tells.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    print(READY, flush=True)
    patience = None  # the first question is on its way
    while select.select([sys.stdin], [], [], patience)[0]:
        patience = IDLE_S
        line = sys.stdin.readline()
        if not line:
            return
        print(TAKEN, flush=True)
        path, seconds = json.loads(line)
        with _limit_computing(seconds):
            answer = _examine_file(Path(path))
        print(answer, flush=True)


def _examine_file(path: Path) -> str:
    """What is wrong with the library's view of a file, in one line, or that the work is done."""
    from gcemil.bags import store  # which asks this module before it opens a file

    try:
        store.walk(path)
    # The reader would meet the same, with all the memory it takes.
    except (OSError, RuntimeError, MemoryError, SystemError) as error:
        return error_text(error)
    except Exception:  # what it means is for the reader to say
        return HARMLESS
    return HARMLESS


@contextmanager
def _limit_computing(seconds: float) -> Iterator[None]:
    """The system ends this process when it computes longer; inside a library, nothing else could."""
    has_timer = hasattr(signal, "setitimer")
    if has_timer:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    if has_timer:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    """A damaged file may claim any size; that is to fail here and not to exhaust the machine."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_AS)[1]))


_HELPER = _Helper()
atexit.register(_HELPER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _HELPER.forget())

if __name__ == "__main__":
    _serve()
