"""The wrapper over every entry of HOSTS, both gate modes, classes, risk and value: the same questions to each."""

from dataclasses import replace

import pytest
import torch

from builders.wrappers import PATCH, make_bank, prepared_host, tensor_bag, training_bags, wrapped
from gcemil.bags.bag import case_bag, slide_bag
from gcemil.evidence.gates import budget_count
from gcemil.evidence.losses import NullTarget
from gcemil.explanation import Interventions, explain_bag, slide_evidence
from gcemil.hosts.table import HOSTS
from gcemil.model import GceMil
from gcemil.tasks.task import ClassificationTask, RegressionTask, SurvivalTask
from gcemil.training.objective import evidence_terms

NAMES = list(HOSTS)
NYSTROM = {"transmil", "camil"}
POOLS_LINEARLY = set(NAMES) - {"transmil", "ibmil", "hdmil", "max"}

every_host = pytest.mark.parametrize("name", NAMES)
every_mode = pytest.mark.parametrize("mode", ["paper", "deletion"])
every_task = pytest.mark.parametrize("n_outputs", [1, 3])
places = pytest.mark.parametrize("with_coords", [True, False])


def make_model(name, *, mode=None, n_outputs=3, **settings):
    return wrapped(prepared_host(name, mode=mode, n_outputs=n_outputs), **settings)


def task_of(n_outputs):
    return SurvivalTask() if n_outputs == 1 else ClassificationTask(tuple("abc"))


def assert_close(name, one, other):
    tolerance = 1e-4 if name in NYSTROM else 1e-5
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@every_host
@every_mode
@every_task
def test_full_is_the_host_itself_and_soft_is_the_host_under_the_gates(name, mode, n_outputs):
    model, (features, coords) = make_model(name, mode=mode, n_outputs=n_outputs), tensor_bag(40)
    with torch.no_grad():
        output = model(features, coords, patch_size=PATCH)
        assert_close(name, output.full_logits, model.host(features, coords).logits)
        assert_close(name, output.logits, model.host(features, coords, gates=output.gates).logits)
    budget, cap = budget_count(40, budget=0.05), budget_count(40, budget=0.10)
    assert budget <= int(output.opened.sum()) <= (budget if n_outputs == 1 else cap)
    assert (output.logits - output.full_logits).abs().max() > 1e-4


def create_null(n_outputs):
    return NullTarget(n_outputs) if n_outputs > 1 else None


@every_host
@every_mode
@every_task
def test_every_wrapper_parameter_gets_a_finite_gradient(name, mode, n_outputs):
    model = make_model(name, mode=mode, n_outputs=n_outputs).train()
    null = create_null(model.n_outputs)
    terms, _ = evidence_terms(model, null, task_of(n_outputs), training_bags(n_outputs))
    sum(terms.values()).backward()
    own = {k: p.grad for k, p in model.named_parameters() if not k.startswith("host.")}
    if name not in POOLS_LINEARLY:
        assert own.pop("selector.contribution_weight") is None
    assert [k for k, g in own.items() if g is None or not g.isfinite().all() or not g.any()] == []
    assert all(p.grad.isfinite().all() for p in model.host.parameters() if p.grad is not None)


@every_host
def test_every_host_is_taught_a_value_and_explains_it(name):
    model = wrapped(prepared_host(name, n_outputs=1), task="regression").train()
    model.risk_spread.fill_(3.0)
    bags = [
        replace(bag, target=torch.tensor(5.0 + number))
        for number, bag in enumerate(training_bags(1))
    ]
    null = create_null(model.n_outputs)
    terms, _ = evidence_terms(model, null, RegressionTask(6.5, 1.1), bags)
    sum(terms.values()).backward()
    assert "utility" in terms
    assert all(p.grad.isfinite().all() for p in model.host.parameters() if p.grad is not None)
    bag = slide_bag("s", tensor_bag(40)[0].numpy(), tensor_bag(40)[1].numpy(), PATCH)
    found = explain_bag(model.eval(), bag)
    phi = model.output_kind.phi(found.output.full_logits, found.output.full_logits.unsqueeze(0))
    # A value is in deviations already, whatever spread the risks of this network would have.
    assert float(phi[0]) == float(found.output.full_logits[0])
    assert found.verdict.keeps_class


@every_host
@every_task
def test_evidence_never_drowns_what_the_task_teaches_the_host(name, n_outputs):
    model = make_model(name, mode="deletion", n_outputs=n_outputs, train_host=True).train()
    null = create_null(model.n_outputs)
    terms, _ = evidence_terms(model, null, task_of(n_outputs), training_bags(n_outputs))
    weights = [weight for weight in model.host.parameters() if weight.requires_grad]
    norms = {}
    for term in terms.keys() & {"task", "sufficiency", "necessity"}:
        passed = torch.autograd.grad(terms[term], weights, retain_graph=True, allow_unused=True)
        norms[term] = float(torch.stack([g.norm() for g in passed if g is not None]).norm())
    assert len(norms) >= 2
    assert max(norms.values()) < 10 * norms["task"]


@every_host
@every_mode
def test_keeping_all_is_the_full_bag_and_removing_all_leaves_nothing(name, mode):
    host, (features, coords) = prepared_host(name, mode=mode), tensor_bag(40)
    bag, everything = Interventions(host, features, coords), torch.ones(40, dtype=torch.bool)
    assert_close(name, bag.kept(everything).logits, bag.full().logits)
    assert bag.removed(everything) is None
    assert_close(name, bag.removed(~everything).logits, bag.full().logits)


@every_host
@every_mode
@places
def test_kept_and_removed_are_the_host_on_the_bag_without_the_other_rows(name, mode, with_coords):
    host, (features, coords) = prepared_host(name, mode=mode), tensor_bag(40)
    coords = coords if with_coords else None
    selected = torch.arange(40) % 4 == 1
    bag = Interventions(host, features, coords)
    with torch.no_grad():
        for rows, found in ((selected, bag.kept(selected)), (~selected, bag.removed(selected))):
            alone = host(features[rows], None if coords is None else coords[rows])
            assert_close(name, found.logits, alone.logits)
            assert len(found.scores) == int(rows.sum())


@every_host
@every_mode
@every_task
@places
def test_a_bag_of_one_patch_is_its_own_evidence(name, mode, n_outputs, with_coords):
    model, (features, coords) = make_model(name, mode=mode, n_outputs=n_outputs), tensor_bag(1)
    output = model(features, coords if with_coords else None)
    assert output.gates.tolist() == pytest.approx([1.0])
    assert_close(name, output.logits, output.full_logits)
    output.logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@every_host
@every_mode
@every_task
def test_the_gated_door_agrees_with_forward_with_and_without_the_hosts_view(name, mode, n_outputs):
    features, coords = tensor_bag(40)
    for reads_host in (True, False):
        terms = {"attention_term": reads_host, "contribution_term": reads_host}
        model = make_model(name, mode=mode, n_outputs=n_outputs, **terms)
        with torch.no_grad():
            whole, alone = (
                model(features, coords, patch_size=PATCH),
                model.gated(features, coords, patch_size=PATCH),
            )
        assert_close(name, whole.gates, alone.gates)
        assert_close(name, alone.logits, whole.logits)


@every_host
@every_task
def test_evidence_of_a_case_goes_back_to_each_of_its_slides(name, n_outputs):
    model = make_model(name, n_outputs=n_outputs)
    slides = [make_slide(slide_id, n, seed) for slide_id, n, seed in (("b", 30, 1), ("a", 40, 2))]
    bag = case_bag("case", slides)
    explanation = explain_bag(model, bag)
    records = slide_evidence(model, bag, explanation)
    assert [record.slide_id for record in records] == ["a", "b"]
    assert [len(record.gates) for record in records] == [40, 30]
    for record, slide in zip(records, reversed(slides), strict=True):
        assert (record.coords == slide.coords).all()
    assert sum(int(record.selected.sum()) for record in records) == int(
        explanation.recovery.selected.sum()
    )
    assert torch.equal(
        torch.cat([torch.from_numpy(r.gates) for r in records]), explanation.output.gates
    )


def make_slide(slide_id, n, seed):
    features, coords = tensor_bag(n, seed=seed)
    return slide_bag(slide_id, features.numpy(), coords.numpy() + 1000 * seed, PATCH)


@every_host
@every_task
def test_a_state_dict_carries_everything_a_prediction_needs(name, n_outputs):
    trained = make_model(name, n_outputs=n_outputs)
    trained.set_temperature(0.25)
    torch.manual_seed(99)
    fresh = GceMil(
        prepared_host(name, n_outputs=n_outputs), make_bank(), in_dim=16, settings=trained.settings
    ).eval()
    fresh.load_state_dict(trained.state_dict())
    features, coords = tensor_bag(40)
    with torch.no_grad():
        one, other = trained(features, coords), fresh(features, coords)
    for field in ("logits", "full_logits", "gates", "responses", "coverage"):
        assert_close(name, getattr(one, field), getattr(other, field))


class MeanPool(torch.nn.Module):
    """Somebody else's model: mean over patches, one linear head."""

    def __init__(self, n_outputs):
        super().__init__()
        self.head = torch.nn.Linear(16, n_outputs)

    def forward(self, features):
        return self.head(torch.tanh(features).mean(dim=0))


@every_mode
@every_task
def test_a_model_brought_along_is_wrapped_like_any_host(mode, n_outputs):
    from gcemil.hosts.adapters import CallableHost

    torch.manual_seed(0)
    host = CallableHost(MeanPool(n_outputs), 16, n_outputs, mode)
    model, (features, coords) = wrapped(host), tensor_bag(40)
    model.train()
    null = create_null(model.n_outputs)
    terms, _ = evidence_terms(model, null, task_of(n_outputs), training_bags(n_outputs))
    sum(terms.values()).backward()
    assert model.host.model.head.weight.grad.any()
    assert model.selector.presence_weight.grad.any()
    explanation = explain_bag(model.eval(), slide_bag("s", features.numpy(), coords.numpy(), PATCH))
    alone = host(features[explanation.recovery.selected]).logits
    torch.testing.assert_close(explanation.kept.logits, alone.detach())
