import numpy as np
import pytest

from gcemil.errors import InputError, UsageError
from gcemil.tasks.task import event_balanced_windows


def test_the_same_generator_state_gives_the_same_windows_and_another_seed_does_not():
    events = np.arange(40) % 3 == 0

    def epoch(seed: int) -> list[list[int]]:
        generator = np.random.default_rng(seed)
        return [
            window.tolist()
            for window in event_balanced_windows(events, window_size=8, generator=generator)
        ]

    assert epoch(1) == epoch(1)
    assert epoch(1) != epoch(2)


def test_33_bags_in_windows_of_32_leave_no_window_of_one():
    windows = event_balanced_windows(
        np.ones(33, dtype=bool), window_size=32, generator=np.random.default_rng(0)
    )
    assert sorted(len(window) for window in windows) == [16, 17]


def test_two_events_among_twenty_bags_reach_both_windows():
    events = np.zeros(20, dtype=bool)
    events[[3, 4]] = True
    windows = event_balanced_windows(events, window_size=10, generator=np.random.default_rng(0))
    assert [int(events[window].sum()) for window in windows] == [1, 1]


def test_a_survival_window_of_one_bag_is_refused():
    with pytest.raises(UsageError, match="at least 2 bags, got 1"):
        event_balanced_windows(np.array([True]), window_size=1, generator=np.random.default_rng(0))


def test_windows_without_any_event_are_refused():
    with pytest.raises(InputError, match="None of 3 bags has an event"):
        event_balanced_windows(
            np.zeros(3, dtype=bool), window_size=2, generator=np.random.default_rng(0)
        )
