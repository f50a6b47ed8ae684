"""Disks of another kind for one command: small ones that fill up, and read-only ones.

The command gets a mount namespace of its own, so that nothing has to be unmounted and nobody else sees it. It takes
Linux, and root or unprivileged user namespaces.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fault_process import FORK, TIMEOUT_S, become_command, beside, leftovers, outcries

NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
DETACH = 2
LARGE = 512 * 2**20


@dataclass(frozen=True)
class OnDisk:
    """A command that ended on such a disk."""

    code: int
    output: str
    left: list[str]
    """Temporary files it left there."""

    @property
    def outcries(self) -> list[str]:
        return outcries(self.code, self.output)


@cache
def why_no_mounts() -> str | None:
    """Why disks cannot be mounted here, None when they can."""
    if sys.platform != "linux":
        return "mount namespaces are Linux's"
    process = FORK.Process(target=enter_namespace)
    process.start()
    process.join(TIMEOUT_S)
    return None if process.exitcode == 0 else "mounting is not allowed here"


def run_read_only(arguments: Sequence[object], folder: Path) -> OnDisk:
    """Run the command in a folder that cannot be written."""
    (ended,) = _told(_read_only, [str(argument) for argument in arguments], folder)
    return ended


def run_on_full_disk(arguments: Sequence[object], folder: Path, *, room: int) -> tuple[OnDisk, OnDisk]:
    """Run the command where only so many bytes are free, then again with room; the folder ends up as it was left there."""
    first, second = _told(_full_disk, [str(argument) for argument in arguments], folder, room)
    return first, second


def _told(target: Callable[..., None], arguments: list[str], folder: Path, *more: Any) -> list[OnDisk]:
    process = FORK.Process(target=target, args=(arguments, folder, *more))
    process.start()
    process.join(TIMEOUT_S)
    said = beside(folder, "said.json")
    assert process.exitcode == 0, process.exitcode
    ended = [OnDisk(*values) for values in json.loads(said.read_text())]
    said.unlink()
    return ended


def _read_only(arguments: list[str], folder: Path) -> None:
    enter_namespace()
    _mount(os.fspath(folder), folder, None, BIND)
    _mount(None, folder, None, BIND | REMOUNT | READ_ONLY)
    _say(folder, [_forked(arguments, folder)])


def _full_disk(arguments: list[str], folder: Path, room: int) -> None:
    enter_namespace()
    outside = beside(folder, "outside")
    shutil.copytree(folder, outside, symlinks=True)
    _mount("tmpfs", folder, "tmpfs", 0, f"size={LARGE}")
    shutil.copytree(outside, folder, symlinks=True, dirs_exist_ok=True)
    found = os.statvfs(folder)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    _mount(None, folder, None, REMOUNT, f"size={used + room}")
    first = _forked(arguments, folder)
    _mount(None, folder, None, REMOUNT, f"size={LARGE}")
    second = _forked(arguments, folder)
    shutil.rmtree(outside)
    shutil.copytree(folder, outside, symlinks=True)
    # Detached: a helper process of the command may take a moment to go.
    _call("umount2", os.fsencode(folder), DETACH)
    shutil.rmtree(folder)
    outside.rename(folder)
    _say(folder, [first, second])


def _forked(arguments: list[str], folder: Path) -> OnDisk:
    """The command in a process of its own, inside this namespace."""
    output = beside(folder, "output")
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            become_command(arguments, folder, output)
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    said = output.read_text(errors="replace")
    output.unlink()
    return OnDisk(os.waitstatus_to_exitcode(status), said, leftovers(folder))


def _say(folder: Path, ended: list[OnDisk]) -> None:
    beside(folder, "said.json").write_text(json.dumps([[one.code, one.output, one.left] for one in ended]))


def enter_namespace() -> None:
    """Mounts from here on are seen by this process and its children only; SystemExit where that is not allowed."""
    user, group = os.getuid(), os.getgid()
    try:
        if user == 0:
            _call("unshare", NEW_MOUNTS)
        else:
            _call("unshare", NEW_MOUNTS | NEW_USER)
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"0 {user} 1"),
                ("gid_map", f"0 {group} 1"),
            ):
                Path("/proc/self", name).write_text(text)
        _mount(None, Path("/"), None, RECURSIVE | PRIVATE)
    except OSError as error:
        raise SystemExit(3) from error


def _mount(
    source: str | None, target: Path, kind: str | None, flags: int, options: str | None = None
) -> None:
    given = [None if text is None else text.encode() for text in (source, kind, options)]
    _call("mount", given[0], os.fsencode(target), given[1], ctypes.c_ulong(flags), given[2])


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
