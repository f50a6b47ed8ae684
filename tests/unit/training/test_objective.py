"""Every term of the objective, by hand or by a formula written a second time."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from builders.wrappers import PATCH, make_bank, prepared_host, tensor_bag, training_bags, wrapped
from gcemil.config import PAPER
from gcemil.evidence.coverage import WEIGHT_GAIN
from gcemil.evidence.losses import NullTarget
from gcemil.hosts.host import HostOutput
from gcemil.model import GceMil
from gcemil.tasks.task import ClassificationTask, SurvivalTask
from gcemil.training import objective
from gcemil.training.objective import (
    TrainingBag,
    evidence_shape_terms,
    evidence_terms,
    grounding_terms,
    host_terms,
    removed_logits,
    subset_terms,
    task_terms,
)

THREE = ClassificationTask(("a", "b", "c"))
TWO = ClassificationTask(("a", "b"))


def make_model(name="abmil", *, mode="deletion", n_outputs=3, **settings):
    """A host that is taught, so that it has every term."""
    return wrapped(
        prepared_host(name, mode=mode, n_outputs=n_outputs), **{"train_host": True, **settings}
    )


def seen(model, bags):
    return [
        model(bag.features, bag.coords, patch_size=bag.patch_size, target=bag.target)
        for bag in bags
    ]


def answer(logits, **more):
    logits = torch.tensor(logits)
    return HostOutput(logits=logits, bag_feature=logits, scores=torch.zeros(1), **more)


def labelled(*labels):
    return [TrainingBag(torch.zeros(1, 1), None, None, torch.tensor(label)) for label in labels]


def mean_cross_entropy(logits, bags):
    return sum(
        F.cross_entropy(row, bag.target) for row, bag in zip(logits, bags, strict=True)
    ) / len(bags)


def cox_by_hand(risks, times, events):
    """Mean over events of log(sum over those still at risk of e^h) - h; no ties."""
    terms = [
        math.log(sum(math.exp(other) for other, t in zip(risks, times, strict=True) if t >= time))
        - risk
        for risk, time, event in zip(risks, times, events, strict=True)
        if event
    ]
    return sum(terms) / len(terms)


# The task


def test_every_prediction_of_the_host_is_a_weighted_mean_over_the_window():
    further = {"max": torch.tensor([0.0, math.log(3.0)])}
    outputs = [answer([0.0, math.log(3.0)]), answer([0.0, 0.0], auxiliary_logits=further)]
    host = prepared_host("abmil")
    host.task_weights = {"bag": 0.5, "max": 2.0}
    terms = task_terms(host, TWO, outputs, labelled(1, 0))
    assert terms["task"].item() == pytest.approx(0.5 * (-math.log(0.75) + math.log(2)) / 2)
    assert terms["task_max"].item() == pytest.approx(2.0 * math.log(4))


@pytest.mark.parametrize("name", ["abmil", "dsmil", "clam_sb"])
def test_the_task_mixes_the_gated_and_the_ungated_bag_by_share(name):
    model, bags = make_model(name, ungated_share=0.25), training_bags(3)
    terms, outputs = evidence_terms(model, NullTarget(3), THREE, bags)
    soft, full = ([getattr(output, part) for output in outputs] for part in ("soft", "full"))
    weight = model.host.task_weights["bag"]
    gated, ungated = (mean_cross_entropy([o.logits for o in part], bags) for part in (soft, full))
    torch.testing.assert_close(terms["task"], weight * (0.75 * gated + 0.25 * ungated))
    for key in soft[0].losses:
        gated, ungated = (
            torch.stack([o.losses[key] for o in part]).mean() for part in (soft, full)
        )
        torch.testing.assert_close(terms[f"host_{key}"], 0.75 * gated + 0.25 * ungated)
    for key in soft[0].auxiliary_logits:
        gated, ungated = (
            mean_cross_entropy([o.auxiliary_logits[key] for o in part], bags)
            for part in (soft, full)
        )
        expected = model.host.task_weights[key] * (0.75 * gated + 0.25 * ungated)
        torch.testing.assert_close(terms[f"task_{key}"], expected)


# Budget and bridge


@pytest.mark.parametrize(("floor", "excess"), [(1, 0.2), (2, 0.1), (5, 0.0)])
def test_the_budget_is_the_squared_excess_of_each_bag(floor, excess):
    model = make_model(budget=0.1, budget_weight=0.5, min_patches=floor)
    bags = training_bags(3, count=2, n=10)
    gates = [torch.tensor([0.9] * 3 + [0.3 / 7] * 7), torch.tensor([0.1] + [0.0] * 9)]
    outputs = [replace(output, gates=g) for output, g in zip(seen(model, bags), gates, strict=True)]
    expected = 0.5 * excess**2 / 2
    assert evidence_shape_terms(model, outputs)["budget"].item() == pytest.approx(
        expected, abs=1e-6
    )


def test_the_bridge_term_is_the_weighted_distance_from_the_fit():
    model = make_model(bridge_weight=3.0)
    assert evidence_shape_terms(model, seen(model, training_bags(3)))[
        "bridge"
    ].item() == pytest.approx(0.0, abs=1e-7)
    with torch.no_grad():
        model.bridge.bias.add_(1.0)
    first = model.bridge.first_left @ model.bridge.first_right
    expected = 3.0 * model.bridge.anchor_dim / first.square().sum()
    torch.testing.assert_close(
        evidence_shape_terms(model, seen(model, training_bags(3)))["bridge"], expected
    )


# Grounding


def test_literal_grounding_is_the_squared_distance_from_the_patch_noisy_or():
    model, bags = make_model(grounding="literal", grounding_weight=0.5), training_bags(3, count=2)
    outputs = seen(model, bags)
    expected = [(o.gates - (1 - (1 - o.responses).prod(dim=1))).square().mean() for o in outputs]
    terms = grounding_terms(model, THREE, outputs, bags)
    torch.testing.assert_close(terms["grounding"], 0.5 * sum(expected) / 2, rtol=1e-4, atol=1e-6)
    weights = model.utility.anchor_weights
    utility = mean_cross_entropy([weights @ output.coverage for output in outputs], bags)
    torch.testing.assert_close(terms["utility"], 0.5 * utility)
    assert set(terms) == {"grounding", "utility"}


def test_grounding_is_a_divergence_from_where_the_labels_concepts_are():
    model = make_model(grounding_weight=0.5, divergence_weight=0.2)
    bags = training_bags(3, count=2)
    with torch.no_grad():
        model.utility.raw_weights.copy_(torch.arange(12.0).reshape(3, 4) / 3 - 2)
    outputs = seen(model, bags)
    expected = []
    for output, bag in zip(outputs, bags, strict=True):
        weights = model.utility.anchor_weights[int(bag.target)]
        q = 1 - ((1 - output.responses) ** (weights / weights.max())).prod(dim=1)
        q, share = q / q.sum(), output.gates / output.gates.sum()
        expected.append((q * (q / share).log()).sum())
    found = grounding_terms(model, THREE, outputs, bags)["grounding"]
    torch.testing.assert_close(found, 0.5 * 0.2 * sum(expected) / 2, rtol=1e-4, atol=1e-6)


def test_the_divergence_pulls_the_gates_and_nothing_else():
    model, bags = make_model(), training_bags(3, count=2)
    grounding_terms(model, THREE, seen(model, bags), bags)["grounding"].backward()
    assert model.selector.attention_weight.grad.any()
    assert model.selector.presence_weight.grad.any()
    assert model.utility.raw_weights.grad is None
    assert model.bridge.right.grad is None


def rates_by_hand(outputs):
    """-log(1 - v) per open patch; before any bag was seen in training, mean 0 and deviation 1."""
    missed = [(1 - o.gates.unsqueeze(1) * o.responses).prod(dim=0) for o in outputs]
    return [(-m.log() / o.gates.sum()).clamp(-4, 4) for m, o in zip(missed, outputs, strict=True)]


def test_the_utility_term_is_the_task_loss_of_the_coverage_rate_alone():
    model, bags = make_model(grounding_weight=0.5), training_bags(3)
    with torch.no_grad():
        model.utility.raw_weights.copy_(torch.arange(12.0).reshape(3, 4) / 3 - 2)
        model.utility.bias.copy_(torch.tensor([0.1, 0.0, -0.2]))
    outputs = seen(model, bags)
    weights, bias = model.utility.anchor_weights, torch.tensor([0.1, 0.0, -0.2])
    expected = mean_cross_entropy([weights @ z + bias for z in rates_by_hand(outputs)], bags)
    found = grounding_terms(model, THREE, outputs, bags)["utility"]
    torch.testing.assert_close(found, 0.5 * expected, rtol=1e-4, atol=1e-5)


def test_survival_grounds_by_cox_on_the_signed_pathways():
    model, bags = make_model(n_outputs=1, grounding_weight=0.5), training_bags(1)
    effects = torch.tensor([2.0, -1.0, 0.5, -3.0])
    with torch.no_grad():
        model.utility.raw_effects.copy_(effects / WEIGHT_GAIN)
    outputs = seen(model, bags)
    risks = [(effects * z).sum().item() for z in rates_by_hand(outputs)]
    expected = 0.5 * cox_by_hand(risks, [1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0])
    found = grounding_terms(model, SurvivalTask(), outputs, bags)["utility"]
    assert found.item() == pytest.approx(expected, rel=1e-4)


# Sufficiency and necessity


@pytest.mark.parametrize("name", ["abmil", "clam_sb", "dsmil", "dtfd", "ibmil", "mhim"])
def test_sufficiency_is_the_cross_entropy_on_the_hard_subset(name):
    model, bags = make_model(name, sufficiency_weight=2.0, necessity_weight=0.0), training_bags(3)
    outputs = seen(model, bags)
    alone = [
        model.host(bag.features[output.opened], bag.coords[output.opened]).logits
        for bag, output in zip(bags, outputs, strict=True)
    ]
    terms = subset_terms(model, NullTarget(3), THREE, outputs, bags)
    assert set(terms) == {"sufficiency"}
    # A closed patch keeps a millionth of weight, so that a gradient can reach it.
    torch.testing.assert_close(
        terms["sufficiency"], 2.0 * mean_cross_entropy(alone, bags), rtol=0, atol=1e-3
    )


def test_necessity_is_the_cross_entropy_of_the_complement_with_a_null_it_teaches(monkeypatch):
    monkeypatch.setattr(objective, "NECESSITY_MARGIN", 1.0)
    model = make_model(sufficiency_weight=0.0, necessity_weight=2.0)
    bags = training_bags(3, count=2)
    outputs = seen(model, bags)
    removed = [
        F.log_softmax(
            model.host(bag.features[~o.opened], bag.coords[~o.opened]).logits, dim=0
        ).detach()
        for bag, o in zip(bags, outputs, strict=True)
    ]
    null = NullTarget(3, momentum=0.9, peak=2.0)
    found = subset_terms(model, null, THREE, outputs, bags)["necessity"]
    running = 0.9 / 3 + 0.1 * removed[0].exp()
    peaked = running.square() / running.square().sum()
    expected = 2.0 * (-removed[0].mean() - (peaked * removed[1]).sum()) / 2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(
        null.running_mean, 0.9 * running + 0.1 * removed[1].exp(), rtol=0, atol=1e-4
    )


def test_the_margin_takes_out_what_is_ranked_next_to_the_evidence():
    model, (bag,) = make_model(budget=0.05), training_bags(3, count=1)
    (output,) = seen(model, [bag])
    # 15 % of 40 patches.
    left = torch.ones(40, dtype=torch.bool)
    left[output.scores.topk(6).indices] = False
    alone = model.host(bag.features[left], bag.coords[left]).logits
    torch.testing.assert_close(removed_logits(model, output, bag), alone, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("n", "floor"), [(1, 1), (40, 8)])
def test_a_bag_too_small_for_a_complement_has_no_necessity(n, floor):
    model, bags = make_model(min_patches=floor), training_bags(3, count=2, n=n)
    assert set(subset_terms(model, NullTarget(3), THREE, seen(model, bags), bags)) == {
        "sufficiency"
    }


# The whole


def test_the_paper_recipe_has_the_terms_of_the_paper():
    model = GceMil(prepared_host("abmil"), make_bank(), in_dim=16, settings=PAPER).eval()
    bags = training_bags(3)
    terms, outputs = evidence_terms(model, NullTarget(3), THREE, bags)
    assert set(terms) == {"task", "budget", "grounding", "utility", "bridge"}
    assert terms["bridge"].item() == pytest.approx(0.0, abs=1e-7)
    torch.testing.assert_close(terms["task"], mean_cross_entropy([o.logits for o in outputs], bags))


@pytest.mark.parametrize("targets", [[[3.0, 0.0], [5.0, 0.0]], [[5.0, 1.0], [3.0, 0.0]]])
def test_a_window_that_orders_nobody_has_no_cox_term_but_keeps_the_others(targets):
    """No event at all, or an event after which nobody is left to compare."""
    model = make_model(n_outputs=1)
    bags = [
        TrainingBag(*tensor_bag(40, seed=i), PATCH, torch.tensor(target))
        for i, target in enumerate(targets)
    ]
    terms, _ = evidence_terms(model, None, SurvivalTask(), bags)
    assert set(terms) == {"budget", "bridge", "grounding"}
    assert host_terms(model.host, SurvivalTask(), bags) == {}


def test_the_say_of_the_evidence_grows_from_nothing():
    bags = training_bags(3)
    names = {}
    for say in (0.0, 0.5, 1.0):
        model = make_model()
        terms, _ = evidence_terms(model, NullTarget(3), THREE, bags, weight=say)
        names[say] = {name: float(term.detach()) for name, term in terms.items()}
    plain = float(host_terms(make_model().host, THREE, bags)["task"].detach())
    assert names[0.0]["task"] == pytest.approx(plain, rel=1e-5)
    assert not {"sufficiency", "necessity"} & set(names[0.0])
    assert names[0.5]["sufficiency"] == pytest.approx(0.5 * names[1.0]["sufficiency"], rel=1e-5)
