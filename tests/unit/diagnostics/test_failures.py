import dataclasses

import numpy as np
import pytest
import torch

from builders.runs import TrainedRuns
from gcemil.diagnostics.failures import (
    BASIC_TYPES,
    add_concordance,
    case_failure,
    count_failures,
    intended_anchors,
    measure_failures,
    ordered_share,
)
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.metrics import FAILURE_TYPES, METRICS
from gcemil.tasks.task import ClassificationTask, RegressionTask, SurvivalTask


@pytest.mark.parametrize(
    ("odds", "target", "failed"),
    [
        ([9.0, 1.0], 0, False),
        ([9.0, 1.0], 1, True),
        # 0.53 against 0.47: right, but undecided.
        ([53.0, 47.0], 0, True),
        ([56.0, 44.0], 0, False),
        # Only the two most probable classes matter.
        ([40.0, 28.0, 32.0], 0, True),
        ([45.0, 27.0, 28.0], 0, False),
    ],
)
def test_a_case_fails_when_its_class_is_wrong_or_undecided(odds, target, failed):
    task = ClassificationTask(tuple("abc"[: len(odds)]))
    assert case_failure(torch.tensor(odds).log(), target, task, 0.1) is failed


@pytest.mark.parametrize(
    ("label", "failed"), [(12.0, False), (12.9, False), (13.1, True), (8.9, True)]
)
def test_a_value_fails_a_training_deviation_away_from_its_label(label, failed):
    # The network says 0.5 deviations above a mean of 10, which is 11.
    task = RegressionTask(mean=10.0, deviation=2.0)
    assert case_failure(torch.tensor([0.5]), label, task, 0.1) is failed


def test_a_risk_is_right_or_wrong_only_among_others():
    assert case_failure(torch.tensor([0.5]), (3.0, 1), SurvivalTask(), 0.1) is None


def test_the_agreement_of_every_bag_with_the_others_by_hand():
    # Comparable: 0 died first, so it is paired with all; 1 died before 2 and 3; 3 outlived 2, who
    # was censored.
    times = np.array([1.0, 2.0, 3.0, 4.0])
    events = np.array([True, True, False, False])
    risks = np.array([0.5, 2.0, 0.0, 0.5])
    # 0: against 1 wrong, 2 right, 3 tied. 1: against 0 wrong, 2 and 3 right. 2: twice right. 3:
    # tied and right.
    assert ordered_share(risks, times, events).tolist() == pytest.approx([0.5, 2 / 3, 1.0, 0.75])


def test_a_survival_case_fails_when_most_of_its_pairs_are_wrong():
    def record(time, event, risk):
        common = {"network": "wrapped", "rule": "evidence", "case_failure": None}
        return {**common, "time": time, "event": event, "phi_full": risk}

    records = [record(1.0, 1, 0.0), record(2.0, 0, 1.0), record(0.5, 0, 9.0)]
    found = add_concordance(records, 0.5)
    assert [one["case_failure"] for one in found] == [True, True, None]
    assert [one["concordance"] for one in found] == pytest.approx([0.0, 0.0, None])


def test_intended_anchors_have_half_of_the_largest_weight():
    assert intended_anchors(torch.tensor([4.0, 2.0, 1.9]), 0.5).tolist() == [True, True, False]
    assert intended_anchors(torch.zeros(3), 0.5).all()


def test_several_failures_together_are_severe_and_the_unknown_counts_as_absent():
    record = dict.fromkeys(BASIC_TYPES, False) | {"low_necessity": True, "artifact_evidence": None}
    assert count_failures(record, 2) == {
        "failures": ["low_necessity"],
        "severe_failure": False,
    }
    found = count_failures(record | {"case_failure": True}, 2)
    assert found == {"failures": ["case_failure", "low_necessity"], "severe_failure": True}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"artifact_share": 1.5}, r"artifact_share lies in \[0, 1\], got 1.5"),
        ({"severe_count": 0}, "counts 1 to 5"),
    ],
)
def test_thresholds_outside_their_range_are_refused(
    classification_runs: TrainedRuns, wrong, message
):
    with pytest.raises(UsageError, match=message):
        measure_failures(TrainedFold.open(classification_runs.host, 0), **wrong)


@pytest.fixture(scope="module")
def found(classification_runs: TrainedRuns):
    return measure_failures(
        TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    )


def test_rates_are_shares_of_the_slides_listed(found):
    assert (
        {name for row in found.rows for name in row.values}
        == {"audited_slides", *(f"{kind}_share" for kind in FAILURE_TYPES)}
        <= set(METRICS)
    )
    for row in found.rows:
        own = [
            s
            for s in found.slides
            if (s["rule"], s["network"]) == (row.labels["rule"], row.labels["network"])
        ]
        own = [s for s in own if row.labels["class"] in ("all", s["target"])]
        assert row.values["audited_slides"] == len(own)
        for kind in FAILURE_TYPES:
            assert row.values[f"{kind}_share"] == pytest.approx(np.mean([s[kind] for s in own]))


def test_truth_is_never_an_artifact(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.host, 0)
    truths = {bag.spec.bag_id: bag.truth for bag in fold.bags()}
    found = measure_failures(fold, artifact_share=0.0)
    oracle = {s["bag_id"]: s for s in found.slides if s["rule"] == "oracle"}
    for bag_id, truth in truths.items():
        slide = oracle[bag_id]
        true_share = min(1.0, int(truth.sum()) / slide["n_selected"])
        assert slide["artifact_fraction"] <= 1 - true_share + 1e-12
        # A share of 0 is reached by every subset.
        assert slide["artifact_evidence"]


def test_what_cannot_be_known_is_null_and_noted(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.host, 0)
    card = fold.cohort.card.model_copy(update={"provenance": {}})
    fold = dataclasses.replace(fold, cohort=dataclasses.replace(fold.cohort, card=card))
    found = measure_failures(fold)
    assert {slide["artifact_evidence"] for slide in found.slides} == {None}
    assert {row.values["artifact_evidence_share"] for row in found.rows} == {None}
    assert {slide["semantic_mismatch"] for slide in found.slides} == {None}
    assert [note.split(" is unknown")[0] for note in found.notes] == [
        "Artifact evidence",
        "Semantic mismatch",
    ]


def test_survival_slides_are_audited_by_their_order(survival_runs: TrainedRuns):
    found = measure_failures(TrainedFold.open(survival_runs.gce, 0))
    assert {row.labels["class"] for row in found.rows} == {"all"}
    for slide in found.slides:
        expected = None if slide["concordance"] is None else slide["concordance"] < 0.5
        assert slide["case_failure"] == expected
    assert {row.labels["rule"] for row in found.rows} == {
        "evidence",
        "attention",
        "random",
        "oracle",
    }
