"""Toys whose S/N/R is known by hand: a host that says 'tumour' when it sees a patch above 0."""

import pytest
import torch

from gcemil.diagnostics.snr import BagOutcome, RiskScale, bag_outcome, snr_scores
from gcemil.errors import UsageError
from gcemil.explain import Interventions
from gcemil.hosts.adapters import CallableHost
from gcemil.tasks.task import ClassificationTask, SurvivalTask

TASK = ClassificationTask(("normal", "tumour"))
NORMAL, TUMOUR = torch.tensor([4.0, -4.0]), torch.tensor([-4.0, 4.0])


def any_positive(features):
    return TUMOUR if bool((features > 0).any()) else NORMAL


def bench(values):
    host = CallableHost(any_positive, in_dim=1, n_outputs=2, scores="keep-one")
    return Interventions(host, torch.tensor(values, dtype=torch.float32).unsqueeze(1))


def mask(*selected):
    return torch.tensor(selected, dtype=torch.bool)


def scores(*outcomes, targets=(1, 0)):
    return snr_scores(list(outcomes), torch.tensor(targets), TASK)


NORMAL_BAG = bag_outcome(bench([-1, -1, -1]), mask(True, False, False))


def test_the_one_tumour_patch_is_sufficient_and_necessary():
    found = scores(bag_outcome(bench([1, -1, -1]), mask(True, False, False)), NORMAL_BAG)
    assert found.keep_only_drop == pytest.approx(0, abs=1e-6)
    assert found.evidence_sufficiency == pytest.approx(1)
    # Without it both bags look normal: F1 of normal 2/3, of tumour 0.
    assert found.complement_degradation == pytest.approx(1 - 1 / 3)
    assert found.full_kept_gap == pytest.approx(0, abs=1e-6)
    assert found.evidence_fraction == pytest.approx(1 / 3)


def test_one_of_two_redundant_regions_is_sufficient_but_not_necessary():
    found = scores(bag_outcome(bench([1, 1, -1]), mask(True, False, False)), NORMAL_BAG)
    assert found.keep_only_drop == pytest.approx(0, abs=1e-6)
    assert found.complement_degradation == pytest.approx(0, abs=1e-6)


def test_background_is_neither_sufficient_nor_necessary():
    found = scores(bag_outcome(bench([1, -1, -1]), mask(False, False, True)), NORMAL_BAG)
    assert found.keep_only_drop == pytest.approx(1 - 1 / 3)
    assert found.complement_degradation == pytest.approx(0, abs=1e-6)
    assert found.full_kept_gap == pytest.approx(
        (torch.tensor(8.0).sigmoid() - torch.tensor(-8.0).sigmoid()).item() / 2
    )


def test_the_whole_bag_is_sufficient_and_has_no_complement():
    whole = bag_outcome(bench([1, -1]), mask(True, True))
    found = scores(whole, bag_outcome(bench([-1, -1]), mask(True, True)))
    assert found.keep_only_drop == pytest.approx(0, abs=1e-6)
    assert found.complement_degradation is None
    assert found.n_whole_bags == 2


def test_gates_far_from_their_subset_are_not_recoverable():
    recoverable = BagOutcome(TUMOUR, TUMOUR, NORMAL, TUMOUR, 0.1)
    blurred = BagOutcome(TUMOUR, TUMOUR, NORMAL, torch.zeros(2), 0.1)
    normal = BagOutcome(NORMAL, NORMAL, NORMAL, NORMAL, 0.1)
    assert scores(recoverable, normal).cd_gap == pytest.approx(0, abs=1e-6)
    assert scores(blurred, normal).cd_gap == pytest.approx((torch.tensor(8.0).sigmoid().item() - 0.5) / 2)


def test_risks_are_compared_in_units_of_the_training_risks():
    outcomes = [
        BagOutcome(torch.tensor([risk]), torch.tensor([risk + 1]), torch.tensor([0.0]), None, 0.5)
        for risk in (1.0, 3.0, 5.0)
    ]
    targets = torch.tensor([[9.0, 1], [5.0, 1], [2.0, 1]])
    found = snr_scores(outcomes, targets, SurvivalTask(), scale=RiskScale(mean=3.0, deviation=2.0))
    assert found.full_kept_gap == pytest.approx(0.5)
    assert found.evidence_sufficiency == pytest.approx(1)
    assert found.complement_degradation == pytest.approx(0.5)


def test_no_bags_is_an_error():
    with pytest.raises(UsageError, match="at least one bag"):
        snr_scores([], torch.tensor([]), TASK)
