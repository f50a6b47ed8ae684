"""Worker processes: one job at a time each, ended with the process that started them, however that one ends.

A worker that dies takes its job with it and nothing else. Whoever gave the job is told what killed the worker and which
slide it was at: `tell_slide` and `tell_reading` leave that in memory which both processes see.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from gcemil.errors import WorkerError

Job = TypeVar("Job")
Answer = TypeVar("Answer")

_SPAWN = multiprocessing.get_context("spawn")
_PLACE_BYTES = 512
LAST_WORDS_S = 10.0
"""How long an ended worker may take to go before it is killed."""
POLL_S = 0.5
_PR_SET_PDEATHSIG = 1

_places: tuple[Any, Any] | None = None
"""In a worker: where it says which slide it works on, and which one it reads."""


@dataclass(frozen=True)
class Ended(Generic[Job, Answer]):
    """A job with its answer, or with what it raised; a WorkerError when its worker died."""

    job: Job
    answer: Answer | None
    error: Exception | None


class WorkerPool(Generic[Job, Answer]):
    """Processes that all do the same work; a context manager, because they are to be ended.

    `work` is a function of a module, or a partial of one. `variables` gives the environment of the worker at a place.
    """

    def __init__(
        self,
        work: Callable[[Job], Answer],
        workers: int,
        *,
        variables: Callable[[int], Mapping[str, str]] | None = None,
    ) -> None:
        self.workers = workers
        self._work = work
        self._variables = variables or (lambda slot: {})
        self._slots = list(range(workers))
        """Places without a worker: one is started when there is work for it."""
        self._free: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Job]] = {}

    def __enter__(self) -> WorkerPool[Job, Answer]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in [*self._free, *(worker for worker, _ in self._busy.values())]:
            worker.end()

    def has_room(self) -> bool:
        """Whether a job can be given without waiting."""
        return bool(self._free or self._slots)

    def submit(self, job: Job) -> None:
        """Give a job to a worker that is free."""
        worker = self._ready_worker()
        worker.link.send(job)
        self._busy[worker.link] = (worker, job)

    def ended(self, timeout: float) -> list[Ended[Job, Answer]]:
        """What ended since the last call; waits up to `timeout` seconds for something to end."""
        links = [link for link in wait(list(self._busy), timeout) if isinstance(link, Connection)]
        return [self._receive_answer(link) for link in links]

    def _ready_worker(self) -> _Worker:
        """One that waits for work, or a new one; a waiting one may have died meanwhile."""
        while self._free:
            worker = self._free.pop()
            if worker.is_alive():
                return worker
            worker.end()
            self._slots.append(worker.slot)
        slot = self._slots.pop(0)
        with environment(self._variables(slot)):
            return _Worker(slot, self._work)

    def _receive_answer(self, link: Connection) -> Ended[Job, Answer]:
        worker, job = self._busy.pop(link)
        try:
            done, value = link.recv()
        except (EOFError, OSError):
            reason = worker.describe_death()
            self._slots.append(worker.slot)
            return Ended(job, None, WorkerError(f"Its worker process ended {reason}."))
        self._free.append(worker)
        return Ended(job, value, None) if done else Ended(job, None, value)


def run_jobs(
    work: Callable[[Job], Answer],
    jobs: Sequence[Job],
    workers: int,
    *,
    name: Callable[[Job], str],
    on_poll: Callable[[], None] | None = None,
) -> Iterator[tuple[Job, Answer | None]]:
    """Every job once, as they end; the first that fails is raised and the others are stopped."""
    waiting, at_work = list(jobs), 0
    with WorkerPool[Job, Answer](work, min(workers, len(jobs))) as pool:
        while waiting or at_work:
            while waiting and pool.has_room():
                pool.submit(waiting.pop(0))
                at_work += 1
            ended = pool.ended(POLL_S)
            if on_poll:
                on_poll()
            for one in ended:
                at_work -= 1
                if isinstance(one.error, WorkerError):
                    raise WorkerError(
                        f"{name(one.job)}: {one.error} What is finished is kept: run the same command again, with fewer --jobs if memory is short."
                    ) from one.error
                if one.error is not None:
                    raise one.error
                yield one.job, one.answer


def tell_slide(bag_id: str) -> None:
    """Leave word of the slide that is worked on, for the case that this worker dies."""
    _note_place(0, bag_id)


def tell_reading(bag_id: str) -> None:
    """Leave word of the slide that is being read."""
    _note_place(1, bag_id)


def _end_with_parent() -> None:
    """This process is to die when its parent does, also when that is killed: it would go on unseen."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have gone before; and other systems have no such signal.
    threading.Thread(target=_wait_for_parent, name="gcemil-parent-watch", daemon=True).start()


def describe_exit(code: int | None, *, out_of_memory: bool = False) -> str:
    """How a process ended, in words."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    if name != "SIGKILL":
        return f"by signal {name}"
    return f"by signal {name}, {'' if out_of_memory else 'perhaps '}for want of memory"


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Variables that a process started inside inherits."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Worker:
    """One process, and the line to it."""

    def __init__(self, slot: int, work: Callable[[Any], Any]) -> None:
        self.slot = slot
        self.link, theirs = _SPAWN.Pipe()
        self._places = (_SPAWN.RawArray("c", _PLACE_BYTES), _SPAWN.RawArray("c", _PLACE_BYTES))
        self._killed_before = _memory_kills()
        self._process: SpawnProcess = _SPAWN.Process(
            target=_serve, args=(theirs, self._places), daemon=True, name=f"gcemil-worker-{slot}"
        )
        self._process.start()
        # With our copy closed, the line breaks when the worker dies.
        theirs.close()
        # Sent, not given at the start: receiving it imports torch, and by then the worker watches its parent.
        self.link.send(work)

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> int | None:
        """Stop the process if it still runs; its exit code."""
        self.link.close()
        self._process.terminate()
        self._process.join(LAST_WORDS_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        return self._process.exitcode

    def describe_death(self) -> str:
        """What ended it and where it was; for a worker whose line broke."""
        self._process.join(LAST_WORDS_S)
        code = self.end()
        reason = describe_exit(code, out_of_memory=_memory_kills() > self._killed_before)
        slide, reading = (place.value.decode(errors="replace") for place in self._places)
        if slide:
            reason += f", at slide '{slide}'"
        if reading and reading != slide:
            reason += f", while reading slide '{reading}'"
        return reason


def _serve(link: Connection, places: tuple[Any, Any]) -> None:
    """The life of a worker: a job in, its answer back, until the line breaks."""
    global _places
    # Ctrl-C reaches the whole group; the parent decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    _places = places
    try:
        function = link.recv()
    except EOFError:
        return
    while True:
        try:
            job = link.recv()
        except EOFError:
            return
        tell_slide("")
        tell_reading("")
        link.send(_run_job(function, job))


def _run_job(function: Callable[[Any], Any], job: Any) -> tuple[bool, Any]:
    """Whether the job succeeded, and its answer or what it raised."""
    try:
        return True, function(job)
    except Exception as error:  # raised again by whoever gave the job
        error.add_note("".join(traceback.format_exception(error)))
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:  # some exceptions cannot travel between processes
            return False, RuntimeError(f"{type(error).__name__}: {error}")
        return False, error


def _note_place(place: int, text: str) -> None:
    if _places is not None:
        _places[place].value = text.encode()[: _PLACE_BYTES - 1]


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _memory_kills() -> int:
    """Processes that Linux ended for want of memory, in our control group where it counts them."""
    with suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").split("::", 1)[1].splitlines()[0]
        return _count_kills(Path(f"/sys/fs/cgroup{group}/memory.events"))
    with suppress(OSError, ValueError):
        return _count_kills(Path("/proc/vmstat"))
    return 0


def _count_kills(path: Path) -> int:
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return sum(int(words[1]) for words in lines if words[0] == "oom_kill")
