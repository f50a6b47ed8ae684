"""Reader threads: batches of patches, slide after slide, ahead of the model.

A feeder opens one slide at a time, lets `workers` threads read the parts of its next batches, and puts whole batches into a short
queue. The model takes them from there, so it waits for pixels only when reading as such is slower. OpenSlide and Pillow give up
Python's lock while they decode and resample, which is why threads are enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread

import numpy as np
from jaxtyping import Int

from gcemil.bags.patching import read_patch_file
from gcemil.slides.grid import PatchBatch, PatchGrid, patch_batches
from gcemil.slides.reader import SlideReader, open_slide

_BATCHES_AHEAD = 2
"""Batches that wait for the model, beside as many that are being read."""
POLL_S = 0.1


@dataclass(frozen=True)
class SlideJob:
    """A slide to read, and the file that says where its patches lie."""

    slide_id: str
    path: Path
    patches: Path


@dataclass(frozen=True, eq=False)
class SlideBatch:
    """The next patches of a slide, in the order of its grid."""

    slide_id: str
    pixels: PatchBatch


@dataclass(frozen=True, eq=False)
class SlideEnd:
    """All batches of a slide were handed out, or its reading failed."""

    job: SlideJob
    grid: PatchGrid | None = None
    error: Exception | None = None


Item = SlideBatch | SlideEnd


def read_ahead(
    jobs: Iterable[SlideJob], *, batch_size: int, patch_px: int, workers: int
) -> Generator[Item, None, None]:
    """Every batch of every slide in order, each slide closed by its SlideEnd; close the iterator to stop early."""
    waiting: Queue[Item | None] = Queue(maxsize=_BATCHES_AHEAD)
    stop = Event()
    with ThreadPoolExecutor(workers, thread_name_prefix="patch-reader") as readers:
        feeder = Thread(
            target=_feed_batches,
            args=(list(jobs), waiting, stop, readers, batch_size, patch_px, workers),
            daemon=True,
        )
        feeder.start()
        try:
            yield from _take_items(waiting, feeder)
        finally:
            stop.set()
            feeder.join()


def read_batches(
    slide: SlideReader,
    grid: PatchGrid,
    readers: ThreadPoolExecutor,
    *,
    batch_size: int,
    patch_px: int,
    workers: int,
    rows: Int[np.ndarray, "k"] | None = None,
) -> Generator[PatchBatch, None, None]:
    """The patches of an open slide, or these rows of its grid, each batch read by all threads together."""
    wanted = np.arange(len(grid)) if rows is None else rows
    pending: deque[list[Future[PatchBatch]]] = deque()
    try:
        for start in range(0, len(wanted), batch_size):
            parts = np.array_split(wanted[start : start + batch_size], workers)
            pending.append(
                [readers.submit(_read_rows, slide, grid, part, patch_px) for part in parts if len(part)]
            )
            if len(pending) > _BATCHES_AHEAD:
                yield _join_parts(pending[0])
                pending.popleft()
        while pending:
            yield _join_parts(pending[0])
            pending.popleft()
    finally:
        # A slide must not be closed under a thread that still reads it.
        left = [future for batch in pending for future in batch]
        for future in left:
            future.cancel()
        wait(left)


def _take_items(waiting: Queue[Item | None], feeder: Thread) -> Iterator[Item]:
    while True:
        try:
            item = waiting.get(timeout=1.0)
        except Empty:
            if feeder.is_alive():
                continue
            return
        if item is None:
            return
        yield item


def _feed_batches(
    jobs: list[SlideJob],
    waiting: Queue[Item | None],
    stop: Event,
    readers: ThreadPoolExecutor,
    batch_size: int,
    patch_px: int,
    workers: int,
) -> None:
    for job in jobs:
        try:
            grid = read_patch_file(job.patches)
            # The pixel size that placed the patches, not the one the file may state.
            with open_slide(job.path, mpp=grid.mpp) as slide:
                batches = read_batches(
                    slide, grid, readers, batch_size=batch_size, patch_px=patch_px, workers=workers
                )
                with closing(batches):
                    for pixels in batches:
                        if not _put_item(waiting, SlideBatch(job.slide_id, pixels), stop):
                            return
            end = SlideEnd(job, grid)
        except Exception as error:  # Whatever a damaged slide does to a library is that slide's own matter.
            end = SlideEnd(job, error=error)
        if not _put_item(waiting, end, stop):
            return
    _put_item(waiting, None, stop)


def _put_item(waiting: Queue[Item | None], item: Item | None, stop: Event) -> bool:
    """Wait for a free place, but not for a consumer that has left."""
    while not stop.is_set():
        try:
            waiting.put(item, timeout=POLL_S)
            return True
        except Full:
            continue
    return False


def _read_rows(slide: SlideReader, grid: PatchGrid, rows: Int[np.ndarray, "k"], patch_px: int) -> PatchBatch:
    return next(patch_batches(slide, grid, len(rows), rows=rows, patch_px=patch_px))


def _join_parts(parts: list[Future[PatchBatch]]) -> PatchBatch:
    return np.concatenate([part.result() for part in parts])
