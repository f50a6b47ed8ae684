"""Toys whose S/N/R is known by hand; no criterion implies another."""

import pytest
import torch

from gcemil.diagnostics.snr import (
    BagOutcome,
    OutputScale,
    RiskScale,
    Tolerances,
    bag_outcome,
    judge_subset,
    snr_scores,
)
from gcemil.errors import UsageError
from gcemil.explanation import Interventions
from gcemil.hosts.adapters import CallableHost
from gcemil.recovery import above_threshold
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
    assert scores(blurred, normal).cd_gap == pytest.approx(
        (torch.tensor(8.0).sigmoid().item() - 0.5) / 2
    )


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


LESION, CONTEXT, BACKGROUND = [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]
OPEN, CLOSED = 1.0, 0.0


def strength(amount):
    """Logits that say tumour at amount 1, normal at 0, and do not know at 1/2."""
    return torch.stack([2 - 4 * amount, 4 * amount - 2])


def any_lesion(features):
    """One lesion is enough, and a second one changes nothing."""
    return strength(features[:, 0].amax())


def lesion_in_context(features):
    """A lesion counts only where its context is seen as well."""
    return strength(features.amax(dim=0).amin())


def judged(model, patches, gates):
    """The verdict on the gates and on the subset they threshold to."""
    host = CallableHost(model, in_dim=2, n_outputs=2, scores="keep-one")
    gates = torch.tensor(gates)
    outcome = bag_outcome(
        Interventions(host, torch.tensor(patches)), above_threshold(gates, 0.5), gates.log()
    )
    return judge_subset(OutputScale(2, RiskScale()).read(outcome), Tolerances())


ALL_EIGHT = {
    (True, True, True): (any_lesion, [LESION, BACKGROUND], [OPEN, CLOSED]),
    (True, True, False): (any_lesion, [LESION, BACKGROUND], [0.51, 0.49]),
    (True, False, True): (any_lesion, [LESION, LESION], [OPEN, CLOSED]),
    (True, False, False): (any_lesion, [LESION, LESION], [0.51, 0.49]),
    (False, True, True): (lesion_in_context, [LESION, CONTEXT], [OPEN, CLOSED]),
    # Half a lesion in half a context is undecided; the lesion alone is not.
    (False, True, False): (lesion_in_context, [LESION, CONTEXT], [0.51, 0.49]),
    (False, False, True): (any_lesion, [LESION, BACKGROUND], [CLOSED, OPEN]),
    (False, False, False): (any_lesion, [LESION, BACKGROUND], [0.49, 0.51]),
}


@pytest.mark.parametrize("expected", ALL_EIGHT)
def test_every_combination_of_the_three_verdicts_occurs(expected):
    found = judged(*ALL_EIGHT[expected])
    assert (found.sufficient, found.necessary, found.recoverable) == expected
