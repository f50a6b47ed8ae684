"""Bags in order, read ahead by a thread, never more than a bounded number in memory.

Batches are lists: bags are never stacked or padded. What is sampled depends on seed, epoch and bag alone, so a resumed
run and an uninterrupted one see the same patches.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gcemil.bags.bag import Bag, coordinate_step
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.sampling import sampled_blocks, sampled_patches
from gcemil.processes import tell_reading, tell_slide

Sampling = Literal["blocks", "patches"]


@dataclass(frozen=True)
class SampleRule:
    """At most `limit` patches per bag, in blocks of the grid or one by one; None means all patches."""

    limit: int | None = None
    sampling: Sampling = "blocks"
    seed: int = 0


def load_bags(
    cohort: Cohort, specs: Sequence[BagSpec], *, rule: SampleRule, epoch: int = 0, ahead: int = 4
) -> Iterator[tuple[BagSpec, Bag]]:
    """Each bag once, in the order given; at most `ahead` wait in memory."""
    ready: queue.Queue[tuple[BagSpec, Bag] | Exception | None] = queue.Queue(maxsize=max(1, ahead))
    stop = threading.Event()

    def put(item: tuple[BagSpec, Bag] | Exception | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read_all() -> None:
        try:
            for spec in specs:
                tell_reading(spec.bag_id)
                bag = sampled_bag(cohort, spec, rule=rule, epoch=epoch)
                tell_reading("")
                if not put((spec, bag)):
                    return
            put(None)
        except Exception as error:  # handed to the reader of the iterator, who raises it
            put(error)

    thread = threading.Thread(target=read_all, name="gcemil-loader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            tell_slide(item[0].bag_id)
            yield item
    finally:
        stop.set()
        thread.join()


def sampled_bag(cohort: Cohort, spec: BagSpec, *, rule: SampleRule, epoch: int) -> Bag:
    """The bag, restricted to the patches that this seed and epoch draw for it."""
    layout = cohort.layout(spec)
    if rule.limit is None or len(layout) <= rule.limit:
        return cohort.read_bag(spec, layout)
    generator = np.random.default_rng([rule.seed, epoch, *spec.bag_id.encode()])
    if rule.sampling == "blocks" and layout.coords is not None:
        step = layout.patch_size or coordinate_step(layout.coords)
        rows = sampled_blocks(layout.coords, step, rule.limit, generator)
    else:
        rows = sampled_patches(len(layout), rule.limit, generator)
    return cohort.read_bag(spec, layout, rows)
