"""Growth down a ranking with a model whose output is the sum of what it is shown."""

import pytest
import torch

from gcemil.errors import UsageError
from gcemil.recovery.growth import GrowthEnd, grow_until_sufficient, smallest_faithful_prefix
from gcemil.recovery.recover import ranking, top_k

SHARES = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)


def shown(selected: torch.Tensor) -> float:
    return float(SHARES[selected].sum())


def indices(selected: torch.Tensor) -> list[int]:
    return selected.nonzero().flatten().tolist()


def test_growth_adds_by_rank_until_the_output_is_near_enough():
    growth = grow_until_sufficient(top_k(SHARES, 1), ranking(SHARES), shown, reference=1.0, tolerance=0.15)
    assert (indices(growth.selected), growth.end, growth.n_evaluated) == ([1, 2, 3], GrowthEnd.REACHED, 3)


def test_a_sufficient_start_is_left_alone():
    growth = grow_until_sufficient(top_k(SHARES, 3), ranking(SHARES), shown, reference=0.9, tolerance=0.01)
    assert (indices(growth.selected), growth.n_evaluated) == ([1, 2, 3], 1)


def test_growth_keeps_a_start_that_does_not_follow_the_ranking():
    start = torch.tensor([True, False, False, False])
    growth = grow_until_sufficient(start, ranking(SHARES), shown, reference=0.5, tolerance=0.01)
    assert indices(growth.selected) == [0, 1]


def test_growth_stops_at_its_cap():
    growth = grow_until_sufficient(
        top_k(SHARES, 1), ranking(SHARES), shown, reference=1.0, tolerance=0.01, max_fraction=0.5
    )
    assert (indices(growth.selected), growth.end) == ([1, 2], GrowthEnd.CAPPED)


def test_a_start_beyond_the_cap_is_judged_but_not_cut():
    growth = grow_until_sufficient(
        top_k(SHARES, 3), ranking(SHARES), shown, reference=0.9, tolerance=0.01, max_fraction=0.25
    )
    assert (indices(growth.selected), growth.end) == ([1, 2, 3], GrowthEnd.REACHED)


def test_a_reference_out_of_reach_exhausts_the_bag():
    growth = grow_until_sufficient(top_k(SHARES, 1), ranking(SHARES), shown, reference=2.0)
    assert (indices(growth.selected), growth.end) == ([0, 1, 2, 3], GrowthEnd.EXHAUSTED)


def test_the_prefix_is_the_smallest_that_is_sufficient_and_necessary():
    asked = []

    def complement_is_weak(selected: torch.Tensor) -> bool:
        asked.append(indices(selected))
        return shown(~selected) < 0.2

    growth = smallest_faithful_prefix(
        ranking(SHARES),
        shown,
        complement_is_weak,
        reference=1.0,
        tolerance=0.35,
        step_fraction=0.25,
        max_fraction=1.0,
    )
    # Two patches suffice (.7) but leave .3 behind; three leave .1.
    assert (indices(growth.selected), growth.end, growth.n_evaluated) == ([1, 2, 3], GrowthEnd.REACHED, 3)
    assert asked == [[1, 2], [1, 2, 3]]


def test_the_prefix_walks_in_steps_of_one_percent_up_to_ten():
    sizes = []

    def never(selected: torch.Tensor) -> float:
        sizes.append(int(selected.sum()))
        return 0.0

    growth = smallest_faithful_prefix(torch.arange(250), never, lambda _: True, reference=1.0)
    assert sizes == [2, 5, 8, 10, 12, 15, 18, 20, 22, 25]
    assert growth.end is GrowthEnd.CAPPED


def test_a_small_bag_tries_each_size_once():
    growth = smallest_faithful_prefix(torch.arange(20), lambda _: 0.0, lambda _: True, reference=1.0)
    assert growth.n_evaluated == 2


def test_the_whole_bag_has_no_complement_to_ask_about():
    def no_complement(selected: torch.Tensor) -> bool:
        raise AssertionError("asked about an empty complement")

    growth = smallest_faithful_prefix(torch.tensor([0]), lambda _: 1.0, no_complement, reference=1.0)
    assert (indices(growth.selected), growth.end) == ([0], GrowthEnd.REACHED)


def test_an_empty_start_is_refused():
    with pytest.raises(UsageError, match="Growth starts from at least one patch"):
        grow_until_sufficient(torch.zeros(4, dtype=torch.bool), ranking(SHARES), shown, reference=1.0)


def test_a_negative_tolerance_is_refused():
    with pytest.raises(UsageError, match="A tolerance is at least 0, got -0.1"):
        grow_until_sufficient(top_k(SHARES, 1), ranking(SHARES), shown, reference=1.0, tolerance=-0.1)


def test_a_step_beyond_the_cap_is_refused():
    with pytest.raises(UsageError, match=r"step_fraction lies in \(0, 0.1\]"):
        smallest_faithful_prefix(ranking(SHARES), shown, lambda _: True, reference=1.0, step_fraction=0.2)
