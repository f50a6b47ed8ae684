"""Rules of the same size: on a planted fold every figure of the oracle is known by hand."""

import pytest
import torch

from builders.planted_folds import planted_fold
from builders.runs import TrainedRuns
from gcemil.diagnostics import budget
from gcemil.diagnostics.measurements import prefix_outcomes
from gcemil.diagnostics.snr import bag_outcome
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.recovery import ranking, top_k

TRUTH = ("precision", "recall", "average_precision", "region_coverage")
FEW = ("attention", "occlusion")


def rows(finding, **labels):
    return [row for row in finding.rows if labels.items() <= row.labels.items()]


def values(finding, **labels):
    (row,) = rows(finding, comparison="full-kept", **labels)
    return row.values


def test_the_planted_oracle_is_sufficient_and_necessary_as_by_hand(tmp_path):
    finding = budget.measure_budget(
        planted_fold(tmp_path, n_slides=6), budgets=(0.1,), attributions=FEW
    )
    oracle = values(finding, rule="oracle")
    assert oracle["evidence_sufficiency"] == oracle["task_metric"] == pytest.approx(1)
    assert oracle["keep_only_drop"] == pytest.approx(0, abs=1e-6)
    # Without its two patches a slide is all zeros: a tie, which goes to the first class. F1 2/3 and
    # 0.
    assert oracle["complement_degradation"] == pytest.approx(1 - 1 / 3)
    assert [oracle[name] for name in TRUTH] == pytest.approx([1, 1, 1, 1])
    # Two patches at 3 with attention 4 tanh 3, eighteen at 0 with attention 0.
    share = 2 / (2 + 18 * torch.exp(-4 * torch.tanh(torch.tensor(3.0))))
    full, kept = torch.sigmoid(3 * share), torch.sigmoid(torch.tensor(3.0))
    assert oracle["full_kept_gap"] == pytest.approx(float(kept - full), abs=1e-6)
    assert oracle["removal_effect"] == pytest.approx(float(full) - 0.5, abs=1e-6)


def test_prefixes_of_a_ranking_are_judged_by_real_removal(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    bag = next(iter(fold.bags()))
    view = bag.predict("wrapped")
    scores = torch.rand(len(bag), generator=torch.Generator().manual_seed(1))
    sizes = [1, 7, len(bag) - 1, len(bag)]
    for size, found in zip(sizes, prefix_outcomes(view, scores, sizes, None), strict=True):
        expected = bag_outcome(view.interventions, top_k(scores, size))
        torch.testing.assert_close(found.kept, expected.kept, atol=1e-5, rtol=0)
        assert (found.removed is None) == (expected.removed is None) == (size == len(bag))
        if expected.removed is not None:
            torch.testing.assert_close(found.removed, expected.removed, atol=1e-5, rtol=0)
        assert found.fraction == pytest.approx(expected.fraction)
    assert int(top_k(scores, 1).nonzero()) == int(ranking(scores)[0])


def test_without_truth_there_is_neither_oracle_nor_truth(tmp_path):
    fold = planted_fold(tmp_path, n_slides=4)
    for path in (tmp_path / "truth").iterdir():
        path.unlink()
    finding = budget.measure_budget(fold, attributions=FEW)
    assert not rows(finding, rule="oracle")
    assert all(row.values[name] is None for row in finding.rows for name in TRUTH)
    assert (
        "The cohort has no truth: there is neither an oracle row nor a figure against truth."
        in finding.notes
    )


def test_truth_for_some_bags_makes_no_oracle_over_some_bags(tmp_path):
    fold = planted_fold(tmp_path, n_slides=4)
    (tmp_path / "truth" / "s03.h5").unlink()
    finding = budget.measure_budget(fold, attributions=FEW)
    assert not rows(finding, rule="oracle")
    assert "Left out, because some bags cannot have them: oracle." in finding.notes


def test_a_run_without_a_wrapper_has_no_recovered_evidence(tmp_path):
    fold = planted_fold(tmp_path, n_slides=2)
    assert {row.labels["budget"] for row in budget.measure_budget(fold, attributions=FEW).rows} == {
        "0.01",
        "0.05",
        "0.1",
    }
    with pytest.raises(UsageError, match="for a run with a wrapper, got 'recovered'"):
        budget.measure_budget(fold, budgets=("recovered",))
