"""The results folder: its paths, its locks, and the log of what was executed.

  grids/<grid>.yaml                   every grid that was run into this folder
  cohorts/<cohort>, <cohort>.json     simulated cohorts; what each cohort is
  runs/<cohort>/<host>/<arm>/seed_<s> run folders, in the layout of `gcemil train`
  failures/**.json                    why a cohort or fold failed; gone once it succeeds
  claims/**.lock                      held while something is at work
  log.jsonl                           a line when an execution starts, ends or fails
  summary.json, timing.json           figures of all finished folds; what took how long

A claim is a lock of the operating system on a file, which ends with the process that holds it. On a
network file system it needs working locks (NFS 4, or 3 with lockd); without them the claim fails.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcemil.errors import BusyError, RunError
from gcemil.files import is_file, lock_file, read_record, read_text

if TYPE_CHECKING:
    from gcemil.benchmark.grid import Grid, Key, RunKey

Record = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """Paths inside one results folder."""

    folder: Path

    def path(self, key: Key) -> Path:
        """The folder of a cohort or a fold."""
        return self.folder / key.path

    def run(self, key: RunKey) -> Path:
        """The folder of a run."""
        return self.folder / key.run_path

    def finding(self, run: RunKey, name: str) -> Path:
        return self.path(run) / "diagnostics" / f"{name}.json"

    def cohort_record(self, cohort: str) -> Path:
        return self.folder / "cohorts" / f"{cohort}.json"

    def failure(self, key: Key) -> Path:
        return self.folder / "failures" / f"{key.path}.json"

    def remove_empty_failures(self) -> None:
        """Remove empty folders, so that a repaired grid looks like one that never failed."""
        root = self.folder / "failures"
        for folder in (*sorted(root.rglob("*/"), reverse=True), root):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def lock(self, name: object) -> Path:
        return self.folder / "claims" / f"{name}.lock"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"

    @property
    def timing(self) -> Path:
        return self.folder / "timing.json"

    def grids(self) -> list[Grid]:
        """Every grid of this folder, by name."""
        from gcemil.benchmark.grid import Grid

        return [Grid.from_yaml(path) for path in sorted((self.folder / "grids").glob("*.yaml"))]


@contextmanager
def claim(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether this process now holds the lock; with `wait` it does."""
    with ExitStack() as held:
        try:
            held.enter_context(lock_file(path, wait=wait))
        except BusyError:
            yield False
            return
        yield True


def append_log(results: Results, key: Key, event: str, **facts: Any) -> None:
    """Append one line, also with several writers, or after one that was cut by a kill."""
    place = {"time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    record = {"key": str(key.path), "event": event, **place, **facts}
    with claim(results.lock("log"), wait=True), results.log.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        is_cut = file.read() not in (b"", b"\n")
        file.write(b"\n" * is_cut + json.dumps(record).encode() + b"\n")


def read_log(results: Results) -> list[Record]:
    """Every complete line of the log."""
    records: list[Record] = []
    for line in read_text(results.log).split("\n") if results.log.is_file() else ():
        # A process may have been killed while it wrote.
        with suppress(ValueError):
            records.append(json.loads(line))
    return records


def read_failure(results: Results, key: Key) -> str | None:
    """Why this failed the last time; None if it did not."""
    record = _read_json(results.failure(key), remedy="Remove it.")
    return None if record is None else record["reason"]


def read_cohort_record(results: Results, name: str) -> Record | None:
    """What was written of a cohort when it was prepared; None before."""
    remedy = "Remove it; 'gcemil benchmark' writes it again."
    return _read_json(results.cohort_record(name), remedy=remedy)


def _read_json(path: Path, *, remedy: str) -> Record | None:
    return read_record(path, Record, error=RunError, remedy=remedy) if is_file(path) else None
