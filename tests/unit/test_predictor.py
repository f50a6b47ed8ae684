"""F: host and evidence head behind the contract of a host, and what a given host rests on."""

import pytest
import torch

from builders.wrappers import PATCH, prepared_host, tensor_bag, wrapped
from gcemil.bags.bag import slide_bag
from gcemil.evidence.anchors import AnchorBank
from gcemil.explanation import Interventions, explain_bag
from gcemil.hosts.host import Host, ask_subsets
from gcemil.hosts.table import HOSTS, create_host
from gcemil.model import GceMil
from gcemil.predictor import GcePredictor


def voting_model(name="abmil", n_outputs=3, weight=0.6):
    """A wrapped host whose head was given weights by hand."""
    model = wrapped(prepared_host(name, n_outputs=n_outputs))
    generator = torch.Generator().manual_seed(7)
    head, dim = model.head, model.in_dim
    head.set_anchors(
        torch.randn(head.directions.shape, generator=generator),
        torch.randn(300, dim, generator=generator),
    )
    head.weights.copy_(torch.rand(head.weights.shape, generator=generator) * 3)
    head.weight.fill_(weight)
    head._known = None
    return model


@pytest.mark.parametrize("name", HOSTS)
@torch.no_grad()
def test_what_f_says_of_a_subset_is_what_it_says_of_a_bag_of_these_patches(name):
    model = voting_model(name)
    features, coords = tensor_bag(60)
    predictor = model.predictor
    assert isinstance(predictor, GcePredictor)
    assert isinstance(predictor, Host)
    asked = Interventions(predictor, features, coords)
    selected = torch.zeros(60, dtype=torch.bool)
    selected[::3] = True
    kept = asked.kept(selected)
    head = model.head
    host = model.host(features[selected], coords[selected])
    coverage = head.coverage(head.responses(features[selected]), 60)
    torch.testing.assert_close(
        kept.logits, head.mix(host.logits, head.utility(coverage)), rtol=1e-4, atol=1e-5
    )
    cheap = ask_subsets(predictor, predictor.embed_bag(features), coords)(selected)
    torch.testing.assert_close(cheap, kept.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_outputs", [1, 3])
@torch.no_grad()
def test_the_closed_form_of_f_is_what_f_says_without_and_with_only_each_patch(n_outputs):
    model, (features, coords) = voting_model(n_outputs=n_outputs), tensor_bag(40)
    predictor = model.predictor
    asked, embedded, index = (
        Interventions(predictor, features, coords),
        predictor.embed_bag(features),
        0,
    )
    form = predictor.closed_form()
    without, alone = form.without(embedded, coords, index), form.alone(embedded, index)
    for patch in (0, 7, 39):
        only = torch.arange(40) == patch
        assert float(without[patch]) == pytest.approx(
            float(asked.removed(only).logits[index]), abs=1e-4
        )
        assert float(alone[patch]) == pytest.approx(float(asked.kept(only).logits[index]), abs=1e-4)


@torch.no_grad()
def test_the_host_keeps_its_own_prediction_beside_f():
    model, (features, coords) = voting_model(), tensor_bag(60)
    output = model(features, coords, patch_size=PATCH)
    assert torch.equal(output.full.logits, model.host(features, coords).logits)
    assert not torch.allclose(output.gce.logits.softmax(0), output.full.logits.softmax(0))
    model.head.weight.zero_()
    model.head._known = None
    silent = model(features, coords, patch_size=PATCH)
    assert torch.equal(silent.gce.logits, output.full.logits)
    assert model.predictor is model.host


@torch.no_grad()
def test_forward_asks_the_host_a_fixed_number_of_times(monkeypatch):
    model, (features, coords) = voting_model(), tensor_bag(60)
    calls = []
    pool = type(model.host).pool
    monkeypatch.setattr(type(model.host), "pool", lambda *args: calls.append(1) or pool(*args))
    model(features, coords, patch_size=PATCH)
    # X and F(X), and F under the gates: nothing is searched.
    assert len(calls) == 3


@pytest.mark.parametrize("n_outputs", [1, 3])
@torch.no_grad()
def test_gates_of_one_leave_f_unchanged(n_outputs):
    model, (features, coords) = voting_model(n_outputs=n_outputs), tensor_bag(60)
    full, gated = (
        model.predictor(features, coords),
        model.predictor(features, coords, gates=torch.ones(60)),
    )
    torch.testing.assert_close(gated.logits, full.logits)


INK, LESION = 20.0, 3.0


def pen_mark_world(dim=16, n=300):
    """Ten patches of ink that the host reads, ten of a lesion that it ignores; the anchor knows the lesion."""
    torch.manual_seed(0)
    features = torch.randn(n, dim)
    features[:10, 0] += INK
    features[10:20, 1] += LESION
    host = create_host(
        "abmil", in_dim=dim, n_outputs=2, options={"width": dim, "hidden": 4, "dropout": 0.0}
    )
    with torch.no_grad():
        for weight in host.parameters():
            weight.zero_()
        host.project[0].weight[0, 0] = 1.0
        host.attention.content.weight[0, 0] = 0.1
        host.attention.score.weight[0, 0] = 9.0
        host.attention.gate.bias.fill_(3.0)
        host.head.weight[1, 0] = 0.5
        host.head.bias[0] = 3.0
    anchor = torch.zeros(1, dim)
    anchor[0, 1] = 1.0
    model = GceMil(
        host, AnchorBank(anchor, ("lesion",), "by hand", "examples"), in_dim=dim, explains_host=True
    )
    reference = torch.randn(500, dim)
    model.bridge.set_centre(reference.mean(dim=0))
    model.calibrate(reference)
    model.set_temperature(1e-6)
    row = torch.arange(n)
    coords = (PATCH * torch.stack([row % 20, row // 20], dim=1)).numpy()
    return model.eval(), slide_bag("inked", features.numpy(), coords, PATCH)


def test_the_evidence_of_a_host_that_reads_ink_is_the_ink():
    model, bag = pen_mark_world()
    found = explain_bag(model, bag)
    chosen = set(found.recovery.selected.nonzero().flatten().tolist())
    assert chosen
    assert chosen <= set(range(10)), "a lesion patch that the model ignores is no evidence of it"
    assert found.verdict.is_faithful
    assert int(found.output.answer.logits.argmax()) == int(found.output.full.logits.argmax()) == 1
