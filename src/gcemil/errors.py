"""Every error gcemil raises on purpose.

GcemilError
├── UsageError         a command or function was called with something it does not accept
│   └── ConfigError    a settings file has an unknown key or a value out of bounds
├── InputError         a file or array is not what it should be
│   ├── StoreError     a feature, evidence or truth file cannot be read or written
│   ├── CohortError    the tables of a cohort contradict each other or its files
│   ├── BagError       features, coordinates or gates of one bag do not fit together
│   └── WeightsError   weights made elsewhere do not fit the given host
├── RunError           a run folder cannot be resumed, read or trusted
├── BusyError          another process works in the folder
├── WorkerError        a worker process died
└── MissingExtraError  an optional dependency is not installed

A message names the file or slide, the value, and the remedy. It is one printable line, whatever a
file holds. `describe_fault` describes errors of the system (a full disk, a missing file, no memory,
a worker that died) in the same form, for the command line.
"""

from __future__ import annotations

import errno
import os
import sys

_LONGEST_MESSAGE = 2000


def printable(text: object) -> str:
    """The text as one line that a terminal shows as data: what cannot be printed is escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in str(text)
    )


class GcemilError(Exception):
    """Base class of every error that gcemil raises on purpose.

    Example:
        >>> import gcemil
        >>> try:
        ...     gcemil.create_host("abmill", in_dim=8, n_outputs=2)
        ... except gcemil.GcemilError as error:
        ...     print(str(error)[:22])
        Unknown host 'abmill'.
    """

    def __str__(self) -> str:
        # Not a pattern of spaces: on a megabyte of them it takes hours.
        lines = [line.strip() for line in super().__str__().split("\n")]
        text = " ".join(line for line in lines if line)
        return _shorten(printable(_shorten(text)))


def _shorten(text: str) -> str:
    """Both ends matter: the file stands first, the remedy last."""
    half = _LONGEST_MESSAGE // 2
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]} … {text[-half:]}"


class UsageError(GcemilError):
    """Called with something it does not accept; the command line exits with 2."""


class ConfigError(UsageError):
    """A settings file has an unknown key or a value out of bounds."""


class InputError(GcemilError):
    """A file or array is not what it should be."""


class StoreError(InputError):
    """A feature, evidence or truth file cannot be read or written."""


class CohortError(InputError):
    """The tables of a cohort contradict each other or its files."""


class BagError(InputError):
    """Features, coordinates or gates of one bag do not fit together."""


class WeightsError(InputError):
    """Weights made elsewhere do not fit the given host."""


class RunError(GcemilError):
    """A run folder cannot be resumed, read or trusted."""


class BusyError(GcemilError):
    """Another process works in the folder."""


class WorkerError(GcemilError):
    """A worker process died."""


class MissingExtraError(GcemilError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs '{package}'. Install it with: pip install 'gcemil[{extra}]'.")
        self._given = (package, extra)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # An error of a worker process travels to its parent pickled, and is made again from what it
        # was given.
        return type(self), self._given


# What the system says


def describe_fault(error: BaseException, *, path: object = "A file") -> str | None:
    """One sentence with a remedy for a fault outside gcemil; None for a bug.

    `path` stands in for a file the system does not name.
    """
    if isinstance(error, GcemilError):
        return str(error)
    # torch has no error type for exhausted memory of the machine, only a message.
    is_allocation = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    if isinstance(error, MemoryError) or _is_a(error, "torch", "OutOfMemoryError") or is_allocation:
        return (
            f"Not enough memory ({error_text(error)}). Close other programs, or give fewer --jobs "
            "or --workers, "
            "a smaller --batch-size or fewer max_patches."
        )
    if isinstance(error, OSError):
        return _describe_os_error(error, path)
    if _is_a(error, "concurrent.futures.process", "BrokenProcessPool"):
        return (
            "A worker process was ended from outside, most often because memory ran out. "
            "Run the same command again with fewer --jobs; what is finished is kept."
        )
    if _is_a(error, "safetensors", "SafetensorError"):
        return (
            f"A file of weights cannot be read or written ({error_text(error)}). "
            "Check free space, permissions, and whether the file is whole."
        )
    if "CUDA" in str(error) and isinstance(error, AssertionError | RuntimeError):
        return (
            f"CUDA cannot be used here ({error_text(error)}). "
            "Use --device cpu, or --set device=cpu for training."
        )
    return None


def describe_failure(error: BaseException, path: object) -> str:
    """What went wrong with one of several files: always a sentence, so that others go on."""
    return (
        describe_fault(error, path=path) or f"{path}: {type(error).__name__}: {error_text(error)}"
    )


def error_text(error: BaseException) -> str:
    """The message of an exception, on one line and shortened."""
    message = (
        (error.strerror if isinstance(error, OSError) else None)
        or str(error)
        or type(error).__name__
    )
    text = " ".join(message.split())
    return text if len(text) <= 300 else f"{text[:300]} …"


_REMEDIES = {
    "ENOSPC EDQUOT EFBIG": "Free some space, or give a folder on another disk.",
    "EROFS": "Give a folder you may write to.",
    "EACCES EPERM": "Check its permissions and those of its folder.",
    "EEXIST ENOTDIR EISDIR ENOTEMPTY": (
        "Something else stands in its place: move it, or give another path."
    ),
    "ENAMETOOLONG": "Use shorter names.",
    "EMFILE ENFILE": "Raise the limit with 'ulimit -n 4096', or give fewer --jobs.",
    "EIO ESTALE ETIMEDOUT": "Check the disk or the network, then run the same command again.",
}


def write_remedy(error: OSError) -> str:
    """What to do about a path that could not be read or written."""
    name = errno.errorcode.get(error.errno or 0, "")
    remedies = [remedy for names, remedy in _REMEDIES.items() if name in names.split()]
    return remedies[0] if remedies else "Check free space and permissions."


def _describe_os_error(error: OSError, unnamed: object) -> str:
    names = (error.filename, error.filename2)
    named = [os.fsdecode(name) for name in names if isinstance(name, str | bytes | os.PathLike)]
    path = named[0] if named else unnamed
    if error.errno == errno.ENOENT:
        return (
            f"{path} is not there. It was moved or removed, or a link to it points nowhere: "
            "put it back, then run the same command again."
        )
    return f"{path} cannot be read or written ({error_text(error)}). {write_remedy(error)}"


def _is_a(error: BaseException, module: str, name: str) -> bool:
    """Whether the error is of a class whose package may not even be loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(error, kind)
