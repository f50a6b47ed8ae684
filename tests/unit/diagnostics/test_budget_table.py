"""Rules of the same size: on a planted fold every figure of the oracle is known by hand."""

from dataclasses import replace

import pytest
import torch

from builders.folds import few_bags, fold_of, one_patch_fold
from builders.planted_folds import planted_fold
from builders.runs import TrainedRuns
from gcemil.diagnostics import budget
from gcemil.diagnostics.measurements import prefix_outcomes
from gcemil.diagnostics.snr import bag_outcome
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.findings import read_finding, write_finding
from gcemil.metrics import METRICS
from gcemil.recovery.recover import ranking, top_k

TRUTH = ("precision", "recall", "average_precision", "region_coverage")
FEW = ("attention", "occlusion")


def rows(finding, **labels):
    return [row for row in finding.rows if labels.items() <= row.labels.items()]


def values(finding, **labels):
    (row,) = rows(finding, comparison="full-kept", **labels)
    return row.values


def test_the_planted_oracle_is_sufficient_and_necessary_as_by_hand(tmp_path):
    finding = budget.measure_budget(planted_fold(tmp_path, n_slides=6), budgets=(0.1,), attributions=FEW)
    oracle = values(finding, rule="oracle")
    assert oracle["evidence_sufficiency"] == oracle["task_metric"] == pytest.approx(1)
    assert oracle["keep_only_drop"] == pytest.approx(0, abs=1e-6)
    # Without its two patches a slide is all zeros: a tie, which goes to the first class. F1 2/3 and 0.
    assert oracle["complement_degradation"] == pytest.approx(1 - 1 / 3)
    assert [oracle[name] for name in TRUTH] == pytest.approx([1, 1, 1, 1])
    # Two patches at 3 with attention 4 tanh 3, eighteen at 0 with attention 0.
    share = 2 / (2 + 18 * torch.exp(-4 * torch.tanh(torch.tensor(3.0))))
    full, kept = torch.sigmoid(3 * share), torch.sigmoid(torch.tensor(3.0))
    assert oracle["full_kept_gap"] == pytest.approx(float(kept - full), abs=1e-6)
    assert oracle["removal_effect"] == pytest.approx(float(full) - 0.5, abs=1e-6)


def test_the_planted_oracle_beats_chance_on_every_figure_that_has_a_better_side(tmp_path):
    finding = budget.measure_budget(planted_fold(tmp_path), budgets=(0.05, 0.1), attributions=FEW)
    for size in ("0.05", "0.1"):
        oracle, chance = (values(finding, rule=rule, budget=size) for rule in ("oracle", "random"))
        for name, value in oracle.items():
            if METRICS[name].direction == "higher" and name != "task_metric":
                assert value >= chance[name], name
            if METRICS[name].direction == "lower" and value is not None:
                assert value <= chance[name], name
        assert oracle["full_kept_gap"] < chance["full_kept_gap"]
        assert oracle["removal_effect"] > chance["removal_effect"]
        assert all(oracle[name] > chance[name] for name in TRUTH)


@pytest.mark.parametrize("kind", ["classification_runs", "survival_runs"])
def test_every_rule_has_the_same_size_and_the_oracle_is_best_on_truth(kind, request):
    runs: TrainedRuns = request.getfixturevalue(kind)
    fold = TrainedFold.open(runs.gce, 0, against=runs.host)
    finding = budget.measure_budget(fold, budgets=(0.05, "recovered"), attributions=FEW)
    for network in ("plain", "wrapped"):
        for size in ("0.05", "recovered"):
            found = rows(finding, network=network, budget=size, comparison="full-kept")
            rules = {row.labels["rule"]: row.values for row in found}
            assert {"random", "oracle", "attention", "occlusion_smoothed"} <= set(rules)
            assert ("gce_discrete" in rules) == (network == "wrapped")
            assert len({round(one["evidence_fraction"], 12) for one in rules.values()}) == 1
            for name in TRUTH:
                assert all(rules["oracle"][name] >= one[name] for one in rules.values()), name
                assert rules["oracle"][name] > rules["random"][name] or rules["oracle"][name] == 1, name


def test_the_two_gaps_never_stand_in_one_row(classification_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(classification_runs.gce, 0))
    finding = budget.measure_budget(fold, budgets=(0.05, "recovered"), attributions=FEW)
    for row in finding.rows:
        gated = row.labels["comparison"] == "soft-kept"
        assert (row.values["cd_gap"] is not None) == gated
        assert (row.values["full_kept_gap"] is not None) == (not gated)
        assert "cd_gap" not in row.deviations or gated
    soft = {row.labels["rule"] for row in finding.rows if row.labels["comparison"] == "soft-kept"}
    assert soft == {"gce_soft", "gce_discrete"}


def test_prefixes_of_a_ranking_are_judged_by_real_removal(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    bag = next(iter(fold.bags()))
    view = bag.predict("wrapped")
    scores = torch.rand(len(bag), generator=torch.Generator().manual_seed(1))
    sizes = [1, 7, len(bag) - 1, len(bag)]
    for size, found in zip(sizes, prefix_outcomes(view, scores, sizes, None), strict=True):
        expected = bag_outcome(view.asked, top_k(scores, size))
        torch.testing.assert_close(found.kept, expected.kept, atol=1e-5, rtol=0)
        assert (found.removed is None) == (expected.removed is None) == (size == len(bag))
        if expected.removed is not None:
            torch.testing.assert_close(found.removed, expected.removed, atol=1e-5, rtol=0)
        assert found.fraction == pytest.approx(expected.fraction)
    assert int(top_k(scores, 1).nonzero()) == int(ranking(scores)[0])


def test_the_whole_bag_loses_nothing_and_leaves_nothing(tmp_path):
    finding = budget.measure_budget(planted_fold(tmp_path, n_slides=4), budgets=(1.0,), attributions=FEW)
    for row in finding.rows:
        assert row.values["keep_only_drop"] == pytest.approx(0, abs=1e-6)
        assert row.values["full_kept_gap"] == pytest.approx(0, abs=1e-6)
        assert row.values["complement_degradation"] is None
        assert row.values["removal_gap"] is None


def test_bags_of_one_patch_are_their_own_evidence(tmp_path, classification_runs: TrainedRuns):
    fold = one_patch_fold(TrainedFold.open(classification_runs.gce, 0), tmp_path / "cohort")
    finding = budget.measure_budget(few_bags(fold))
    assert all(row.values["evidence_fraction"] == 1 for row in finding.rows)
    assert all(row.values["keep_only_drop"] == 0 for row in rows(finding, comparison="full-kept"))


def test_bags_of_one_class_have_figures(tmp_path):
    fold = fold_of(planted_fold(tmp_path), lambda spec: spec.target == 1)
    oracle = values(budget.measure_budget(fold, budgets=(0.1,), attributions=FEW), rule="oracle")
    assert oracle["evidence_sufficiency"] == pytest.approx(1)
    assert oracle["complement_degradation"] == pytest.approx(1)


def test_without_an_event_there_is_no_task_metric_and_a_note_says_so(survival_runs: TrainedRuns):
    fold = fold_of(TrainedFold.open(survival_runs.gce, 0), lambda spec: spec.target[1] == 0)
    finding = budget.measure_budget(fold, attributions=FEW)
    assert all(row.values["evidence_sufficiency"] is None for row in finding.rows)
    assert values(finding, rule="random", budget="0.05")["full_kept_gap"] > 0
    assert any(note.startswith("No task metric on these bags:") for note in finding.notes)


def test_signed_differences_of_risks_are_left_out(survival_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(survival_runs.gce, 0))
    finding = budget.measure_budget(fold, budgets=(0.05,), attributions=FEW)
    one = values(finding, rule="random", budget="0.05")
    assert one["removal_effect"] is None
    assert one["removal_gap"] > 0


def test_without_truth_there_is_neither_oracle_nor_truth(tmp_path):
    fold = planted_fold(tmp_path, n_slides=4)
    for path in (tmp_path / "truth").iterdir():
        path.unlink()
    finding = budget.measure_budget(fold, attributions=FEW)
    assert not rows(finding, rule="oracle")
    assert all(row.values[name] is None for row in finding.rows for name in TRUTH)
    assert (
        "The cohort has no truth: there is neither an oracle row nor a figure against truth." in finding.notes
    )


def test_truth_for_some_bags_makes_no_oracle_over_some_bags(tmp_path):
    fold = planted_fold(tmp_path, n_slides=4)
    (tmp_path / "truth" / "s03.h5").unlink()
    finding = budget.measure_budget(fold, attributions=FEW)
    assert not rows(finding, rule="oracle")
    assert "Left out, because some bags cannot have them: oracle." in finding.notes


def test_the_same_seed_gives_the_same_finding_and_json_keeps_it(tmp_path):
    fold = planted_fold(tmp_path, n_slides=4)
    one, other = (budget.measure_budget(fold, budgets=(0.1,), attributions=FEW) for _ in range(2))
    assert one == other
    assert read_finding(write_finding(tmp_path, one)).rows == one.rows
    assert budget.measure_budget(replace(fold, seed=1), budgets=(0.1,), attributions=FEW) != one


def test_budgets_are_three_shares_and_the_size_of_the_evidence(classification_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(classification_runs.gce, 0), 1)
    finding = budget.measure_budget(fold, attributions=FEW)
    assert {row.labels["budget"] for row in finding.rows} == {"0.01", "0.05", "0.1", "recovered"}


def test_a_run_without_a_wrapper_has_no_recovered_evidence(tmp_path):
    fold = planted_fold(tmp_path, n_slides=2)
    assert {row.labels["budget"] for row in budget.measure_budget(fold, attributions=FEW).rows} == {
        "0.01",
        "0.05",
        "0.1",
    }
    with pytest.raises(UsageError, match="for a run with a wrapper, got 'recovered'"):
        budget.measure_budget(fold, budgets=("recovered",))
