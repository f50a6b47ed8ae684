"""Processes that read one damaged input after the other, with limits: what came of each."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcemil.errors import GcemilError

LIMIT_S = 10.0
"""Of computing, or of waiting for something that does not come; a busy machine must not look like a hanging reader."""
PATIENCE = 120
"""Times the limit that a child may take by the clock while it computes: a busy machine may hardly let it."""
IDLE_LOOKS = 5
"""How often in a row nothing of a child computes before it counts as waiting for what does not come."""
LIMIT_BYTES = 2 * 2**30
ROOM_BYTES = 4 * 2**30
"""Address space a reader gets beyond what the process has: enough to be caught using too much, not enough to harm the machine."""
LIVES = 400
"""Inputs that one process reads: a fork and what is done first cost more than most inputs."""
MAX_SENTENCE = 2100

GOOD = ("read", "refused")
PEAK_RESET = "5"
"""What Linux takes in clear_refs as: forget the highest memory so far."""
CAPABILITY_VERSION = 0x20080522
ROOT_READS_ALL = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, with which root may open any file."""


@dataclass(frozen=True)
class Outcome:
    """read, refused (an error of ours, in one line), exception, message, crash, hang, memory or disk."""

    kind: str
    what: str = ""
    where: str = ""
    seconds: float = 0.0
    computed: float = 0.0
    bytes: int = 0

    @property
    def is_fault(self) -> bool:
        return self.kind not in GOOD


class Worker:
    """A forked child that reads what it is told to, replaced when it died or has read enough."""

    def __init__(self, read: Callable[[Any], object], *, limit_s: float = LIMIT_S) -> None:
        self._read = read
        self._limit_s = limit_s
        self._child = self._jobs = self._answers = 0
        self._lives = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def outcome(self, job: Any, limit_s: float | None = None) -> Outcome:
        """What comes of one job: anything that JSON can say."""
        limit_s = limit_s or self._limit_s
        if self._lives <= 0:
            self._end()
            self._start()
        self._lives -= 1
        started = time.monotonic()
        os.write(self._jobs, json.dumps([limit_s, job]).encode() + b"\n")
        said = self._listen(started, limit_s)
        seconds = time.monotonic() - started
        if said:
            record = json.loads(said)
            found = Outcome(**record, seconds=seconds)
            if found.bytes > LIMIT_BYTES:
                found = Outcome(
                    "memory", f"{found.bytes / 2**30:.1f} GB", "", seconds, found.computed, found.bytes
                )
            if found.is_fault:
                # What comes next must not depend on what went wrong here.
                self._end()
            return found
        status, usage = self._end()
        peak, computed = usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime
        if said is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
            return Outcome("hang", f"no end after {seconds:.1f} s", "", seconds, computed, peak)
        if os.WIFSIGNALED(status):
            return Outcome("crash", signal.Signals(os.WTERMSIG(status)).name, "", seconds, computed, peak)
        code = os.waitstatus_to_exitcode(status)
        return Outcome("crash", f"exit {code} without a word", "", seconds, computed, peak)

    def _start(self) -> None:
        jobs, self._jobs = os.pipe()
        self._answers, answers = os.pipe()
        self._lives = LIVES
        self._child = os.fork()
        if self._child == 0:
            os.close(self._jobs)
            os.close(self._answers)
            _be_the_child(self._read, jobs, answers)
        os.close(jobs)
        os.close(answers)

    def _end(self) -> tuple[int, resource.struct_rusage]:
        """End the child and all it started; how it ended."""
        child, self._child, self._lives = self._child, 0, 0
        if not child:
            return 0, resource.getrusage(resource.RUSAGE_SELF)
        os.close(self._jobs)
        os.close(self._answers)
        # One that has died keeps its own status.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        return status, usage

    def _listen(self, started: float, limit_s: float) -> bytes | None:
        """Its line; empty when it died, None when it neither computes nor speaks, or takes far too long."""
        said, idle = b"", 0
        while time.monotonic() - started < PATIENCE * limit_s:
            ready, _, _ = select.select([self._answers], [], [], limit_s / IDLE_LOOKS)
            if ready:
                part = os.read(self._answers, 65536)
                said += part
                if not part or said.endswith(b"\n"):
                    return said if part else b""
            else:
                idle = 0 if _is_computing(self._child) else idle + 1
                if idle >= IDLE_LOOKS:
                    return None
        return None


def _is_computing(child: int) -> bool:
    """Whether the process, or another of its session, runs or could run: the state stands behind the name in brackets."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[3]) == child and fields[0] in "RD":
                return True
    return False


def _be_the_child(read: Callable[[Any], object], jobs: int, answers: int) -> None:
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # How a crash ends the process is told by the parent.
        faulthandler.disable()
        _take_limits()
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        with os.fdopen(jobs) as lines:
            for line in lines:
                limit_s, job = json.loads(line)
                record = _measured(read, job, limit_s)
                os.write(answers, json.dumps(record).encode() + b"\n")
    except BaseException:
        os._exit(3)
    os._exit(0)


def _take_limits() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM_BYTES, size + ROOM_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**31, 2**31))
    if os.geteuid() == 0:
        _obey_permissions()


def _obey_permissions() -> None:
    """Let root be refused what every user is refused."""
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    held = (ctypes.c_uint32 * 6)()
    if library.capget(header, held) == 0:
        held[0] &= ~ROOT_READS_ALL
        library.capset(header, held)


def _measured(read: Callable[[Any], object], job: Any, limit_s: float) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(PEAK_RESET)
    before = time.process_time()
    # The system ends this process when it computes longer; inside a library, nothing else could.
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    record: dict[str, Any] = _attempt(read, job)
    signal.setitimer(signal.ITIMER_PROF, 0)
    computed = time.process_time() - before
    # An HDF5 file that a traceback keeps open would be met again by the next input.
    gc.collect()
    return {**record, "computed": computed, "bytes": _peak()}


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _attempt(read: Callable[[Any], object], job: Any) -> dict[str, str]:
    try:
        read(job)
    except GcemilError as error:
        text = str(error)
        good = text.isprintable() and 0 < len(text) <= MAX_SENTENCE
        return {
            "kind": "refused" if good else "message",
            "what": type(error).__name__ if good else text[:500],
            "where": "",
        }
    except BaseException as error:
        return {
            "kind": "exception",
            "what": f"{type(error).__name__}: {str(error)[:200]}",
            "where": _place(error),
        }
    return {"kind": "read", "what": "", "where": ""}


def _place(error: BaseException) -> str:
    """The innermost line of gcemil, and the innermost line at all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/gcemil/" in frame.filename]
    shown = [ours[-1], frames[-1]] if ours else frames[-1:]
    places = dict.fromkeys(f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}" for frame in shown)
    return " < ".join(places)


def is_supported() -> bool:
    """Limits and a forked child need a system with /proc."""
    return sys.platform == "linux"
