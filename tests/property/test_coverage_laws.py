"""Laws of the noisy-OR utility, for gates and responses that include exact 0 and 1."""

from itertools import combinations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from builders.strategies import UNITS, anchored_bags
from gcemil.diagnostics.bounds import greedy_bound_factor, total_curvature
from gcemil.evidence.coverage import anchor_coverage, marginal_gains, utility
from gcemil.recovery import greedy_subset


def with_gate(gates: Tensor, patch: int, value: float) -> Tensor:
    changed = gates.clone()
    changed[patch] = value
    return changed


def best_utility(responses: Tensor, weights: Tensor, size: int) -> float:
    """The largest utility of any subset of that size, by trying them all."""
    subsets = torch.tensor(list(combinations(range(len(responses)), size)))
    return float(((1 - (1 - responses[subsets]).prod(dim=1)) @ weights).max())


@settings(deadline=None)
@given(anchored_bags())
def test_coverage_is_a_probability_and_the_product_form(bag):
    gates, responses, _ = bag
    coverage = anchor_coverage(gates, responses)
    assert bool(((coverage >= 0) & (coverage <= 1)).all())
    product = 1 - (1 - gates.unsqueeze(1) * responses).prod(dim=0)
    torch.testing.assert_close(coverage, product, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(anchored_bags(), st.data())
def test_opening_a_gate_never_lowers_coverage(bag, data):
    gates, responses, _ = bag
    patch = data.draw(st.integers(0, len(gates) - 1))
    wider = with_gate(gates, patch, max(float(gates[patch]), data.draw(UNITS)))
    assert bool(
        (anchor_coverage(wider, responses) >= anchor_coverage(gates, responses) - 1e-12).all()
    )


@settings(deadline=None)
@given(anchored_bags())
def test_a_patch_gains_less_in_a_larger_set(bag):
    gates, responses, weights = bag
    smaller = (gates > 0.5).double()
    larger = (gates > 0.0).double()
    gains_in_smaller = marginal_gains(smaller, responses, weights)
    gains_in_larger = marginal_gains(larger, responses, weights)
    assert bool((gains_in_larger <= gains_in_smaller + 1e-12).all())


@settings(deadline=None)
@given(anchored_bags())
def test_marginal_gain_is_utility_on_minus_utility_off(bag):
    gates, responses, weights = bag
    gains = marginal_gains(gates, responses, weights)
    for patch, gain in enumerate(gains):
        on = utility(with_gate(gates, patch, 1.0), responses, weights)
        off = utility(with_gate(gates, patch, 0.0), responses, weights)
        assert abs(float(on - off - gain)) <= 1e-9


@settings(deadline=None)
@given(anchored_bags())
def test_gradient_of_the_utility_is_the_marginal_gain(bag):
    gates, responses, weights = bag
    (gradient,) = torch.autograd.grad(utility(gates.requires_grad_(), responses, weights), gates)
    torch.testing.assert_close(gradient, marginal_gains(gates.detach(), responses, weights))


@settings(deadline=None)
@given(anchored_bags(max_patches=12), st.data())
def test_greedy_keeps_its_guarantee_against_every_subset(bag, data):
    _, responses, weights = bag
    size = data.draw(st.integers(1, len(responses)))
    best = best_utility(responses, weights, size)
    greedy = float(utility(greedy_subset(responses, weights, size).double(), responses, weights))
    curvature = total_curvature(responses, weights)
    assert 0.0 <= curvature <= 1.0
    factor = greedy_bound_factor(curvature)
    assert factor >= greedy_bound_factor(1.0)
    assert greedy >= factor * best - 1e-9


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0), st.sampled_from([1e-6, 1e-3, 0.1, 1.0]))
def test_float32_follows_float64_at_fifty_thousand_patches(seed, certain_share, scale):
    generator = torch.Generator().manual_seed(seed)
    gates = torch.rand(50_000, generator=generator)
    responses = scale * torch.rand(50_000, 8, generator=generator)
    certain = torch.rand(50_000, generator=generator) < certain_share * 1e-4
    gates[certain], responses[certain, 0] = 1.0, 1.0
    weights = torch.rand(8, generator=generator)
    for law in (lambda g, r, w: anchor_coverage(g, r), marginal_gains):
        single = law(gates, responses, weights)
        double = law(gates.double(), responses.double(), weights.double())
        torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)
