"""Bags in order, read ahead by a thread, never more in memory than a bounded number of bags and of bytes.

Batches are lists: bags are never stacked or padded. What is sampled depends on seed, epoch and bag alone, so a resumed
run and an uninterrupted one see the same patches.

A training step sees sorted rows from a seeded generator: single patches, or random 4x4 blocks of the patch grid, so that neighbours
exist in a sample of 512. Rows stay sorted because several hosts read raster order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Int

from gcemil.bags.bag import Bag, CoordRows, RowIndex, coordinate_step
from gcemil.bags.cohort import BagSpec, Cohort

_BLOCK_SIDE = 4


Sampling = Literal["blocks", "patches"]
T = TypeVar("T")
HELD_BYTES = 256 * 2**20
"""Held in memory, beyond which nothing further is read ahead."""


def sample_patches(n_patches: int, limit: int, generator: np.random.Generator) -> RowIndex:
    """At most `limit` patches, each equally likely."""
    if n_patches <= limit:
        return np.arange(n_patches)
    return np.sort(generator.choice(n_patches, size=limit, replace=False))


def sample_blocks(coords: CoordRows, step: int, limit: int, generator: np.random.Generator) -> RowIndex:
    """At most `limit` patches as whole random 4x4 blocks of the grid; the last block is cut to the limit."""
    if len(coords) <= limit:
        return np.arange(len(coords))
    block = find_blocks(coords, step)
    rank = generator.permutation(block.max() + 1)[block]
    return np.sort(np.argsort(rank, kind="stable")[:limit])


def find_blocks(coords: CoordRows, step: int) -> Int[np.ndarray, "n"]:
    """A number per patch, equal for patches of one 4x4 block."""
    cells = coords // (step * _BLOCK_SIDE)
    _, block = np.unique(cells, axis=0, return_inverse=True)
    return np.asarray(block).reshape(-1)


@dataclass(frozen=True)
class SampleRule:
    """At most `limit` patches per bag, in blocks of the grid or one by one; None means all patches."""

    limit: int | None = None
    sampling: Sampling = "blocks"
    seed: int = 0


def load_bags(
    cohort: Cohort, specs: Sequence[BagSpec], *, rule: SampleRule, epoch: int = 0, ahead: int = 4
) -> Iterator[tuple[BagSpec, Bag]]:
    """Each bag once, in the order given; at most `ahead` wait in memory, and none beside a bag that is large."""
    # Not a loop with variables, which would keep a bag alive while the thread waits for its next turn.
    pairs = ((spec, read_sampled_bag(cohort, spec, rule=rule, epoch=epoch)) for spec in specs)
    with closing(run_ahead(pairs, ahead, size=lambda pair: pair[1].features.nbytes)) as ready:
        yield from ready


def run_ahead(
    items: Generator[T, None, None], ahead: int, *, size: Callable[[T], int] = lambda item: 0
) -> Generator[T, None, None]:
    """The same items, made by a thread: at most `ahead` wait, and none is made beyond HELD_BYTES. Close it to stop early."""
    waiting: deque[tuple[T | Exception | None, int]] = deque()
    turn = threading.Condition()
    # The item taken last counts as held until the next one is wanted.
    in_use, stopped = 0, False

    def has_room() -> bool:
        held = in_use + sum(n_bytes for _, n_bytes in waiting)
        return stopped or (len(waiting) < max(1, ahead) and held < HELD_BYTES)

    def put(item: T | Exception | None, n_bytes: int = 0) -> None:
        with turn:
            waiting.append((item, n_bytes))
            turn.notify_all()

    def make_all() -> None:
        try:
            while True:
                with turn:
                    turn.wait_for(has_room)
                    if stopped:
                        return
                item = next(items)
                put(item, size(item))
                del item
        except StopIteration:
            put(None)
        except Exception as error:  # handed to the reader of the iterator, who raises it
            put(error)
        finally:
            items.close()

    thread = threading.Thread(target=make_all, name="gcemil-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            with turn:
                in_use = 0
                turn.notify_all()
                turn.wait_for(lambda: bool(waiting))
                item, in_use = waiting.popleft()
                turn.notify_all()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
            del item
    finally:
        with turn:
            stopped = True
            turn.notify_all()
        thread.join()


def read_sampled_bag(cohort: Cohort, spec: BagSpec, *, rule: SampleRule, epoch: int) -> Bag:
    """The bag, restricted to the patches that this seed and epoch draw for it."""
    layout = cohort.layout(spec)
    if rule.limit is None or len(layout) <= rule.limit:
        return cohort.read_bag(spec, layout)
    generator = np.random.default_rng([rule.seed, epoch, *spec.bag_id.encode()])
    if rule.sampling == "blocks" and layout.coords is not None:
        step = layout.patch_size or coordinate_step(layout.coords)
        rows = sample_blocks(layout.coords, step, rule.limit, generator)
    else:
        rows = sample_patches(len(layout), rule.limit, generator)
    return cohort.read_bag(spec, layout, rows)
