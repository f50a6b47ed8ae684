"""Answers from kept patches: the budget counts patches of the whole bag, and doubt is what two
answers do not share.
"""

import math

import numpy as np
import pytest
import torch

from builders.runs import TrainedRuns
from gcemil.bags.cohort import Cohort
from gcemil.explanation import explain_bag
from gcemil.prefilter.certificate import answer_from_kept, is_changed, measure_doubt, scale_budget
from gcemil.prefilter.cost import PrefilterCost, SlideCost, time_prefilter
from gcemil.runs.checkpoint import load_network


def logits(*probabilities):
    return torch.tensor([math.log(value) for value in probabilities])


def test_doubt_is_what_the_less_sure_of_two_answers_leaves_open():
    assert measure_doubt(logits(0.9, 0.1), logits(0.7, 0.3), deviation=1) == pytest.approx(0.3)
    assert measure_doubt(logits(0.7, 0.3), logits(0.9, 0.1), deviation=1) == pytest.approx(0.3)
    # All kept patches say the other class, so the evidence's class has little.
    assert measure_doubt(logits(0.8, 0.2), logits(0.2, 0.8), deviation=1) == pytest.approx(0.8)


def test_another_class_is_a_change_and_so_is_a_risk_that_moved_too_far():
    assert is_changed(logits(0.4, 0.6), logits(0.6, 0.4), deviation=1, tolerance=0.25)
    assert not is_changed(logits(0.51, 0.49), logits(0.99, 0.01), deviation=1, tolerance=0.25)
    assert is_changed(torch.tensor([1.0]), torch.tensor([0.0]), deviation=2, tolerance=0.25)
    assert not is_changed(torch.tensor([0.5]), torch.tensor([0.0]), deviation=2, tolerance=0.25)


@pytest.fixture(scope="module")
def model_and_bag(classification_runs: TrainedRuns):
    model = load_network(classification_runs.gce / "fold_0" / "checkpoint.safetensors")[0].model
    cohort = Cohort.load(classification_runs.cohort)
    return model, cohort.read_bag(cohort.bags[0])


def test_keeping_every_patch_is_the_whole_bag(model_and_bag):
    model, bag = model_and_bag
    whole = explain_bag(model, bag)
    answer = answer_from_kept(model, bag, np.arange(len(bag)), deviation=1.0)
    torch.testing.assert_close(answer.logits, whole.kept.logits)
    assert answer.evidence_rows.tolist() == whole.recovery.selected.nonzero().flatten().tolist()


def test_a_tenth_of_the_bag_may_have_as_many_patches_of_evidence_as_the_whole(model_and_bag):
    model, bag = model_and_bag
    before = (model.gate.budget, model.settings)
    scaled = scale_budget(model, share=0.1)
    assert scaled.gate.budget == pytest.approx(10 * model.gate.budget)
    assert scaled.settings.recovery.max_fraction == pytest.approx(1.0)
    assert (model.gate.budget, model.settings) == before
    assert scaled.host is model.host
    rows = np.arange(0, len(bag), 10)
    answer = answer_from_kept(model, bag, rows, deviation=1.0)
    assert set(answer.evidence_rows) <= set(rows)
    # Before free riders are left out, as many open as on the whole bag.
    assert (
        int(answer.explanation.output.opened.sum()) >= round(model.settings.budget * len(bag)) - 1
    )


def slide(certified, full, prefiltered, seconds):
    return SlideCost(
        "a", 10, 2, certified, [0], full, prefiltered, {"encoding": 8.0, "prediction": 2.0}, seconds
    )


def test_a_measurement_sums_seconds_and_what_they_would_be_with_another_encoder():
    slides = (
        slide(True, [0.9, 0.1], [0.8, 0.2], {"encoding": 1.0, "prediction": 1.0}),
        slide(False, [0.3, 0.7], [0.3, 0.7], {"encoding": 3.0, "prediction": 2.0}),
    )
    cost = PrefilterCost(0, 0.1, 1, "hash", 0.8, 0.6, slides)
    assert cost.summary == pytest.approx(
        {
            "extraction_time": 4 / 16,
            "end_to_end_time": 7 / 20,
            "relative_utility": 0.75,
            "fall_back": 0.5,
            "encoded": 0.2,
            "mean_change": 0.05,
        }
    )
    # Encoding took 16 s and prediction 4 s; explained three times as long.
    assert cost.unfiltered_time(3.0) == pytest.approx((16 + 12) / 20)
    # 20 patches against 4 encoded at a second each, and the predictions as they were.
    (row,) = time_prefilter(cost, {"vit_s": 1.0})
    assert row.labels == {
        "mode": "prefilter",
        "network": "wrapped",
        "timing": "computed",
        "encoder": "vit_s",
    }
    assert row.values == pytest.approx(
        {"extraction_time": 4 / 20, "end_to_end_time": (4 + 3) / (20 + 4)}
    )
    assert time_prefilter(None, {"vit_s": 1.0}) == []
