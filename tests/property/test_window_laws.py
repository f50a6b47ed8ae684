"""Laws of the windows of an epoch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gcemil.tasks.task import event_balanced_windows, shuffled_windows

events_with_one = st.lists(st.booleans(), min_size=1, max_size=80).filter(any).map(np.array)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(events=events_with_one, window_size=st.integers(2, 40), generator=seeds)
def test_every_bag_is_in_exactly_one_window(events, window_size, generator):
    windows = event_balanced_windows(events, window_size=window_size, generator=generator)
    assert sorted(np.concatenate(windows).tolist()) == list(range(len(events)))


@given(events=events_with_one, window_size=st.integers(2, 40), generator=seeds)
def test_windows_respect_the_size_and_differ_by_at_most_one(events, window_size, generator):
    sizes = [
        len(w) for w in event_balanced_windows(events, window_size=window_size, generator=generator)
    ]
    assert max(sizes) <= window_size
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-len(events) // window_size)


@given(events=events_with_one, window_size=st.integers(2, 40), generator=seeds)
def test_every_window_has_an_event_when_there_are_as_many_events_as_windows(
    events, window_size, generator
):
    windows = event_balanced_windows(events, window_size=window_size, generator=generator)
    counts = [int(events[window].sum()) for window in windows]
    assert min(counts) >= min(1, int(events.sum()) // len(windows))
    assert max(counts) - min(counts) <= 1


@given(n_bags=st.integers(0, 80), window_size=st.integers(1, 40), generator=seeds)
def test_shuffled_windows_hold_every_bag_once(n_bags, window_size, generator):
    windows = shuffled_windows(n_bags, window_size=window_size, generator=generator)
    assert sorted(int(bag) for window in windows for bag in window) == list(range(n_bags))
    assert all(len(window) <= window_size for window in windows)
