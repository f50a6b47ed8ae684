"""Bags in order, read ahead by a thread, never more in memory than a bounded number of bags and of bytes.

Batches are lists: bags are never stacked or padded. What is sampled depends on seed, epoch and bag alone, so a resumed
run and an uninterrupted one see the same patches.

A training step sees sorted rows from a seeded generator: single patches, or random 4x4 blocks of the patch grid, so that neighbours
exist in a sample of 512. Rows stay sorted because several hosts read raster order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Int

from gcemil.bags.bag import Bag, CoordRows, RowIndex, coordinate_step
from gcemil.bags.cohort import BagSpec, Cohort

_BLOCK_SIDE = 4


Sampling = Literal["blocks", "patches"]
T = TypeVar("T")
HELD_BYTES = 256 * 2**20
"""About so much is read ahead, judged by the size of the bag before."""


def sample_patches(n_patches: int, limit: int, generator: np.random.Generator) -> RowIndex:
    """At most `limit` patches, each equally likely."""
    if n_patches <= limit:
        return np.arange(n_patches)
    return np.sort(generator.choice(n_patches, size=limit, replace=False))


def sample_blocks(
    coords: CoordRows, step: int, limit: int, generator: np.random.Generator
) -> RowIndex:
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
    items: Generator[T, None, None], ahead: int, *, size: Callable[[T], int]
) -> Generator[T, None, None]:
    """The same items, made by a thread: at most `ahead` wait, fewer where items are large. Close it to stop early."""
    end = object()
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="gcemil-read-ahead") as reader:
        try:
            while True:
                if not waiting:
                    waiting.append(reader.submit(next, items, end))
                item = waiting.popleft().result()
                if item is end:
                    return
                room = min(ahead, HELD_BYTES // max(1, size(item)))
                while len(waiting) < room:
                    waiting.append(reader.submit(next, items, end))
                yield item
                del item
        finally:
            reader.shutdown(cancel_futures=True)
            items.close()


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
