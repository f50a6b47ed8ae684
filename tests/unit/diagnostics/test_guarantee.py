"""What is promised and what is realised, on records and agreement tables small enough to count."""

from dataclasses import replace

import numpy as np
import pytest

from builders.runs import TrainedRuns
from gcemil.diagnostics import guarantee
from gcemil.diagnostics.guarantee import (
    Certificate,
    RankedBag,
    bags_needed,
    binomial_certificate,
    conformal_certificate,
    explain_refusal,
    failure_p_value,
    show_guarantee,
    stable_sizes,
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
    (few,) = explain_refusal(
        LABELS | {"method": "learn_then_test"}, Certificate(1.0, False, 15, 0.1), 0.9
    )
    assert "15 calibration bags cannot certify a rate of 0.9, it takes at least 22" in few
    (bad,) = explain_refusal(LABELS, Certificate(1.0, False, 15, 0.1), 0.9)
    assert "attention (plain): too many of 15 calibration bags change their output" in bad


def values(finding, metric, **labels):
    return [row.values[metric] for row in finding.rows if labels.items() <= row.labels.items()]


@pytest.mark.parametrize("kind", ["classification", "survival"])
def test_a_handful_of_calibration_bags_promises_nothing_and_says_so(
    kind, request: pytest.FixtureRequest
):
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


GRID = (0.1, 0.2, 0.5, 1.0)


def table(*rows):
    """x = agrees."""
    return np.array([[char == "x" for char in row] for row in rows])


def test_a_stable_size_looks_at_every_larger_one():
    # The second bag agrees at 0.1 and changes its mind at 0.2: stable from 0.5.
    assert stable_sizes(table("xxxx", "x.xx", "...x", "..xx"), GRID).tolist() == [
        0.1,
        0.5,
        1.0,
        0.5,
    ]


def test_the_conformal_size_is_an_order_statistic():
    agrees = table("xxxx", "xxxx", ".xxx", ".xxx", "..xx", "..xx", "..xx", "...x", "...x")
    # ceil(10 x 0.5) = 5th of .1 .1 .2 .2 .5 .5 .5 1 1
    found = conformal_certificate(agrees, GRID, alpha=0.5)
    assert (found.fraction, found.certified, found.rank) == (0.5, True, 5)
    # ceil(10 x 0.7) = 7 and ceil(10 x 0.9) = 9
    assert conformal_certificate(agrees, GRID, alpha=0.3).fraction == 0.5
    assert conformal_certificate(agrees, GRID, alpha=0.1).fraction == 1.0
    assert not conformal_certificate(agrees, GRID, alpha=0.1).certified


def test_too_few_bags_certify_nothing_even_if_all_agree_everywhere():
    eight = table(*["xxxx"] * 8)
    assert conformal_certificate(eight, GRID, alpha=0.1) == Certificate(1.0, False, 8, 0.1)
    nine = table(*["xxxx"] * 9)
    assert conformal_certificate(nine, GRID, alpha=0.1) == Certificate(0.1, True, 9, 0.1, rank=9)
    assert bags_needed(0.1) == 9


def test_the_test_needs_more_bags_for_its_stronger_promise():
    assert bags_needed(0.1, 0.9) == 22
    # 0.9^22 = 0.0985 and 0.9^21 = 0.1094
    assert failure_p_value(0, 22, alpha=0.1) == pytest.approx(0.9**22)
    for n_bags, certified in ((21, False), (22, True)):
        found = binomial_certificate(table(*["xxxx"] * n_bags), GRID, alpha=0.1, confidence=0.9)
        assert found.certified == certified
        assert found.fraction == (0.1 if certified else 1.0)


def test_the_test_stops_at_the_first_size_that_fails():
    # No failure at 0.5, three of four at 0.2, none at 0.1: what lies below a failed size is not
    # looked at.
    agrees = table("xxxx", "x.xx", "x.xx", "x.xx")
    found = binomial_certificate(agrees, GRID, alpha=0.5, confidence=0.9)
    assert (found.fraction, found.certified) == (0.5, True)
    # 0.5^4 = 0.0625 passes at 0.9 and not at 0.95.
    assert not binomial_certificate(agrees, GRID, alpha=0.5, confidence=0.95).certified


def test_the_floor_is_what_few_test_bags_may_realise():
    # One test bag of a conformal promise of 0.9 fails with probability 0.1 > 0.05.
    assert Certificate(0.1, True, 9, 0.1, rank=9).realised_floor(1) == 0
    assert Certificate(0.1, True, 9, 0.1, rank=9).realised_floor(1000) < 0.9
    # P(Binomial(10, 0.9) <= 7) = 0.0702, <= 6: 0.0128
    assert Certificate(0.1, True, 30, 0.1).realised_floor(10) == pytest.approx(0.7)
    assert Certificate(1.0, False, 9, 0.1).realised_floor(10) == 1
