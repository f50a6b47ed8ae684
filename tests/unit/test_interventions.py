"""X, X_pi, X_S and X_notS on a toy host whose answers are known by hand, and what may not be asked."""

import pytest
import torch

from builders.wrappers import prepared_host, tensor_bag
from gcemil.errors import BagError
from gcemil.explanation import Interventions
from gcemil.hosts.host import Embedded, HostOutput, MilHost


class MeanHost(MilHost[Embedded]):
    """Logits: the gate-weighted mean of the rows."""

    def __init__(self):
        super().__init__(2, 2, "deletion")
        self.embeddings = 0

    def embed(self, features):
        self.embeddings += 1
        return Embedded(features)

    def pool(self, embedded, coords, log_gates, target):
        weights = torch.ones(len(embedded.tokens)) if log_gates is None else log_gates.exp()
        logits = (weights / weights.sum()) @ embedded.tokens
        return HostOutput(logits=logits, bag_feature=logits, scores=embedded.tokens[:, 0])


FEATURES = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 6.0]])


def test_the_four_interventions_by_hand():
    bag = Interventions(MeanHost(), FEATURES)
    selected = torch.tensor([True, True, False])
    assert bag.full().logits.tolist() == pytest.approx([2.0, 2.0])
    assert bag.kept(selected).logits.tolist() == pytest.approx([1.0, 0.0])
    assert bag.removed(selected).logits.tolist() == pytest.approx([4.0, 6.0])
    gated = bag.gated(torch.tensor([1.0, 0.5, 0.5]).log())
    torch.testing.assert_close(gated.logits, torch.tensor([1.5, 1.5]))


def test_a_bag_is_embedded_once_whatever_is_asked():
    host = MeanHost()
    bag = Interventions(host, FEATURES)
    for row in range(3):
        bag.kept(torch.arange(3) == row)
        bag.removed(torch.arange(3) == row)
    bag.full()
    assert host.embeddings == 1


def test_removing_everything_leaves_no_prediction():
    assert Interventions(MeanHost(), FEATURES).removed(torch.ones(3, dtype=torch.bool)) is None


def test_no_gradient_is_recorded():
    features, coords = tensor_bag(10)
    bag = Interventions(prepared_host("abmil"), features.requires_grad_(), coords)
    selected = torch.arange(10) < 4
    outputs = [bag.full(), bag.gated(torch.zeros(10)), bag.kept(selected), bag.removed(selected)]
    assert not any(output.logits.requires_grad for output in outputs)


def test_keeping_nothing_is_refused():
    with pytest.raises(BagError, match="subset without a patch"):
        Interventions(MeanHost(), FEATURES).kept(torch.zeros(3, dtype=torch.bool))


@pytest.mark.parametrize("ask", ["kept", "removed"])
@pytest.mark.parametrize(
    "selected", [torch.ones(4, dtype=torch.bool), torch.tensor([0, 2]), torch.ones(3)]
)
def test_a_selection_that_is_no_mask_over_the_bag_is_refused(ask, selected):
    with pytest.raises(BagError, match="bool mask over the bag's 3 patches"):
        getattr(Interventions(MeanHost(), FEATURES), ask)(selected)
