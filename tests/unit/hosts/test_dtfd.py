from itertools import product
from math import log

import pytest
import torch

from gcemil.hosts.dtfd import (
    Dtfd,
    PseudoBagEmbedded,
    class_evidence,
    fingerprints,
    group_of,
)

GRID = 256 * torch.tensor(list(product(range(100), range(80))))


def toy_host(n_outputs=2, **options):
    """Width 1, both heads (-m, m), tier-2 attention uniform."""
    host = Dtfd(1, n_outputs, "deletion", width=1, hidden=1, **options).eval()
    with torch.no_grad():
        for head in (host.group_head, host.head):
            head.weight.copy_(
                torch.linspace(-1, 1, n_outputs).unsqueeze(1) if n_outputs > 1 else torch.ones(1, 1)
            )
            head.bias.zero_()
        host.bag_attention.score.weight.zero_()
    return host


def bag(tokens, attention_logits):
    column = torch.tensor(tokens).unsqueeze(1)
    return PseudoBagEmbedded(column, torch.tensor(attention_logits), fingerprints(column))


def coords_in_groups(groups, n_groups):
    """Coordinates whose hash puts the patches into the groups asked for."""
    places = {g: iter(GRID[group_of(GRID, n_groups) == g]) for g in set(groups)}
    return torch.stack([next(places[g]) for g in groups])


def test_each_group_pools_by_itself_and_the_second_tier_pools_the_groups():
    # Group 0 holds tokens 4 and 8 with weights 1/4 and 3/4: 7. Group 1 holds token 1. Tier 2 is their mean, 4.
    coords = coords_in_groups([0, 1, 0], 2)
    output = toy_host(n_groups=2).pool(bag([4.0, 1.0, 8.0], [0.0, 5.0, log(3)]), coords, None, None)
    assert output.auxiliary_logits["tier1_0"].tolist() == pytest.approx([-7, 7])
    assert output.auxiliary_logits["tier1_1"].tolist() == pytest.approx([-1, 1])
    assert output.bag_feature.tolist() == pytest.approx([4])
    assert output.logits.tolist() == pytest.approx([-4, 4])
    assert output.contributions.tolist() == pytest.approx([0.5, 0.5, 3])
    assert output.scores.tolist() == pytest.approx([0, 5, log(3)])


def test_a_group_weighs_in_tier_two_as_much_as_its_most_open_patch():
    # Groups pool to 6 and 1, the second under an openness of 1/4: (6 + 1/4) / (1 + 1/4).
    coords = coords_in_groups([0, 1, 0], 2)
    log_gates = torch.tensor([0.0, log(1 / 4), 0.0])
    output = toy_host(n_groups=2).pool(
        bag([4.0, 1.0, 8.0], [0.0, 0.0, 0.0]), coords, log_gates, None
    )
    assert output.bag_feature.tolist() == pytest.approx([5])


def test_three_classes_rank_by_the_label_in_training_and_by_the_prediction_otherwise():
    host, coords = toy_host(n_outputs=3, distillation="max"), coords_in_groups([1, 1, 1], 4)
    embedded = bag([2.0, 4.0, 6.0], [0.0, 0.0, 0.0])
    assert host.pool(embedded, coords, None, torch.tensor(0)).bag_feature.tolist() == pytest.approx(
        [2.0]
    )
    assert host.pool(embedded, coords, None, torch.tensor(2)).bag_feature.tolist() == pytest.approx(
        [6.0]
    )
    assert host.pool(embedded, coords, None, None).bag_feature.tolist() == pytest.approx([6.0])


def test_a_risk_ranks_by_the_raw_activation():
    host, coords = toy_host(n_outputs=1, distillation="maxmin"), coords_in_groups([1, 1, 1], 4)
    output = host.pool(
        bag([2.0, 4.0, 9.0], [0.0, 0.0, 0.0]), coords, None, torch.tensor([3.0, 1.0])
    )
    assert output.bag_feature.tolist() == pytest.approx([5.5])


def test_class_evidence_separates_patches_whose_probabilities_tie():
    activations = torch.tensor([[0.0, 1e-9], [0.0, 2e-9]])
    assert activations.softmax(dim=1)[:, 1].unique().numel() == 1
    assert class_evidence(activations, 1).argmax().item() == 1


@pytest.mark.parametrize("step", [1, 224, 256, 512, 1024])
@pytest.mark.parametrize("n_groups", [2, 4, 5])
def test_places_on_a_grid_spread_evenly_over_the_groups(step, n_groups):
    counts = torch.bincount(group_of(GRID // 256 * step, n_groups), minlength=n_groups)
    mean = len(GRID) / n_groups
    assert (counts - mean).abs().max() < 4 * mean**0.5


def test_the_group_of_a_place_never_changes():
    places = torch.tensor([[0, 0], [256, 0], [0, 256], [1024, 4096], [-256, 77]])
    assert group_of(places, 4).tolist() == [0, 2, 3, 1, 3]
    assert group_of(places.int(), 4).tolist() == [0, 2, 3, 1, 3]


def test_without_coordinates_order_and_removal_leave_every_patch_in_its_group():
    host, features = Dtfd(8, 2, "deletion").eval(), torch.randn(30, 8)
    kept = torch.randperm(30)[:12]
    gates = torch.zeros(30).scatter(0, kept, 1.0)
    torch.testing.assert_close(host(features, gates=gates).logits, host(features[kept]).logits)


def test_training_splits_a_bag_anew_at_every_step():
    host, features = Dtfd(8, 2).train(), torch.randn(30, 8)
    coords = coords_in_groups([0] * 30, 4)
    splits = [host.embed(features).drawn for _ in range(5)]
    assert len({tuple(split.tolist()) for split in splits}) == 5
    for split in splits:
        assert sorted(torch.bincount(split).tolist()) == [7, 7, 8, 8]
    assert len(host(features, coords).auxiliary_logits) == 4
    assert len(host.eval()(features, coords).auxiliary_logits) == 1


@pytest.mark.parametrize("mode", ["paper", "deletion"])
def test_all_that_is_pooled_from_one_embedding_shares_its_split(mode):
    host, features = Dtfd(8, 2, mode).train(), torch.randn(30, 8)
    embedded = host.embed(features)
    plain = host.aggregate(embedded, None)
    for _ in range(2):
        open_gates = host.gated(features, embedded, None, torch.zeros(30))
        torch.testing.assert_close(open_gates.logits, plain.logits)
