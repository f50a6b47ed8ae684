"""From a bag to its evidence: recovery under the model's settings, and records per slide."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from builders.wrappers import PATCH, prepared_host, tensor_bag, wrapped
from gcemil.bags.bag import case_bag, slide_bag
from gcemil.errors import BagError, UsageError
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.coverage import anchor_coverage, utility
from gcemil.evidence.gates import GATES
from gcemil.explanation import (
    Interventions,
    explain_bag,
    explain_slide,
    lesion_strength,
    recover_evidence,
    slide_evidence,
)
from gcemil.records import describe_verdict
from gcemil.recovery import ranking, recover


def class_probability(logits, index):
    return float(torch.softmax(logits.double(), dim=0)[index])


def make_slide(n=60, slide_id="slide", seed=0, coords=True):
    features, places = tensor_bag(n, seed=seed)
    return slide_bag(slide_id, features.numpy(), places.numpy() if coords else None, PATCH)


def make_model(n_outputs=3, **settings):
    """With repair and without the rule on free riders, so that Algorithm 1 is seen as it is."""
    recovery = {"repair": True, "drop_free_riders": False, **settings.pop("recovery", {})}
    return wrapped(prepared_host("abmil", n_outputs=n_outputs), recovery=recovery, **settings)


def test_the_order_takes_the_evidence_first_and_score_and_contribution_decide_alike():
    model, bag = make_model(), make_slide()
    explanation = explain_bag(model, bag)
    output, selected = explanation.output, explanation.recovery.selected
    size = int(selected.sum())
    assert set(ranking(explanation.order)[:size].tolist()) == set(
        selected.nonzero().ravel().tolist()
    )
    ranks = [
        values.argsort().argsort().double()
        for values in (output.scores, output.answer.contributions)
    ]
    rest = ~selected
    # Ranks of the product count from 1.
    torch.testing.assert_close(
        explanation.order[rest].double(), (ranks[0] + ranks[1])[rest] / 2 + 1
    )


def test_the_discrete_prediction_is_the_host_on_the_selected_rows_alone():
    model, bag = make_model(), make_slide()
    explanation = explain_bag(model, bag)
    rows = explanation.recovery.selected
    with torch.no_grad():
        alone = model.host(torch.from_numpy(bag.features)[rows], torch.from_numpy(bag.coords)[rows])
    torch.testing.assert_close(explanation.kept.logits, alone.logits)
    assert 0 < int(rows.sum()) < len(bag)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_recovery_takes_the_settings_and_the_predicted_class(n_outputs):
    settings = {
        "threshold": 0.6,
        "coverage_target": 0.7,
        "max_fraction": 0.3,
        "reachable": False,
        "min_weight_share": 0.9,
    }
    model = make_model(n_outputs, recovery=settings)
    with torch.no_grad():
        for parameter in model.utility.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            )
    output = explain_bag(model, make_slide()).output
    found = recover_evidence(model, output, None)
    expected = recover(
        output.gates,
        output.responses,
        model.anchor_weights(output.full_logits).detach(),
        **settings,
    )
    assert torch.equal(found.selected, expected.selected)
    torch.testing.assert_close(found.targets, expected.targets)
    assert found.stop_reason == expected.stop_reason


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("threshold", 0.1),
        ("coverage_target", 0.2),
        ("max_fraction", 0.04),
        ("reachable", False),
        ("min_weight_share", 1.0),
        ("repair", False),
        ("shortlist", 1),
    ],
)
def test_every_recovery_setting_is_honoured(changed, value):
    base = {"coverage_target": 0.9, "max_fraction": 1.0, "min_weight_share": 0.0}
    plain, other = make_model(recovery=base), make_model(recovery={**base, changed: value})
    with torch.no_grad():
        for model in (plain, other):
            model.utility.raw_weights.copy_(torch.arange(12.0).reshape(3, 4) / 4)
    one, two = (explain_bag(model, make_slide()).recovery for model in (plain, other))
    differs = not torch.equal(one.selected, two.selected) or not torch.equal(
        one.targets, two.targets
    )
    assert differs


def test_a_patch_that_the_prediction_does_not_rest_on_is_no_evidence():
    bag = make_slide(200)
    with_riders, without = (
        explain_bag(
            make_model(recovery={"repair": False, "drop_free_riders": drops}, budget=0.3), bag
        )
        for drops in (False, True)
    )
    dropped = with_riders.recovery.selected & ~without.recovery.selected
    assert bool(dropped.any())
    assert bool((without.recovery.selected <= with_riders.recovery.selected).all())
    # Around a host alone the rule is its contribution: what stays contributes more than what goes does on average.
    shares, left = with_riders.output.full.contributions, without.recovery.selected
    assert float(shares[left].mean()) > float(shares[dropped].mean())


def test_the_verdict_of_the_evidence_is_that_of_its_own_interventions():
    model, bag = make_model(), make_slide()
    explanation = explain_bag(model, bag)
    evidence = slide_evidence(model, bag, explanation)[0]
    asked = Interventions(model.host, torch.from_numpy(bag.features), torch.from_numpy(bag.coords))
    selected, predicted = (
        explanation.recovery.selected,
        int(explanation.output.full_logits.argmax()),
    )
    full, kept, removed = (
        class_probability(found.logits, predicted)
        for found in (asked.full(), asked.kept(selected), asked.removed(selected))
    )
    assert evidence.is_sufficient == (abs(kept - full) <= 0.05)
    assert evidence.is_necessary == (abs(removed - full) >= 0.05)


def test_without_repair_the_evidence_is_what_the_gate_opened():
    explanation = explain_bag(
        make_model(recovery={"repair": False, "max_fraction": 1.0}), make_slide()
    )
    assert torch.equal(explanation.recovery.selected, explanation.output.opened)
    assert len(explanation.recovery.added) == 0


@pytest.mark.parametrize("gate", GATES)
def test_every_gate_is_repaired(gate):
    """A gate that is left out of repair would have another C-D gap for that reason alone."""
    recovery = {
        "coverage_target": 0.99,
        "max_fraction": 1.0,
        "reachable": True,
        "min_weight_share": 0.0,
    }
    explanation = explain_bag(make_model(recovery=recovery, gate=gate), make_slide())
    found = explanation.recovery
    assert len(found.added) > 0 or bool((found.coverage >= found.targets - 1e-6).all())


def test_repair_adds_from_the_shortlist_alone():
    recovery = {"coverage_target": 0.99, "max_fraction": 1.0, "min_weight_share": 0.0}
    free = explain_bag(make_model(recovery=recovery), make_slide()).recovery
    model = make_model(recovery={**recovery, "shortlist": 12})
    explanation = explain_bag(model, make_slide())
    first = ranking(explanation.output.gates)[:12].tolist()
    assert len(free.added) > 12
    assert set(explanation.recovery.added.tolist()) <= set(first)


def test_prototypes_are_shown_but_do_not_repair():
    bank = AnchorBank.prototypes(torch.from_numpy(make_slide(seed=4).features), 4)
    shown, asked = (
        explain_bag(make_model(bank=bank, ground_prototypes=ground), make_slide())
        for ground in (False, True)
    )
    assert torch.equal(shown.recovery.selected, shown.output.opened)
    assert len(asked.recovery.added) > 0


def test_evidence_grows_by_score_until_it_says_what_the_gates_say():
    # Warm gates leave much half open, so the thresholded set alone is far from what they say.
    settings = {"repair": False, "max_fraction": 1.0, "recoverability_tolerance": 0.002}
    grown, short = (
        make_model(budget=0.05, min_patches=1, recovery={**settings, "until_sufficient": grows})
        for grows in (True, False)
    )
    for model in (grown, short):
        model.set_temperature(3.0)
    found, before = explain_bag(grown, make_slide()), explain_bag(short, make_slide())
    predicted = int(found.output.full_logits.argmax())

    def gap(explanation):
        soft, kept = explanation.output.logits, explanation.kept.logits
        return abs(class_probability(soft, predicted) - class_probability(kept, predicted))

    assert gap(before) > 0.002 >= gap(found)
    added = found.recovery.added
    assert (
        int(found.recovery.selected.sum()) == int(before.recovery.selected.sum()) + len(added) > 0
    )
    scores = found.output.scores[added]
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    assert bool((found.recovery.gains >= 0).all())


def test_growth_stops_at_its_cap():
    settings = {
        "repair": False,
        "max_fraction": 0.2,
        "recoverability_tolerance": 0.0,
        "until_sufficient": True,
    }
    model = make_model(budget=0.05, min_patches=1, recovery=settings)
    model.set_temperature(3.0)
    assert explain_bag(model, make_slide()).recovery.fraction == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("gate", ["sparsemax", "entmax15"])
def test_simplex_gates_select_their_support_however_small_they_are(gate):
    model = make_model(gate=gate, recovery={"repair": False, "max_fraction": 1.0})
    # Warm enough for several patches to share the support.
    model.set_temperature(3.0)
    explanation = explain_bag(model, make_slide())
    selected = explanation.recovery.selected
    assert torch.equal(selected, explanation.output.opened)
    assert (explanation.output.gates[selected] < 0.5).any()


def test_a_record_is_the_explanation_in_plain_arrays():
    model, bag = make_model(), make_slide()
    explanation = explain_bag(model, bag)
    (record,) = slide_evidence(model, bag, explanation, hashes={"model": "abc"})
    output = explanation.output
    assert record.slide_id == "slide"
    assert record.hashes == {"model": "abc"}
    assert record.prompts == model.bank.prompts
    assert record.stop_reason == explanation.recovery.stop_reason.value
    np.testing.assert_array_equal(record.indices, explanation.recovery.selected.nonzero().flatten())
    np.testing.assert_array_equal(record.scores, output.full.scores)
    np.testing.assert_array_equal(record.evidence_scores, output.scores)
    np.testing.assert_array_equal(record.coords, bag.coords)
    kept = explanation.recovery.selected.float()
    np.testing.assert_allclose(record.coverage, anchor_coverage(kept, output.responses), rtol=1e-5)
    assert record.fraction == pytest.approx(float(kept.mean()))


def test_the_marginal_gain_is_what_a_patch_adds_to_the_evidence_or_costs_it():
    model, bag = make_model(), make_slide()
    explanation = explain_bag(model, bag)
    (record,) = slide_evidence(model, bag, explanation)
    weights = model.anchor_weights(explanation.output.full_logits).detach().double()
    responses = explanation.output.responses.double()
    kept = explanation.recovery.selected.double()
    for patch in (int(kept.argmax()), int(kept.argmin())):
        on, off = kept.clone(), kept.clone()
        on[patch], off[patch] = 1.0, 0.0
        gain = utility(on, responses, weights) - utility(off, responses, weights)
        assert record.marginal_gain[patch] == pytest.approx(float(gain), rel=1e-4, abs=1e-7)


def test_explain_slide_refuses_a_case_of_two():
    bag = case_bag("case", [make_slide(slide_id="a"), make_slide(slide_id="b")])
    with pytest.raises(BagError, match="'case' has 2 slides"):
        explain_slide(make_model(), bag)


def test_a_bag_without_coordinates_has_evidence_without_them():
    record = explain_slide(make_model(), make_slide(coords=False))
    assert record.coords is None
    assert record.selected.any()


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(UsageError, match=r"Call model.eval\(\) first"):
        explain_bag(make_model().train(), make_slide())


def test_evidence_on_slides_without_a_lesion_is_confirmed_only_above_the_threshold():
    model, bag = make_model(), make_slide()
    explanation = explain_bag(model, bag)
    assert explanation.is_confirmed is None
    predicted = int(explanation.output.answer.logits.argmax())
    model.negative_class.fill_(predicted)
    assert explain_bag(model, bag).is_confirmed is False
    model.negative_class.fill_((predicted + 1) % 3)
    holding = replace(explanation.verdict, is_sufficient=True, is_necessary=True, keeps_class=True)
    strength = lesion_strength(model, explanation.output, explanation.kept, holding)
    negative = torch.softmax(explanation.kept.logits.double(), dim=0)[(predicted + 1) % 3]
    assert strength == pytest.approx(1 - float(negative), abs=1e-6)
    model.confirmation_threshold.fill_(1.0)
    assert explain_bag(model, bag).is_confirmed is False
    assert "slides without one show as much" in describe_verdict(True, True, False)
