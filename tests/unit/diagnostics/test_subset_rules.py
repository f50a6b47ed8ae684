import pytest
import torch

from builders.occlusion_loops import leave_one_out
from builders.planted_folds import planted_fold
from builders.runs import TrainedRuns
from gcemil.diagnostics.rules import (
    RANKED,
    choose_attributions,
    score_rules,
)
from gcemil.diagnostics.trained_fold import TrainedFold, predict_bag
from gcemil.errors import UsageError
from gcemil.recovery import top_k


def scores_of(fold, bag, network="wrapped", names=("attention", "occlusion")):
    rivals = choose_attributions(fold, names)[network]
    return score_rules(bag, network, attributions=rivals, ours=RANKED, smooth=True)


def test_smoothing_takes_half_of_a_score_from_the_patches_around(tmp_path):
    bag = next(iter(planted_fold(tmp_path).bags()))
    bag.view.attributed["attention"] = torch.zeros(20)
    bag.view.attributed["attention"][5] = 6.0
    # A single row of patches: three in every neighbourhood, two at the ends.
    smoothed = score_rules(bag, "wrapped", smooth=True)["attention_smoothed"]
    assert smoothed[4:7].tolist() == pytest.approx([1, 4, 1])
    assert smoothed.sum() == pytest.approx(6)


def test_a_bag_has_the_rules_its_host_its_gates_and_its_truth_allow(
    classification_runs: TrainedRuns,
):
    fold = TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    bag = next(iter(fold.bags()))
    rivals = {
        "random",
        "attention",
        "occlusion",
        "attention_smoothed",
        "occlusion_smoothed",
        "oracle",
    }
    assert set(scores_of(fold, bag, "plain")) == rivals
    assert set(scores_of(fold, bag, "wrapped")) == rivals | {"gce_soft", "gce_discrete"}


def test_evidence_rules_are_the_wrappers_own_at_its_own_size(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    for bag in fold.bags():
        scores = scores_of(fold, bag, names=())
        selected = bag.explanation.recovery.selected
        assert top_k(scores["gce_discrete"], int(selected.sum())).equal(selected)
        torch.testing.assert_close(scores["gce_soft"], bag.explanation.output.scores)


def test_attributions_explain_the_host_that_is_asked(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    bag = next(iter(fold.bags()))
    for network in fold.networks:
        scores = scores_of(fold, bag, network)
        torch.testing.assert_close(scores["attention"], bag.predict(network).full.scores)
        torch.testing.assert_close(
            scores["occlusion"],
            leave_one_out(predict_bag(fold.host_of(network), bag.features, bag.coords)),
            atol=1e-5,
            rtol=0,
        )


def test_an_unknown_attribution_is_named(tmp_path):
    with pytest.raises(UsageError, match="Unknown attribution 'shap'. Choose from: attention"):
        choose_attributions(planted_fold(tmp_path), ["shap"])
