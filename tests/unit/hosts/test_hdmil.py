"""HDMIL: Chebyshev heads, the keep decision, its loss terms and the risk variant."""

import math

import pytest
import torch

from gcemil.hosts.hdmil import (
    BranchEmbedded,
    Hdmil,
    gumbel_kept,
    kept_or_best,
    kept_softmax,
    mismatch,
    straight_through_weights,
    union_rate,
)

LABEL = torch.tensor(1)


def small_host(n_outputs: int = 3, **options: object) -> Hdmil:
    torch.manual_seed(0)
    return Hdmil(10, n_outputs, **{"width": 6, "hidden": 5, "degree": 4, "dropout": 0.0, **options})


def bag_of(attention_logits: list[list[float]]) -> BranchEmbedded:
    torch.manual_seed(1)
    return BranchEmbedded(torch.rand(len(attention_logits), 6), torch.tensor(attention_logits))


def test_evaluation_pools_the_positive_patches_of_each_branch() -> None:
    host = small_host(2).eval()
    embedded = bag_of([[1.0, -1.0], [-1.0, 0.5], [2.0, -3.0]])
    first = torch.softmax(torch.tensor([1.0, 2.0]), dim=0) @ embedded.tokens[[0, 2]]
    features = torch.stack([first, embedded.tokens[1]]).unsqueeze(1)
    torch.testing.assert_close(
        host.aggregate(embedded, None).logits, host.bag_heads(features).flatten()
    )


def test_a_branch_that_keeps_none_keeps_its_best() -> None:
    logits = torch.tensor([[-1.0, 2.0], [-0.5, -1.0], [-3.0, 1.0]])
    assert kept_or_best(logits > 0, logits).tolist() == [
        [False, True],
        [True, False],
        [False, True],
    ]


def test_gate_weighs_the_patches_and_takes_part_in_the_keep_decision() -> None:
    host = small_host(1, gate_mode="deletion").eval()
    embedded = bag_of([[2.0], [-1.0], [2.0], [2.0]])
    # The last patch is closed far enough to be dropped; the second drops itself.
    gates = torch.tensor([0.25, 1.0, 0.75, 0.01])
    output = host.aggregate(embedded, None, log_gates=gates.log())
    by_hand = 0.25 * embedded.tokens[0] + 0.75 * embedded.tokens[2]
    torch.testing.assert_close(output.bag_feature, by_hand)


def test_gumbel_decision_is_hard_and_keeps_with_probability_sigmoid() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([-1.0, 0.0, 1.5]).expand(20_000, 3)
    kept = gumbel_kept(logits, logits)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(kept.mean(dim=0), torch.sigmoid(logits[0]), atol=0.02, rtol=0)


def test_straight_through_weights_equal_the_softmax_of_the_kept() -> None:
    logits, kept = torch.randn(9, 2), torch.rand(9, 2) > 0.5
    kept[0] = True
    torch.testing.assert_close(
        straight_through_weights(logits, kept.float()), kept_softmax(logits, kept)
    )


def test_dropped_patch_far_above_the_kept_ones_does_not_overflow() -> None:
    logits = torch.tensor([[500.0], [-300.0], [-300.0]], requires_grad=True)
    weights = straight_through_weights(logits, torch.tensor([[0.0], [1.0], [1.0]]))
    weights[1].sum().backward()
    assert weights.flatten().tolist() == pytest.approx([0.0, 0.5, 0.5])
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("branch", [0, 1, 2])
def test_kept_rate_counts_a_patch_kept_by_any_branch(branch: int) -> None:
    host = small_host(3, kept_rate=0.6).train()
    attention_logits = torch.full((8, 3), -60.0)
    attention_logits[:, branch] = 60.0
    embedded = BranchEmbedded(torch.rand(8, 6), attention_logits)
    losses = host.aggregate(embedded, None, target=LABEL).losses
    assert losses["kept_rate"].item() == pytest.approx(2 * 0.4**2, rel=1e-5)


def test_rate_loss_reaches_patches_that_several_branches_keep() -> None:
    kept = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    rate = union_rate(kept)
    assert rate.item() == pytest.approx(2 / 3)
    rate.backward()
    assert kept.grad is not None
    # The gradient of the sum: each branch of each patch in full, as the authors' code has it.
    assert kept.grad.flatten().tolist() == pytest.approx([1 / 3] * 6)


def test_joint_weights_sum_to_one_over_all_branches() -> None:
    logits, kept = torch.randn(9, 2), torch.rand(9, 2) > 0.5
    kept[0] = True
    jointly = straight_through_weights(logits, kept.float(), jointly=True)
    assert jointly.sum().item() == pytest.approx(1)
    torch.testing.assert_close(jointly / jointly.sum(dim=0), kept_softmax(logits, kept))


def test_mismatch_is_the_divergence_of_classes_and_the_squared_difference_of_risks() -> None:
    three_to_one, even = torch.tensor([math.log(3), 0.0]), torch.zeros(2)
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert mismatch(three_to_one, even).item() == pytest.approx(by_hand, rel=1e-5)
    assert mismatch(torch.tensor([2.0]), torch.tensor([0.5])).item() == pytest.approx(2.25)


def test_risk_has_no_instance_loss_and_a_full_bag_loss() -> None:
    host = small_host(1).train()
    losses = host(torch.randn(9, 10), target=torch.tensor([12.0, 1.0])).losses
    assert set(losses) == {"prediction_match", "feature_match", "kept_rate"}
    assert host.task_weights == {"bag": 1.0}
    assert not any(name.startswith("instance") for name, _ in host.named_parameters())
