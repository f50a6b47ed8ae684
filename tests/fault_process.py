"""Commands in processes of their own that are killed, denied the disk, or robbed of a file at a chosen moment.

A process is forked from one that has everything loaded, so that a command starts in milliseconds and a random moment
falls into its work. Moments are of two kinds: a share of what the command computes, which does not depend on how busy the
machine is, or a file operation. Operations are heard through Python's audit events; what HDF5 and safetensors write by themselves goes into temporary files only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import multiprocessing
import os
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import gcemil

TIMEOUT_S = 300.0
POLL_S = 0.01
ORPHAN_S = 15.0
"""How long workers may live on after their parent was killed."""
UNTIMED = (
    "timing.json",
    "log.jsonl",
    "*.lock",
    ".gcemil_hashes.json",
    "tensorboard",
    "events.out.tfevents.*",
    # What both attempts said, and when.
    "train.log",
)
"""Files that tell times, machines or processes; everything else is the same every time."""

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    [
        *(module.name for module in pkgutil.walk_packages(gcemil.__path__, "gcemil.")),
        "tensorboard.summary.writer.record_writer",
        "matplotlib.pyplot",
    ]
)

Kind = Literal["kill", "full disk", "read-only", "no permission", "vanished", "replaced"]
ERRORS = {"full disk": errno.ENOSPC, "read-only": errno.EROFS, "no permission": errno.EACCES}
MAKING = {"open", "os.mkdir", "os.symlink", "os.link"}
"""Operations that need room on the disk; renaming and removing do not."""
HEARD = MAKING | {"os.rename", "os.remove", "os.rmdir", "os.truncate"}


@dataclass(frozen=True)
class Fault:
    """What happens just before the file operation of this number, and to every later one."""

    kind: Kind
    at: int
    path: Path | None = None
    """What vanishes, or is replaced by other bytes."""


@dataclass(frozen=True)
class Ended:
    """A command that came to an end."""

    code: int
    output: str
    seconds: float
    computed: float
    """Seconds of the processor, workers included; 0 for one that was killed."""
    operations: tuple[str, ...]
    orphans: tuple[int, ...]

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def outcries(self) -> list[str]:
        return outcries(self.code, self.output)


def outcries(code: int, output: str) -> list[str]:
    """What no user should see, with the output, to find the cause."""
    seen = [word for word in ("Traceback", "unexpected", "Exception ignored") if word in output]
    if code not in (0, 1, 2):
        seen.append(f"exit code {code}")
    if code and not output.strip():
        seen.append("no word")
    return [f"{', '.join(seen)}: {output[-1500:]}"] if seen else []


def run_command(
    arguments: Sequence[object],
    folder: Path,
    *,
    fault: Fault | None = None,
    kill_after: float | None = None,
    interrupt_after: float | None = None,
) -> Ended:
    """Run `gcemil ARGUMENTS` in this folder to its end, which may come early."""
    with started_command(arguments, folder, fault=fault) as running:
        if kill_after is not None:
            running.wait_until_computed(kill_after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.process.pid, signal.SIGKILL)
        if interrupt_after is not None:
            running.process.join(interrupt_after)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGINT)
        return running.ended()


@dataclass
class Running:
    process: Any
    since: float
    folder: Path

    def ended(self, timeout: float = TIMEOUT_S) -> Ended:
        self.process.join(timeout)
        seconds = time.monotonic() - self.since
        if self.process.exitcode is None:
            raise TimeoutError(f"still at work after {timeout:g} s: {self._output()}")
        return Ended(
            self.process.exitcode,
            self._output(),
            seconds,
            float(_text(beside(self.folder, f"computed.{self.process.pid}")) or 0),
            tuple(_text(beside(self.folder, f"operations.{self.process.pid}")).splitlines()),
            _orphans(self.process.pid),
        )

    def wait_until_computed(self, seconds: float) -> None:
        """Until the command and its workers have computed so long, or it has ended."""
        while self.process.is_alive() and _computed(self.process.pid) < seconds:
            self.process.join(POLL_S)

    def _output(self) -> str:
        return _text(beside(self.folder, f"output.{self.process.pid}"))


@contextlib.contextmanager
def started_command(
    arguments: Sequence[object], folder: Path, *, fault: Fault | None = None
) -> Iterator[Running]:
    """The command at work; when the block ends, so do it and its workers."""
    ready, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_child, args=(theirs, [str(a) for a in arguments], folder, fault))
    process.start()
    theirs.close()
    try:
        ready.recv_bytes()
        yield Running(process, time.monotonic(), folder)
    finally:
        ready.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        for name in ("output", "operations", "computed"):
            beside(folder, f"{name}.{process.pid}").unlink(missing_ok=True)
        process.close()


def _child(ready: Any, arguments: list[str], folder: Path, fault: Fault | None) -> None:
    # A session of its own: its workers can be found when it is gone, and Ctrl-C reaches them all.
    os.setsid()
    sys.addaudithook(_Ear(folder, fault))
    ready.send_bytes(b"ready")
    try:
        become_command(arguments, folder, beside(folder, f"output.{os.getpid()}"))
    finally:
        beside(folder, f"computed.{os.getpid()}").write_text(str(sum(os.times()[:4])))


def become_command(arguments: Sequence[str], folder: Path, output: Path) -> None:
    """What the shell does: in the folder, with the output in a file, until the command exits."""
    os.chdir(folder)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv = ["gcemil", *arguments]
    from gcemil.cli.main import main

    main()


class _Ear:
    """Hears every file operation inside the folder, notes it, and strikes when its number comes."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self._folder, self._fault, self._heard = os.fspath(folder), fault, 0
        self._notes = os.open(
            beside(folder, f"operations.{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        self._owner = os.getpid()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in HEARD or os.getpid() != self._owner:
            return
        path = self._changed_path(event, arguments)
        if path is None:
            return
        self._heard += 1
        os.write(self._notes, f"{event} {path}\n".encode(errors="replace"))
        if self._fault is not None and self._heard >= self._fault.at:
            self._strike(self._fault, event, path)

    def _changed_path(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return None
        named = arguments[0]
        if isinstance(named, int):
            return None
        path = os.path.join(self._folder, os.fsdecode(named))  # noqa: PTH118
        return os.path.relpath(path, self._folder) if path.startswith(f"{self._folder}/") else None

    def _strike(self, fault: Fault, event: str, path: str) -> None:
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.path is not None:
            if self._heard == fault.at:
                self._rob(fault.kind, fault.path)
            return
        if fault.kind != "full disk" or event in MAKING:
            number = ERRORS[fault.kind]
            raise OSError(number, os.strerror(number), os.path.join(self._folder, path))  # noqa: PTH118

    def _rob(self, kind: Kind, path: Path) -> None:
        # What is done here is not to be heard.
        self._owner = 0
        content = path.read_bytes()
        path.unlink()
        if kind == "replaced":
            path.write_bytes(content[::-1])
        self._owner = os.getpid()


def beside(folder: Path, name: str) -> Path:
    return folder.with_name(f"{folder.name}.{name}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _orphans(session: int) -> tuple[int, ...]:
    """Processes of a session that outlive its first one by more than a while; they are ended here."""
    deadline = time.monotonic() + ORPHAN_S
    while (found := _members(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _members(session: int) -> tuple[int, ...]:
    return tuple(pid for pid, state, _ in _processes(session) if state != "Z")


def _computed(session: int) -> float:
    return sum(ticks for _, _, ticks in _processes(session)) / os.sysconf("SC_CLK_TCK")


def _processes(session: int) -> Iterator[tuple[int, str, int]]:
    """Number, state and ticks of the processor, with those of children that ended, of every process of a session."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # What stands behind the name in brackets, which may hold anything.
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield int(path.parent.name), fields[0], sum(map(int, fields[11:15]))


# What is on the disk


def snapshot(folder: Path) -> dict[str, str]:
    """Every folder, link and file below, with a hash of what it holds; without the files that tell times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(fnmatch(part, pattern) for part in name.split("/") for pattern in UNTIMED):
            continue
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        else:
            found[name] = "folder" if path.is_dir() else _untimed_hash(path)
    return found


def _untimed_hash(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".json":
        content = re.sub(rb'"seconds": [-+.e\d]+', b'"seconds": 0', content)
    return hashlib.sha256(content).hexdigest()


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Names that are missing, new or changed."""
    return [
        f"{'missing' if name not in after else 'new' if name not in before else 'changed'}: {name}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*.partial")]


def held_locks(folder: Path) -> list[str]:
    """Lock files that somebody still holds."""
    held = []
    for path in folder.rglob("*.lock"):
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(str(path.relative_to(folder)))
    return held
