"""The constructions of the paper's proof that no criterion implies another, as bags of three or four patches.

A patch is (lesion, context). The hosts say 'tumour' or 'normal' with the probabilities 0.98 and 0.02 of a logit of 2.
"""

import pytest
import torch

from gcemil.diagnostics.snr import OutputScale, RiskScale, Tolerances, bag_outcome, judge_subset
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
