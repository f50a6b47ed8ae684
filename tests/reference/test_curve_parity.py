"""Curves and scores of the figures against scikit-learn and scikit-survival."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_curve
from sksurv.metrics import brier_score, cumulative_dynamic_auc, integrated_brier_score
from sksurv.util import Surv

from gcemil.report.publication.survival import (
    choose_times,
    integrate_over_time,
    measure_auc_over_time,
    measure_brier,
)
from gcemil.report.scores import GRID, FoldPredictions, measure_classes, trace_curves


def draw_classes(n=80):
    draws = np.random.default_rng(0)
    labels = draws.integers(3, size=n)
    # Rounded, so that many bags share a score.
    logits = np.round(draws.normal(size=(n, 3)) + np.eye(3)[labels], 1)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    bags = FoldPredictions(
        np.arange(n).astype(str), ("a", "b", "c"), labels, np.zeros(n), {"full": shares}
    )
    return bags, draws.integers(1, 4, size=(3, n)).astype(float)


@pytest.mark.parametrize("index", [0, 2])
def test_weighted_roc_and_average_precision_are_those_of_scikit_learn(index):
    bags, weights = draw_classes()
    found = trace_curves(bags, "full", weights, (index,))
    positive, scores = bags.labels == index, bags.by_mode["full"][:, index]
    for row, own in enumerate(weights):
        false_rate, true_rate, _ = roc_curve(positive, scores, sample_weight=own)
        assert found.roc[row] == pytest.approx(np.interp(GRID, false_rate, true_rate))
        theirs = average_precision_score(positive, scores, sample_weight=own)
        assert found.average_precision[row] == pytest.approx(theirs)


def test_figures_of_a_class_are_those_of_scikit_learn():
    bags, weights = draw_classes()
    found = measure_classes(bags, "full", weights)
    predicted = bags.by_mode["full"].argmax(axis=1)
    for row, own in enumerate(weights):
        precision, recall, f1, _ = precision_recall_fscore_support(
            bags.labels, predicted, sample_weight=own
        )
        assert found["precision"][row] == pytest.approx(precision)
        assert found["sensitivity"][row] == pytest.approx(recall)
        assert found["f1"][row] == pytest.approx(f1)
        negative = own * (bags.labels != 0)
        assert found["specificity"][row, 0] == pytest.approx(
            negative[predicted != 0].sum() / negative.sum()
        )


def draw_cases(n=60):
    draws = np.random.default_rng(1)
    risks = np.round(draws.normal(size=n), 1)
    times = draws.exponential(np.exp(-risks)) * 10 + 0.1
    ends = draws.exponential(12, size=n) + 0.1
    events = times <= ends
    bags = FoldPredictions(
        np.arange(n).astype(str), (), events.astype(int), np.minimum(times, ends), {"full": risks}
    )
    return bags, Surv.from_arrays(events, bags.targets)


def test_auc_over_time_is_that_of_scikit_survival():
    bags, outcome = draw_cases()
    at = choose_times(bags.targets, bags.labels == 1)
    ours = measure_auc_over_time(bags, "full", np.ones((1, len(bags.targets))), at)[0]
    theirs, _ = cumulative_dynamic_auc(outcome, outcome, bags.by_mode["full"], at)
    assert ours == pytest.approx(theirs)


def test_a_patient_who_is_drawn_twice_counts_as_two_in_auc_and_brier_score():
    bags, _ = draw_cases()
    at = choose_times(bags.targets, bags.labels == 1)
    # Everybody twice changes neither the censoring nor any share.
    twice = np.full((1, len(bags.targets)), 2.0)
    ones = np.ones_like(twice)
    same = measure_auc_over_time(bags, "full", twice, at)
    assert same == pytest.approx(measure_auc_over_time(bags, "full", ones, at))
    survival = np.exp(-np.outer(np.exp(bags.by_mode["full"]), at / 20))
    # One patient alone gives that patient's own loss.
    alone = np.zeros_like(ones)
    alone[0, int(bags.targets.argmax())] = 3
    found = measure_brier(bags.targets, bags.labels == 1, survival, np.vstack([alone, ones]), at)
    assert (found[0] > 0).all()
    assert found[0] != pytest.approx(found[1])


def test_brier_score_and_its_integral_are_those_of_scikit_survival():
    bags, outcome = draw_cases()
    at = choose_times(bags.targets, bags.labels == 1)
    survival = np.exp(-np.outer(np.exp(bags.by_mode["full"]), at / 20))
    ours = measure_brier(
        bags.targets, bags.labels == 1, survival, np.ones((1, len(bags.targets))), at
    )
    _, theirs = brier_score(outcome, outcome, survival, at)
    assert ours[0] == pytest.approx(theirs)
    whole = integrated_brier_score(outcome, outcome, survival, at)
    assert integrate_over_time(ours, at)[0] == pytest.approx(whole)
