"""One epoch as windows of bags: every bag exactly once, window sizes differing by at most one.

One optimiser step takes one window. Equal sizes matter for Cox: a last window of one bag has a constant likelihood.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

from gcemil.errors import InputError, UsageError


def shuffled_windows(
    n_bags: int, *, window_size: int, generator: np.random.Generator
) -> list[Int[np.ndarray, "_"]]:
    """Random windows of at most `window_size` bag indices."""
    if window_size < 1:
        raise UsageError(f"A window holds at least one bag, got window_size={window_size}.")
    return _dealt(generator.permutation(n_bags), window_size, generator)


def event_balanced_windows(
    events: Bool[np.ndarray, "n"], *, window_size: int, generator: np.random.Generator
) -> list[Int[np.ndarray, "_"]]:
    """Random windows with event counts differing by at most one: none is eventless unless events are too few."""
    if window_size < 2:
        raise UsageError(
            f"The Cox loss of one bag is constant, so a survival window needs at least 2 bags, got {window_size}."
        )
    if not events.any():
        raise InputError(
            f"None of {len(events)} bags has an event, so Cox has nothing to learn. Use another split."
        )
    events_first = np.concatenate(
        [generator.permutation(np.flatnonzero(events)), generator.permutation(np.flatnonzero(~events))]
    )
    return _dealt(events_first, window_size, generator)


def _dealt(
    order: Int[np.ndarray, "n"], window_size: int, generator: np.random.Generator
) -> list[Int[np.ndarray, "_"]]:
    """The bags dealt like cards, one to each window in turn; windows and their contents in random order."""
    n_windows = -(-len(order) // window_size)
    return [generator.permutation(order[first::n_windows]) for first in generator.permutation(n_windows)]
