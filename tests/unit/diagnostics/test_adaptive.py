"""Sizes that follow the bag: calibrated on shares counted by hand, and walked on a planted fold whose sizes are known."""

from dataclasses import replace

import pytest
import torch

from builders.folds import few_bags, fold_of, one_patch_fold
from builders.planted_folds import planted_fold
from builders.runs import TrainedRuns
from gcemil.diagnostics import adaptive
from gcemil.diagnostics.adaptive import PrefixLogits, Steps, choose_tolerance, start_search
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.findings import Finding, Row, read_finding, write_finding
from gcemil.hosts.abmil import Abmil
from gcemil.recovery.recover import ranking, top_k
from gcemil.report.sections.robustness import choose_main_rows, sort_rows

SHARES = [[0.1, 0.06, 0.02], [0.1, 0.04, 0.01], [0.1, 0.05, 0.03]]
"""Three bags under three tolerances: means .1, .05 and .02."""
LADDER = (0.01, 0.05, 0.2)
BY_PATCH = {"step_fraction": 0.05, "max_fraction": 0.5}
"""Of twenty patches: one after another, up to ten."""


def rows(finding, **labels):
    return [row for row in finding.rows if labels.items() <= row.labels.items()]


def values(finding, **labels):
    (row,) = rows(finding, comparison="full-kept", **labels)
    return row.values


def calibrated_fold(folder, *, only=None, n_slides=12):
    """The planted fold with its bags, or those of one class, as validation and as test part."""
    fold = planted_fold(folder, n_slides=n_slides)
    fold = fold if only is None else fold_of(fold, lambda spec: spec.target == only)
    return replace(fold, parts=replace(fold.parts, val=fold.parts.test))


def test_the_smallest_tolerance_that_keeps_the_budget_is_chosen():
    chosen = choose_tolerance(LADDER, SHARES, mean_budget=0.05)
    assert (chosen.tolerance, chosen.n_bags, chosen.is_within) == (0.05, 3, True)
    assert chosen.mean_share == pytest.approx(0.05)
    assert choose_tolerance(LADDER, SHARES, mean_budget=0.1).tolerance == 0.01
    assert choose_tolerance(LADDER, SHARES, mean_budget=0.03).tolerance == 0.2


def test_the_largest_tolerance_stands_in_where_none_keeps_the_budget():
    chosen = choose_tolerance(LADDER, SHARES, mean_budget=0.01)
    assert (chosen.tolerance, chosen.is_within) == (0.2, False)
    assert chosen.mean_share == pytest.approx(0.02)


def test_sizes_rise_in_steps_of_one_percent_up_to_ten_each_tried_once():
    assert Steps().sizes(250) == [2, 5, 8, 10, 12, 15, 18, 20, 22, 25]
    assert Steps().sizes(20) == [1, 2]
    assert Steps().sizes(1) == [1]


def planted_sizes(fold, tolerances):
    """Size and whether it is sufficient and necessary, for each tolerance."""
    bag = next(iter(fold.bags()))
    way = start_search(fold, bag, bag.predict("wrapped"), Steps(**BY_PATCH))
    return [way.smallest(tolerance) for tolerance in tolerances]


def test_the_planted_sizes_are_those_worked_out_by_hand(tmp_path):
    # Phi(X) = sigmoid(3 * 2 / (2 + 18 e)) = .9288, e = exp(-4 tanh 3). The first k >= 2 patches say
    # sigmoid(3 * 2 / (2 + (k - 2) e)): .9526 with two, .9487 with five, .9435 with nine and .9422 with ten.
    # One patch says .9526 too, but the other one keeps the class. Two leave nothing but a tie, which goes to 'left'.
    right = calibrated_fold(tmp_path, only=1)
    assert planted_sizes(right, [0.01, 0.02, 0.05, 0.2]) == [
        (10, False),
        (5, True),
        (2, True),
        (2, True),
    ]


def test_a_class_predicted_from_nothing_cannot_be_necessary_and_gets_what_suffices(tmp_path):
    left = calibrated_fold(tmp_path, only=0)
    assert planted_sizes(left, [0.01, 0.02, 0.05]) == [
        (10, False),
        (5, False),
        (1, False),
    ]


def test_the_planted_tolerance_and_sizes_stand_in_the_finding(tmp_path):
    fold = calibrated_fold(tmp_path, only=1)
    finding = adaptive.measure_adaptive(fold, mean_budget=0.3, **BY_PATCH)
    assert finding.notes[0] == (
        "Fold 0: tolerance 0.02, the smallest of 0.01, 0.02, 0.05, 0.1, 0.2 that keeps the mean budget of 0.3 "
        "(6 validation bags, mean share of patches 0.2500)."
    )
    assert "its host's attention gives the sizes" in finding.notes[1]
    walked = values(finding, rule="attention")
    assert (walked["reached_share"], walked["capped_share"]) == pytest.approx((1, 0))
    assert {row.values["evidence_fraction"] for row in finding.rows} == {0.25}
    assert {row.labels["budget"] for row in finding.rows} == {"adaptive"}
    assert {line["n_selected"] for line in finding.slides} == {5}
    assert values(finding, rule="oracle")["precision"] == pytest.approx(2 / 5)


def test_a_budget_out_of_reach_is_said(tmp_path):
    finding = adaptive.measure_adaptive(calibrated_fold(tmp_path, n_slides=4), mean_budget=0.01)
    assert finding.notes[0] == (
        "Fold 0: no tolerance of 0.01, 0.02, 0.05, 0.1, 0.2 keeps the mean budget of 0.01; the largest, 0.2, is used "
        "(4 validation bags, mean share of patches 0.0750)."
    )
    # Two of twenty patches for 'right'; one suffices for 'left', without which the host says the same.
    walked = values(finding, rule="attention")
    assert (walked["reached_share"], walked["capped_share"]) == pytest.approx((0.5, 0.5))


def test_the_planted_oracle_beats_chance_at_sizes_that_differ(tmp_path):
    finding = adaptive.measure_adaptive(calibrated_fold(tmp_path), mean_budget=0.1, **BY_PATCH)
    assert finding.notes[0].startswith("Fold 0: tolerance 0.05,")
    assert {line["n_selected"] for line in finding.slides} == {1, 2}
    oracle, chance = (values(finding, rule=rule) for rule in ("oracle", "random"))
    assert oracle["evidence_fraction"] == chance["evidence_fraction"] == pytest.approx(0.075)
    assert oracle["keep_only_drop"] == pytest.approx(0, abs=1e-6)
    for name in ("evidence_sufficiency", "complement_degradation", "precision"):
        assert oracle[name] > chance[name], name
    assert oracle["full_kept_gap"] < chance["full_kept_gap"]


@pytest.mark.parametrize("kind", ["classification_runs", "survival_runs"])
def test_rules_share_their_sizes_and_the_oracle_is_best_on_truth(kind, request):
    runs: TrainedRuns = request.getfixturevalue(kind)
    fold = TrainedFold.open(runs.gce, 0, against=runs.host)
    finding = adaptive.measure_adaptive(fold)
    assert f"({len(fold.specs('val'))} validation bags, mean share" in finding.notes[0]
    sizes = {}
    for line in finding.slides:
        sizes.setdefault(line["bag_id"], set()).add(line["n_selected"])
    assert len(sizes) == len(fold.specs())
    assert all(len(found) == 1 for found in sizes.values())
    for network in ("plain", "wrapped"):
        found = rows(finding, network=network, comparison="full-kept")
        rules = {row.labels["rule"]: row.values for row in found}
        own = {"gce_soft"} if network == "wrapped" else set()
        assert set(rules) == {"random", "attention", "attention_smoothed", "oracle"} | own
        assert all(rules["oracle"]["precision"] >= one["precision"] for one in rules.values())
        assert rules["oracle"]["precision"] > rules["random"]["precision"]
    walked = values(finding, rule="gce_soft")
    assert walked["reached_share"] + walked["capped_share"] == pytest.approx(1)
    assert all("reached_share" not in row.values for row in finding.rows if row.values is not walked)


def test_the_closed_form_walks_as_real_removal_does(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    bag = next(iter(fold.bags()))
    view = bag.predict("wrapped")
    assert isinstance(view.host, Abmil)
    scores = torch.rand(len(bag), generator=torch.Generator().manual_seed(1))
    prefixes = PrefixLogits(view, ranking(scores), range(1, 8))
    for size in (1, 5, len(bag) - 1, len(bag)):
        kept = view.asked.kept(top_k(scores, size)).logits
        torch.testing.assert_close(prefixes.logits(size), kept, atol=1e-5, rtol=0)


class OwnPooling(Abmil):
    """A host that the closed form does not know, and that counts its passes."""

    passes = 0

    def aggregate(self, *args, **kwargs):
        type(self).passes += 1
        return super().aggregate(*args, **kwargs)


def test_a_host_without_closed_form_finds_the_same_sizes_and_pools_each_once(tmp_path):
    fold = calibrated_fold(tmp_path, only=1)
    fold.host.__class__ = OwnPooling
    tolerances = [0.02, 0.05]
    assert planted_sizes(fold, tolerances) == [(5, True), (2, True)]
    # The bag, its first one to five patches, and the complements of one, two and five: the others do not suffice at .02.
    assert OwnPooling.passes == 1 + 5 + 3


def test_a_risk_that_may_move_at_will_is_never_necessary(survival_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(survival_runs.gce, 0))
    # No prefix is exactly the whole bag, so the largest is taken.
    walked = values(adaptive.measure_adaptive(fold, risk_tolerance=1e9, tolerances=(0.0,)), rule="gce_soft")
    assert (walked["reached_share"], walked["capped_share"]) == pytest.approx((0, 1))
    assert walked["evidence_fraction"] == pytest.approx(0.1, abs=0.01)


def test_a_risk_that_may_not_move_is_necessary_from_the_first_step(survival_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(survival_runs.gce, 0))
    walked = values(adaptive.measure_adaptive(fold, risk_tolerance=0.0, tolerances=(1e9,)), rule="gce_soft")
    assert (walked["reached_share"], walked["capped_share"]) == pytest.approx((1, 0))
    assert walked["evidence_fraction"] == pytest.approx(0.01, abs=0.005)


def test_bags_of_one_patch_are_their_own_evidence(tmp_path, classification_runs: TrainedRuns):
    fold = few_bags(one_patch_fold(TrainedFold.open(classification_runs.gce, 0), tmp_path / "cohort"))
    finding = adaptive.measure_adaptive(fold, tolerances=(0.0,))
    assert all(row.values["evidence_fraction"] == 1 for row in finding.rows)
    walked = values(finding, rule="gce_soft")
    assert (walked["reached_share"], walked["keep_only_drop"], walked["full_kept_gap"]) == pytest.approx(
        (1, 0, 0), abs=1e-6
    )
    assert walked["complement_degradation"] is None
    assert "mean share of patches 1.0000" in finding.notes[0]


def test_without_an_event_there_is_no_task_metric_and_a_note_says_so(survival_runs: TrainedRuns):
    fold = fold_of(TrainedFold.open(survival_runs.gce, 0), lambda spec: spec.target[1] == 0)
    finding = adaptive.measure_adaptive(fold)
    assert all(row.values["evidence_sufficiency"] is None for row in finding.rows)
    assert any(note.startswith("No task metric on these bags:") for note in finding.notes)


def test_the_same_seed_gives_the_same_finding_and_json_keeps_it(tmp_path):
    fold = calibrated_fold(tmp_path, n_slides=4)
    one, other = (adaptive.measure_adaptive(fold, tolerances=[0.2, 0.05, 0.05]) for _ in range(2))
    assert one == other
    assert one.settings["tolerances"] == [0.05, 0.2]
    assert read_finding(write_finding(tmp_path, one)).rows == one.rows


def test_the_report_shows_the_walk_first_and_one_comparison():
    keys = [("random", "full-kept"), ("gce_soft", "full-kept"), ("gce_soft", "soft-kept")]
    made = [
        Row({"rule": rule, "network": "wrapped", "budget": "adaptive", "comparison": comparison}, {})
        for rule, comparison in keys
    ]
    ordered = sort_rows(Finding("adaptive", tuple(made)))
    assert ordered == [made[1], made[0], made[2]]
    assert choose_main_rows(None, "adaptive", ordered) == [made[1], made[0]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tolerances": ()}, "tolerances needs at least one number"),
        ({"tolerances": (-0.1,)}, "A tolerance is at least 0, got -0.1"),
        ({"mean_budget": 0.0}, r"mean_budget is a share of the bag in \(0, 1\], got 0.0"),
        ({"step_fraction": 0.2}, r"step_fraction lies in \(0, 0.1\]"),
        ({"max_fraction": 1.5}, r"A fraction of the bag lies in \(0, 1\], got 1.5"),
        ({"risk_tolerance": -1.0}, "risk_tolerance is at least 0, got -1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(tmp_path, wrong, message):
    with pytest.raises(UsageError, match=message):
        adaptive.measure_adaptive(calibrated_fold(tmp_path, n_slides=2), **wrong)


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_fold_without_bags_to_calibrate_or_measure_is_refused(tmp_path, part):
    fold = calibrated_fold(tmp_path, n_slides=2)
    with pytest.raises(UsageError, match=f"has no {part} bags; an adaptive size is calibrated on val"):
        adaptive.measure_adaptive(replace(fold, parts=replace(fold.parts, **{part: ()})))
