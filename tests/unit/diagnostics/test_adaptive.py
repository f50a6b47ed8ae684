"""Adaptive sizes: calibrated on shares counted by hand, and walked on a planted fold."""

from dataclasses import replace

import pytest

from builders.folds import few_bags, fold_of
from builders.planted_folds import planted_fold
from builders.runs import TrainedRuns
from gcemil.diagnostics import adaptive
from gcemil.diagnostics.adaptive import choose_tolerance, find_sizes, list_sizes
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.findings import Finding, Row
from gcemil.recovery import ranking
from gcemil.report.sections.tables import choose_main_rows, sort_rows

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


def test_the_smallest_tolerance_that_keeps_the_budget_is_chosen_or_the_largest():
    expected = {0.05: (0.05, 0.05), 0.1: (0.01, 0.1), 0.03: (0.2, 0.02), 0.01: (0.2, 0.02)}
    for mean_budget, chosen in expected.items():
        assert choose_tolerance(LADDER, SHARES, mean_budget=mean_budget) == pytest.approx(chosen)


def test_sizes_rise_in_steps_of_one_percent_up_to_ten_each_tried_once():
    assert list_sizes(250, 0.01, 0.1) == [2, 5, 8, 10, 12, 15, 18, 20, 22, 25]
    assert list_sizes(20, 0.01, 0.1) == [1, 2]
    assert list_sizes(1, 0.01, 0.1) == [1]


def planted_sizes(fold, tolerances):
    """Size and whether it is sufficient and necessary, for each tolerance."""
    view = next(iter(fold.bags())).predict("wrapped")
    return find_sizes(
        view, ranking(view.full.scores), fold.output_scale("wrapped"), range(1, 11), tolerances
    )


def test_the_planted_sizes_are_those_worked_out_by_hand(tmp_path):
    # Phi(X) = sigmoid(3 * 2 / (2 + 18 e)) = .9288, e = exp(-4 tanh 3). The first k >= 2 patches say
    # sigmoid(3 * 2 / (2 + (k - 2) e)): .9526 with two, .9487 with five, .9435 with nine and .9422
    # with ten.
    # One patch says .9526 too, but the other one keeps the class. Two leave nothing but a tie,
    # which goes to 'left'.
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
        "Fold 0: tolerance 0.02, the smallest of 0.01, 0.02, 0.05, 0.1, 0.2 that keeps the mean "
        "budget of 0.3 (6 validation bags, mean share of patches 0.2500)."
    )
    assert "its host's attention gives the sizes" in finding.notes[1]
    walked = values(finding, rule="attention")
    assert (walked["reached_share"], walked["capped_share"]) == pytest.approx((1, 0))
    assert {row.values["evidence_fraction"] for row in finding.rows} == {0.25}
    assert {row.labels["budget"] for row in finding.rows} == {"adaptive"}
    assert {line["n_selected"] for line in finding.slides} == {5}
    assert values(finding, rule="oracle")["precision"] == pytest.approx(2 / 5)


def test_a_risk_that_may_move_at_will_is_never_necessary(survival_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(survival_runs.gce, 0))
    # No prefix is exactly the whole bag, so the largest is taken.
    walked = values(
        adaptive.measure_adaptive(fold, risk_tolerance=1e9, tolerances=(0.0,)), rule="gce_soft"
    )
    assert (walked["reached_share"], walked["capped_share"]) == pytest.approx((0, 1))
    assert walked["evidence_fraction"] == pytest.approx(0.1, abs=0.01)


def test_the_report_shows_the_walk_first_and_one_comparison():
    keys = [("random", "full-kept"), ("gce_soft", "full-kept"), ("gce_soft", "soft-kept")]
    made = [
        Row(
            {"rule": rule, "network": "wrapped", "budget": "adaptive", "comparison": comparison}, {}
        )
        for rule, comparison in keys
    ]
    ordered = sort_rows(Finding("adaptive", tuple(made)))
    assert ordered == [made[1], made[0], made[2]]
    assert choose_main_rows(None, "adaptive", ordered) == [made[1], made[0]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tolerances": ()}, r"one or more numbers of at least 0, got \[\]"),
        ({"tolerances": (-0.1,)}, r"got \[-0.1\]"),
        ({"mean_budget": 0.0}, r"mean_budget is a share of the bag in \(0, 1\], got 0.0"),
        (
            {"step_fraction": 0.2},
            "Sizes need 0 < step_fraction <= max_fraction <= 1, got 0.2 and 0.1",
        ),
        ({"max_fraction": 1.5}, "got 0.01 and 1.5"),
        ({"risk_tolerance": -1.0}, "risk_tolerance is at least 0, got -1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(tmp_path, wrong, message):
    with pytest.raises(UsageError, match=message):
        adaptive.measure_adaptive(calibrated_fold(tmp_path, n_slides=2), **wrong)
