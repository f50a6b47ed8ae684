"""Coverage of toys that can be worked out on paper."""

import math

import pytest
import torch

from gcemil.evidence.coverage import (
    WEIGHT_GAIN,
    ClassUtility,
    RiskPathways,
    anchor_coverage,
    coverage_rate,
    marginal_gains,
)


def test_tiny_responses_of_many_patches_add_up_in_float32():
    # The product of factors 1 - 1e-9 would stay at 1 for ever in float32.
    responses = torch.full((100_000, 1), 1e-9)
    assert float(anchor_coverage(torch.ones(100_000), responses)) == pytest.approx(1e-4, rel=1e-3)


def test_hundred_thousand_strong_patches_saturate_without_nan():
    responses = torch.full((100_000, 2), 0.9)
    responses[7, 1] = 1.0
    open_gates = torch.ones(100_000)
    assert anchor_coverage(open_gates, responses).tolist() == [1.0, 1.0]
    assert marginal_gains(open_gates, responses, torch.ones(2)).tolist() == [0.0] * 100_000


def test_the_rate_is_the_coverage_per_open_patch_in_logs():
    gates, responses = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([[0.5], [0.75], [0.9]])
    # 1 - v = 1/2 * 1/4, over two open patches.
    assert float(coverage_rate(gates, responses)) == pytest.approx(math.log(8) / 2)


def test_the_rate_does_not_grow_with_the_slide_and_stays_finite():
    one, many = torch.tensor([[0.3, 1.0]]), torch.tensor([[0.3, 1.0]]).expand(100_000, 2)
    small, large = coverage_rate(torch.ones(1), one), coverage_rate(torch.ones(100_000), many)
    torch.testing.assert_close(small, large, rtol=1e-3, atol=0)
    assert bool(torch.isfinite(large).all())
    assert coverage_rate(torch.zeros(3), torch.ones(3, 2)).tolist() == pytest.approx([0.0, 0.0])


def test_classes_are_read_off_rates_standardised_by_the_bags_seen():
    head = ClassUtility(2, 1)
    with torch.no_grad():
        head.raw_weights.copy_(torch.tensor([[1.0], [2.0]]).expm1().log() / WEIGHT_GAIN)
        head.bias.copy_(torch.tensor([0.0, -1.0]))
    for rate in (1.0, 3.0):
        head.logits(torch.tensor([rate]))
    head.eval()
    # Mean 2, deviation 1: a rate of 4 lies two deviations above.
    torch.testing.assert_close(head.logits(torch.tensor([4.0])), torch.tensor([2.0, 3.0]))
    assert head.rate_scale.mean.tolist() == pytest.approx([2.0])


# Risk pathways


def pathways(*effects: float) -> RiskPathways:
    head = RiskPathways(len(effects))
    with torch.no_grad():
        head.raw_effects.copy_(torch.tensor(effects) / WEIGHT_GAIN)
    return head


def test_log_risk_adds_harmful_and_subtracts_protective_pathways():
    head = pathways(2.0, -1.0)
    coverage = torch.tensor([0.75, 0.5])
    assert head(coverage).tolist() == pytest.approx([1.0])
    assert head.contributions(coverage).tolist() == pytest.approx([1.5, -0.5])


def test_repair_weights_forget_the_sign():
    assert pathways(2.0, -3.0).anchor_weights.tolist() == [pytest.approx([2.0, 3.0])]
