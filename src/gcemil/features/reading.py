"""Reader threads: batches of patches, slide after slide, ahead of the model.

One slide is open at a time; `workers` threads read the parts of its next batches. The model takes whole batches from a short
queue, so it waits for pixels only when reading as such is slower. OpenSlide and Pillow give up Python's lock while they decode
and resample, which is why threads are enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from gcemil.bags.loader import run_ahead
from gcemil.features.patching import read_patch_file
from gcemil.slides.grid import PatchBatch, PatchGrid, read_patches
from gcemil.slides.reader import SlideReader, open_slide

_BATCHES_AHEAD = 2
"""Batches that wait for the model, beside as many that are being read."""


@dataclass(frozen=True)
class SlideJob:
    """A slide to read, and the file that says where its patches lie."""

    slide_id: str
    path: Path
    patches: Path


@dataclass(frozen=True, eq=False)
class SlideEnd:
    """All batches of a slide were handed out, or its reading failed."""

    job: SlideJob
    grid: PatchGrid | None = None
    error: Exception | None = None


def read_ahead(
    jobs: Iterable[SlideJob], *, batch_size: int, patch_px: int, workers: int
) -> Generator[PatchBatch | SlideEnd, None, None]:
    """Every batch of every slide in order, each slide closed by its SlideEnd; close the iterator to stop early."""
    slides = _read_slides(jobs, batch_size=batch_size, patch_px=patch_px, workers=workers)
    # The thread makes one more while as many as may wait are waiting.
    return run_ahead(slides, _BATCHES_AHEAD + 1)


def _read_slides(
    jobs: Iterable[SlideJob], *, batch_size: int, patch_px: int, workers: int
) -> Generator[PatchBatch | SlideEnd, None, None]:
    with ThreadPoolExecutor(workers, thread_name_prefix="patch-reader") as readers:
        for job in jobs:
            try:
                grid = read_patch_file(job.patches)
                # The pixel size that placed the patches, not the one the file may state.
                with (
                    open_slide(job.path, mpp=grid.mpp) as slide,
                    closing(
                        read_batches(
                            slide, grid, readers, batch_size=batch_size, patch_px=patch_px, workers=workers
                        )
                    ) as batches,
                ):
                    yield from batches
                end = SlideEnd(job, grid)
            except (
                Exception
            ) as error:  # Whatever a damaged slide does to a library is that slide's own matter.
                end = SlideEnd(job, error=error)
            yield end


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
                [readers.submit(read_patches, slide, grid, part, patch_px) for part in parts if len(part)]
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


def _join_parts(parts: list[Future[PatchBatch]]) -> PatchBatch:
    return np.concatenate([part.result() for part in parts])
