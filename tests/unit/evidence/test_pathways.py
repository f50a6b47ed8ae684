"""The Cox log-risk as a signed sum over covered pathways."""

import pytest
import torch

from gcemil.evidence.coverage import WEIGHT_GAIN, RiskPathways, anchor_coverage, marginal_gains


def pathways(*effects: float) -> RiskPathways:
    head = RiskPathways(len(effects))
    with torch.no_grad():
        head.raw_effects.copy_(torch.tensor(effects) / WEIGHT_GAIN)
    return head


def test_an_untrained_head_gives_every_slide_the_same_risk():
    assert RiskPathways(3)(torch.tensor([0.1, 0.5, 1.0])).tolist() == pytest.approx([0.0])


def test_log_risk_adds_harmful_and_subtracts_protective_pathways():
    head = pathways(2.0, -1.0)
    coverage = torch.tensor([0.75, 0.5])
    assert head(coverage).tolist() == pytest.approx([1.0])
    assert head.contributions(coverage).tolist() == pytest.approx([1.5, -0.5])


def test_repair_weights_forget_the_sign():
    assert pathways(2.0, -3.0).anchor_weights.tolist() == [pytest.approx([2.0, 3.0])]


def test_a_second_patch_of_a_covered_pathway_adds_less_risk_than_a_new_pathway():
    head = pathways(1.0, 1.0)
    responses = torch.tensor([[0.9, 0.0], [0.9, 0.0], [0.0, 0.9]])
    gains = marginal_gains(torch.tensor([1.0, 0.0, 0.0]), responses, head.effects.detach())
    torch.testing.assert_close(gains, torch.tensor([0.9, 0.09, 0.9]))


def test_effects_learn_from_the_first_step():
    head = RiskPathways(2)
    coverage = anchor_coverage(torch.tensor([1.0]), torch.tensor([[0.25, 0.5]]))
    head(coverage).sum().backward()
    assert head.raw_effects.grad.tolist() == pytest.approx([0.25 * WEIGHT_GAIN, 0.5 * WEIGHT_GAIN])
