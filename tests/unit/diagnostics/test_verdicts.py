import dataclasses

import pytest
import torch

from gcemil.diagnostics.snr import BagOutputs, Tolerances, Verdict, judge_subset
from gcemil.diagnostics.snr_report import judge_subsets
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from run_builders import TrainedRuns

TOLERANCES = Tolerances(sufficiency=0.125, necessity=0.25, recoverability=0.0625)


def test_the_limits_themselves_are_within():
    found = judge_subset(BagOutputs(full=0.75, kept=0.625, removed=0.5, gated=0.6875), TOLERANCES)
    assert found == Verdict(sufficient=True, necessary=True, recoverable=True)


def test_just_beyond_the_limits_all_three_fail():
    found = judge_subset(BagOutputs(full=0.75, kept=0.624, removed=0.501, gated=0.687), TOLERANCES)
    assert found == Verdict(sufficient=False, necessary=False, recoverable=False)


def test_a_change_in_either_direction_counts():
    found = judge_subset(BagOutputs(full=0.5, kept=0.75, removed=0.75, gated=1.0), TOLERANCES)
    assert found == Verdict(sufficient=False, necessary=True, recoverable=False)


def test_a_whole_bag_leaves_nothing_behind_and_is_not_necessary():
    found = judge_subset(
        BagOutputs(full=0.75, kept=0.75, removed=None, gated=None), Tolerances(necessity=0.0)
    )
    assert found == Verdict(sufficient=True, necessary=False, recoverable=None)


@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_a_tolerance_is_a_difference(value):
    with pytest.raises(UsageError, match=f"tolerance of necessity is a difference of outputs.*{value}"):
        Tolerances(necessity=value)


def judged_fold(run, *, against=None, budget=0.05):
    fold = TrainedFold.open(run, 0, against=against)
    generator = torch.Generator().manual_seed(0)
    return [
        (bag, list(judge_subsets(bag, fold, Tolerances(), generator=generator, budget=budget)))
        for bag in fold.bags()
    ]


def test_every_rule_has_the_size_of_the_evidence(classification_runs: TrainedRuns):
    for bag, judged in judged_fold(classification_runs.gce, against=classification_runs.host):
        assert [(one.network, one.rule) for one in judged] == [
            ("plain", "attention"),
            ("plain", "random"),
            ("plain", "oracle"),
            ("wrapped", "evidence"),
            ("wrapped", "attention"),
            ("wrapped", "random"),
            ("wrapped", "oracle"),
        ]
        assert {int(one.selected.sum()) for one in judged} == {int(bag.explanation.recovery.selected.sum())}
        # Only the evidence has gates; both networks are asked about the same random patches.
        assert [one.rule for one in judged if one.outputs.gated is not None] == ["evidence"]
        assert judged[1].selected.equal(judged[5].selected)


def test_without_a_wrapper_the_budget_is_the_size(classification_runs: TrainedRuns):
    for bag, judged in judged_fold(classification_runs.host, budget=0.1):
        assert [one.rule for one in judged] == ["attention", "random", "oracle"]
        assert {int(one.selected.sum()) for one in judged} == {max(1, round(0.1 * len(bag)))}
        assert {one.verdict.recoverable for one in judged} == {None}


def test_the_oracle_takes_as_much_truth_as_its_size_allows(survival_runs: TrainedRuns):
    for bag, judged in judged_fold(survival_runs.host):
        found = {one.rule: int((one.selected & bag.truth).sum()) for one in judged}
        size = int(judged[0].selected.sum())
        assert found["oracle"] == min(size, int(bag.truth.sum()))
        assert found["oracle"] >= found["random"]


def test_outputs_of_a_risk_are_in_training_deviations(survival_runs: TrainedRuns):
    fold = TrainedFold.open(survival_runs.host, 0)
    bag = next(iter(fold.bags()))
    wide = dataclasses.replace(
        fold, scale=dataclasses.replace(fold.scale, deviation=2 * fold.scale.deviation)
    )
    one, other = (
        next(judge_subsets(bag, f, Tolerances(), generator=torch.Generator().manual_seed(0), budget=0.05))
        for f in (fold, wide)
    )
    assert one.outputs.full_kept_gap == pytest.approx(2 * other.outputs.full_kept_gap)
