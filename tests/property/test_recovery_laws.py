"""Laws of recovery: it ends for the reason it gives, and the order of the patches does not matter."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from builders.strategies import UNITS, anchored_bags
from gcemil.evidence.coverage import anchor_coverage, marginal_gains
from gcemil.recovery import Recovery, StopReason, recover, subset_size

bags = anchored_bags(max_patches=20, max_weight=1.0)
options = st.fixed_dictionaries(
    {
        "coverage_target": st.floats(0.01, 1.0),
        "max_fraction": st.floats(0.01, 1.0),
        "reachable": st.booleans(),
        "min_weight_share": UNITS,
    }
)


def gains_left(recovery: Recovery, responses: Tensor, weights: Tensor, chosen: dict) -> Tensor:
    counts = weights >= chosen["min_weight_share"] * weights.max()
    gains = marginal_gains(recovery.selected.double(), responses, weights * counts)
    return gains[~recovery.selected]


@settings(deadline=None)
@given(bags, options)
def test_recovery_ends_for_the_reason_it_gives(bag, chosen):
    gates, responses, weights = bag
    recovery = recover(gates, responses, weights, **chosen)
    size, cap = int(recovery.selected.sum()), subset_size(len(gates), chosen["max_fraction"])
    covered = bool((recovery.coverage >= recovery.targets).all())
    overfull = int((gates > 0.5).sum()) > cap
    assert 1 <= size <= cap
    match recovery.stop_reason:
        case StopReason.COVERED:
            assert covered
        case StopReason.CAPPED:
            assert size == cap
            assert overfull or not covered
        case StopReason.NO_GAIN:
            assert not covered
            assert float(gains_left(recovery, responses, weights, chosen).max()) <= 1e-300
        case StopReason.EXHAUSTED:
            assert not covered
            assert bool(recovery.selected.all())


@settings(deadline=None)
@given(bags, options)
def test_reported_coverage_is_that_of_the_subset(bag, chosen):
    gates, responses, weights = bag
    recovery = recover(gates, responses, weights, **chosen)
    expected = anchor_coverage(recovery.selected.double(), responses)
    torch.testing.assert_close(recovery.coverage, expected, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(bags, options)
def test_selected_is_the_threshold_and_what_was_added(bag, chosen):
    gates, responses, weights = bag
    recovery = recover(gates, responses, weights, **chosen)
    start = recovery.selected.clone()
    start[recovery.added] = False
    thresholded = gates > 0.5
    assert int(start.sum()) + len(recovery.added) == int(recovery.selected.sum())
    assert not bool((start & ~thresholded).any()) or (
        not bool(thresholded.any()) and int(start.sum()) == 1
    )
    assert bool((recovery.gains > 0).all())


@settings(deadline=None)
@given(bags, options)
def test_repair_takes_the_steps_of_recomputing_every_marginal(bag, chosen):
    gates, responses, weights = bag
    recovery = recover(gates, responses, weights, **chosen)
    used = weights * (weights >= chosen["min_weight_share"] * weights.max())
    selected = recovery.selected.clone()
    selected[recovery.added] = False
    for patch, gain in zip(recovery.added.tolist(), recovery.gains.tolist(), strict=True):
        gains = marginal_gains(selected.double(), responses, used).masked_fill(selected, -1.0)
        assert abs(float(gains[patch]) - gain) <= 1e-9
        assert float(gains.max()) <= gain + 1e-9
        # Only patches that tie up to rounding may come later in the bag than the one taken.
        assert not bool((gains[:patch] > gain + 1e-9).any())
        selected[patch] = True


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.floats(0.1, 1.0), options)
def test_permuting_the_patches_permutes_the_evidence(seed, n_patches, scale, chosen):
    generator = torch.Generator().manual_seed(seed)
    gates = torch.rand(n_patches, generator=generator, dtype=torch.float64)
    responses = scale * torch.rand(n_patches, 3, generator=generator, dtype=torch.float64)
    weights = torch.rand(3, generator=generator, dtype=torch.float64)
    assume(chosen["coverage_target"] < 1.0)
    order = torch.randperm(n_patches, generator=generator)
    recovery = recover(gates, responses, weights, **chosen)
    permuted = recover(gates[order], responses[order], weights, **chosen)
    assert torch.equal(permuted.selected, recovery.selected[order])
    assert order[permuted.added].tolist() == recovery.added.tolist()
    assert permuted.stop_reason is recovery.stop_reason


@settings(deadline=None)
@given(bags, options, st.data())
def test_a_shortlist_confines_what_repair_adds(bag, chosen, data):
    gates, responses, weights = bag
    shortlist = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=len(gates), max_size=len(gates)))
    )
    recovery = recover(gates, responses, weights, shortlist=shortlist, **chosen)
    assert bool(shortlist[recovery.added].all())
    if recovery.stop_reason is StopReason.EXHAUSTED:
        assert not bool((shortlist & ~recovery.selected).any())
