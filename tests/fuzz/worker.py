"""One input in a process of its own, with limits: what came of reading it."""

from __future__ import annotations

import contextlib
import json
import math
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

from gcemil.errors import GcemilError

LIMIT_S = 10.0
"""Of computing, or of waiting for something that does not come; a busy machine must not look like a hanging reader."""
PATIENCE = 12
"""Times the limit that a child may take by the clock while it computes."""
LIMIT_BYTES = 2 * 2**30
ROOM_BYTES = 4 * 2**30
"""Address space a reader gets beyond what the process has: enough to be caught using too much, not enough to harm the machine."""

GOOD = ("read", "refused")


@dataclass(frozen=True)
class Outcome:
    """read, refused (an error of ours, in one line), exception, message, crash, hang or memory."""

    kind: str
    what: str = ""
    where: str = ""
    seconds: float = 0.0
    bytes: int = 0

    @property
    def is_fault(self) -> bool:
        return self.kind not in GOOD


def outcome_of(read: Callable[[Path], object], folder: Path, *, limit_s: float = LIMIT_S) -> Outcome:
    """Read the folder in a child and watch it."""
    incoming, outgoing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(incoming)
        _be_the_child(read, folder, outgoing, limit_s)
    os.close(outgoing)
    try:
        said = _listen(incoming, child, started, limit_s)
    finally:
        os.close(incoming)
    # A child that said nothing by now hangs; one that closed the line ends by itself.
    if said is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    seconds, peak = time.monotonic() - started, usage.ru_maxrss * 1024
    if said is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        computed = usage.ru_utime + usage.ru_stime
        return Outcome("hang", f"computed for {computed:.1f} s of {seconds:.1f} s", "", seconds, peak)
    if os.WIFSIGNALED(status):
        return Outcome("crash", signal.Signals(os.WTERMSIG(status)).name, "", seconds, peak)
    if peak > LIMIT_BYTES:
        return Outcome("memory", f"{peak / 2**30:.1f} GB", "", seconds, peak)
    if not said:
        return Outcome("crash", f"exit {os.waitstatus_to_exitcode(status)} without a word", "", seconds, peak)
    record = json.loads(said)
    return Outcome(record["kind"], record["what"], record["where"], seconds, peak)


def _listen(line: int, child: int, started: float, limit_s: float) -> bytes | None:
    """Everything the child says; None when it neither computes nor speaks, or takes far too long."""
    said = b""
    while (passed := time.monotonic() - started) < PATIENCE * limit_s:
        ready, _, _ = select.select([line], [], [], limit_s / 5)
        if ready:
            part = os.read(line, 65536)
            if not part:
                return said
            said += part
        elif passed > limit_s and not _is_computing(child):
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


def _be_the_child(read: Callable[[Path], object], folder: Path, outgoing: int, limit_s: float) -> None:
    try:
        os.setsid()
        _take_limits(limit_s)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        record = _attempt(read, folder)
        os.write(outgoing, json.dumps(record).encode())
    except BaseException:
        os._exit(3)
    os._exit(0)


def _take_limits(limit_s: float) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM_BYTES, size + ROOM_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s) + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**31, 2**31))


def _attempt(read: Callable[[Path], object], folder: Path) -> dict[str, str]:
    try:
        read(folder)
    except GcemilError as error:
        text = str(error)
        good = text.isprintable() and 0 < len(text) <= 2100
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
