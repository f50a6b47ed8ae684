"""The harness itself: every way in which a reader can fail is noticed, and a small campaign finds none."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fuzz import mutations
from fuzz import worker as limits
from fuzz.worker import Outcome, Worker, is_supported
from gcemil.errors import InputError

TESTS = Path(__file__).parents[1]
SECONDS = 5
"""Of inputs; making the valid ones takes about as long."""

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="limits on a process need Linux"),
    # The child reads nothing that a thread of this process could hold locked.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def misbehave(job: str) -> None:
    if job == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif job == "leave":
        os._exit(7)
    elif job == "wait":
        time.sleep(60)
    elif job == "compute":
        while True:
            pass
    elif job == "grow":
        # Pages of their own: a large process may have that much free in its heap already.
        with mmap.mmap(-1, 64 * 2**20) as pages:
            pages[::4096] = bytes(len(pages) // 4096)
    elif job == "raise":
        raise KeyError("x")
    elif job == "refuse":
        raise InputError("a.csv is damaged. Make it again.")
    elif job == "say nothing":
        raise InputError("")
    elif job == "open":
        Path(os.environ["CLOSED_FILE"]).read_bytes()


@pytest.fixture
def watched() -> Iterator[Worker]:
    with Worker(misbehave) as worker:
        yield worker


@pytest.mark.parametrize(
    ("job", "kind", "what"),
    [
        ("read", "read", ""),
        ("refuse", "refused", "InputError"),
        ("raise", "exception", "KeyError: 'x'"),
        ("say nothing", "message", ""),
        ("crash", "crash", "SIGSEGV"),
        ("leave", "crash", "exit 7 without a word"),
        ("wait", "hang", None),
        ("compute", "hang", None),
    ],
)
def test_what_a_reader_does_is_noticed(watched: Worker, job: str, kind: str, what: str | None) -> None:
    outcome = watched.outcome(job, 0.5 if kind == "hang" else None)
    assert outcome.kind == kind
    assert what is None or outcome.what == what


def test_the_input_after_a_crash_is_read_by_another_process(watched: Worker) -> None:
    assert [watched.outcome(job).kind for job in ("crash", "read")] == ["crash", "read"]


def test_memory_is_counted_for_each_input_alone(watched: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    before = watched.outcome("read").bytes
    grown = watched.outcome("grow").bytes
    assert grown - before > 32 * 2**20
    assert grown - watched.outcome("read").bytes > 32 * 2**20
    monkeypatch.setattr(limits, "LIMIT_BYTES", (grown + before) // 2)
    assert watched.outcome("grow").kind == "memory"


def test_a_closed_file_is_closed_to_root_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.write_text("x")
    closed.chmod(0)
    monkeypatch.setenv("CLOSED_FILE", str(closed))
    with Worker(misbehave) as worker:
        assert worker.outcome("open").what.startswith("PermissionError")


def test_an_outcome_is_a_finding_unless_read_or_refused() -> None:
    assert [Outcome(kind).is_fault for kind in ("read", "refused", "hang", "memory")] == [
        False,
        False,
        True,
        True,
    ]


def test_a_file_that_takes_no_room_is_not_written_out(tmp_path: Path) -> None:
    path, grown = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("a")
    grown.write_text("b")
    mutations.another_file(Random(0), path)
    assert path.read_text() == "b"
    os.truncate(grown, mutations.LARGEST_COPY + 1)
    mutations.another_file(Random(0), path)
    assert path.stat().st_size == 1


def test_a_small_campaign_finds_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "fuzz", "--seed", "0", "--inputs", "400", "--seconds", str(SECONDS)]
    paths = os.pathsep.join([*sys.path, str(TESTS)])
    done = subprocess.run(
        [*command, "--json", str(report)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    assert found["findings"] == []
    assert found["inputs"] > 0
