"""What is promised and what is realised, on records small enough to count."""

from dataclasses import replace

import numpy as np
import pytest

from builders.runs import TrainedRuns
from gcemil.diagnostics import guarantee
from gcemil.diagnostics.guarantee import (
    Certificate,
    RankedBag,
    explain_refusal,
    show_guarantee,
)
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError

SIZES = (0.25, 0.5, 1.0)
LABELS = {"rule": "attention", "network": "plain", "method": "conformal"}
RULES = {"random", "attention", "oracle"}


def bags(*rows):
    agrees = [np.array([char == "x" for char in row]) for row in rows]
    return [RankedBag(f"bag {number}", one, np.array(SIZES)) for number, one in enumerate(agrees)]


def test_bags_that_disagree_at_the_promised_size_are_shown_whole():
    certificate = Certificate(0.25, True, 30, 0.2, rank=25)
    row, lines = show_guarantee(LABELS, certificate, bags("xxx", "xxx", ".xx", "xxx"), SIZES)
    assert row.values["promised_rate"] == pytest.approx(0.8)
    assert row.values["realised_rate"] == pytest.approx(0.75)
    assert row.values["evidence_fraction"] == pytest.approx(0.25)
    assert row.values["fallback_share"] == pytest.approx(0.25)
    assert row.values["guarded_fraction"] == pytest.approx((3 * 0.25 + 1) / 4)
    assert [line["bag_id"] for line in lines if line["falls_back"]] == ["bag 2"]


def test_without_a_certificate_every_bag_is_shown_whole():
    row, _ = show_guarantee(LABELS, Certificate(1.0, False, 3, 0.1), bags("..x", "xxx"), SIZES)
    assert (row.values["realised_rate"], row.values["fallback_share"]) == pytest.approx((1, 1))
    assert (row.values["guarded_fraction"], row.values["certified_share"]) == pytest.approx((1, 0))


def test_a_refusal_says_what_it_would_take():
    assert explain_refusal(LABELS, Certificate(0.5, True, 30, 0.1), 0.9) == []
    (few,) = explain_refusal(LABELS | {"method": "learn_then_test"}, Certificate(1.0, False, 15, 0.1), 0.9)
    assert "15 calibration bags cannot certify a rate of 0.9, it takes at least 22" in few
    (bad,) = explain_refusal(LABELS, Certificate(1.0, False, 15, 0.1), 0.9)
    assert "attention (plain): too many of 15 calibration bags change their answer" in bad


def values(finding, metric, **labels):
    return [row.values[metric] for row in finding.rows if labels.items() <= row.labels.items()]


@pytest.mark.parametrize("kind", ["classification", "survival"])
def test_a_handful_of_calibration_bags_promises_nothing_and_says_so(kind, request: pytest.FixtureRequest):
    runs: TrainedRuns = request.getfixturevalue(f"{kind}_runs")
    fold = TrainedFold.open(runs.gce, 0, against=runs.host)
    assert len(fold.specs("val")) < 9
    found = guarantee.measure_guarantee(fold)
    assert set(values(found, "certified_fraction")) == {1.0}
    assert set(values(found, "realised_rate")) == {1.0}
    assert set(values(found, "guarded_fraction")) == {1.0}
    assert len([note for note in found.notes if "it takes at least" in note]) == 2
    assert "chosen the epoch" in found.notes[0]


def test_any_size_is_safe_where_every_risk_is_the_same_answer(survival_runs: TrainedRuns):
    fold = TrainedFold.open(survival_runs.gce, 0)
    found = guarantee.measure_guarantee(fold, alpha=0.5, risk_tolerance=1e9)
    assert set(values(found, "certified_fraction", method="conformal")) == {0.01}
    assert set(values(found, "realised_rate")) == {1.0}


def test_no_size_is_safe_where_no_two_risks_are_the_same_answer(survival_runs: TrainedRuns):
    fold = TrainedFold.open(survival_runs.gce, 0)
    found = guarantee.measure_guarantee(fold, alpha=0.5, risk_tolerance=0.0)
    assert set(values(found, "certified_fraction")) == {1.0}
    assert any("change their answer" in note for note in found.notes)


def test_a_fold_without_validation_bags_is_refused(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    with pytest.raises(UsageError, match="has no val bags"):
        guarantee.measure_guarantee(replace(fold, parts=replace(fold.parts, val=[])))
    with pytest.raises(UsageError, match="alpha lies in \\(0, 1\\), got 2"):
        guarantee.measure_guarantee(fold, alpha=2.0)
    with pytest.raises(UsageError, match="confidence lies in \\(0, 1\\), got 1"):
        guarantee.measure_guarantee(fold, confidence=1.0)
    for sizes in [(), (0.5, 0.2, 1.0), (0.0, 1.0), (0.2, 0.5)]:
        with pytest.raises(UsageError, match="rising fractions of the bag that end with 1"):
            guarantee.measure_guarantee(fold, fractions=sizes)
