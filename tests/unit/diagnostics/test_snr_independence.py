"""The constructions of the paper's proof that no criterion implies another, as bags of three or four patches.

A patch is (lesion, context). The hosts say 'tumour' or 'normal' with the probabilities 0.98 and 0.02 of a logit of 2.
"""

import pytest
import torch

from gcemil.diagnostics.snr import OutputScale, RiskScale, Tolerances, Verdict, bag_outcome, judge_subset
from gcemil.explain import Interventions
from gcemil.hosts.adapters import CallableHost
from gcemil.recovery.recover import above_threshold
from gcemil.tasks.task import ClassificationTask

TASK = ClassificationTask(("normal", "tumour"))
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
    return judge_subset(OutputScale(TASK.n_outputs, RiskScale()).read(outcome), Tolerances())


def test_the_whole_bag_is_sufficient_but_not_necessary():
    found = judged(any_lesion, [LESION, CONTEXT, BACKGROUND], [OPEN, OPEN, OPEN])
    assert found == Verdict(sufficient=True, necessary=False, recoverable=True)


def test_one_of_two_redundant_regions_is_sufficient_but_not_necessary():
    found = judged(any_lesion, [LESION, LESION, BACKGROUND], [OPEN, CLOSED, CLOSED])
    assert found == Verdict(sufficient=True, necessary=False, recoverable=True)


def test_a_lesion_without_its_context_is_necessary_but_not_sufficient():
    found = judged(lesion_in_context, [LESION, CONTEXT, BACKGROUND], [OPEN, CLOSED, CLOSED])
    assert found == Verdict(sufficient=False, necessary=True, recoverable=True)


@pytest.mark.parametrize("rest", [[LESION, LESION], [LESION, CONTEXT]])
def test_a_stable_gate_on_background_is_recoverable_but_neither_sufficient_nor_necessary(rest):
    found = judged(any_lesion, [*rest, BACKGROUND], [CLOSED, CLOSED, OPEN])
    assert found == Verdict(sufficient=False, necessary=False, recoverable=True)


def test_a_stable_gate_on_redundant_tissue_is_recoverable_but_not_necessary():
    found = judged(lesion_in_context, [LESION, LESION, CONTEXT, BACKGROUND], [OPEN, CLOSED, CLOSED, CLOSED])
    assert found == Verdict(sufficient=False, necessary=False, recoverable=True)


def test_gates_near_the_threshold_are_sufficient_and_necessary_but_not_recoverable():
    # The one lesion at a gate of 0.51 is half a lesion to the host, and a whole one once it is selected.
    found = judged(any_lesion, [LESION, CONTEXT, BACKGROUND], [0.51, 0.49, 0.49])
    assert found == Verdict(sufficient=True, necessary=True, recoverable=False)


def test_the_one_lesion_behind_an_open_gate_is_all_three():
    found = judged(any_lesion, [LESION, CONTEXT, BACKGROUND], [OPEN, CLOSED, CLOSED])
    assert found == Verdict(sufficient=True, necessary=True, recoverable=True)


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
