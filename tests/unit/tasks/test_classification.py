"""Six bags of three classes, counted by hand."""

import math

import numpy as np
import pytest
import torch

from gcemil.errors import InputError, UsageError
from gcemil.tasks.task import ClassificationTask

TASK = ClassificationTask(("a", "b", "c"))
# Truth a a a b b c; predicted a a b b b a.
LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
PROBABILITIES = torch.tensor(
    [
        [0.8, 0.1, 0.1],
        [0.6, 0.3, 0.1],
        [0.3, 0.5, 0.2],
        [0.2, 0.7, 0.1],
        [0.1, 0.6, 0.3],
        [0.4, 0.3, 0.3],
    ]
)


def test_cross_entropy_is_minus_the_log_of_the_true_class_and_a_weight_scales_a_single_bag():
    logits = torch.tensor([[1.0, 3.0]], dtype=torch.float64).log()
    assert ClassificationTask(("a", "b")).loss(logits, torch.tensor([1])).item() == pytest.approx(
        math.log(4 / 3)
    )
    weighted = ClassificationTask(("a", "b"), class_weights=(1.0, 3.0))
    assert weighted.loss(torch.zeros(1, 2), torch.tensor([1])).item() == pytest.approx(
        3 * math.log(2)
    )
    assert weighted.loss(torch.zeros(2, 2), torch.tensor([0, 1])).item() == pytest.approx(
        2 * math.log(2)
    )


def test_metrics_of_six_bags_by_hand():
    # AUC of a: .8 .6 .3 against .2 .1 .4, 8 of 9; b: .7 .6 against .1 .3 .5 .3, all; c: .3 against .1 .1 .2 .1 .3, 4.5 of 5.
    assert TASK.metrics(LABELS, PROBABILITIES) == pytest.approx(
        {"accuracy": 4 / 6, "macro_f1": (4 / 6 + 4 / 5 + 0) / 3, "auc": (8 / 9 + 1 + 4.5 / 5) / 3}
    )


def test_an_absent_class_is_not_averaged_and_one_predicted_in_vain_has_no_f1():
    # Without the last bag, a: .8 .6 .3 against .2 .1, all; b: .7 .6 against .1 .3 .5, all.
    assert TASK.metrics(LABELS[:5], PROBABILITIES[:5])["auc"] == pytest.approx(1.0)
    # The first two bags of a change places with b's.
    assert TASK.metrics(LABELS[:5], PROBABILITIES[[4, 3, 2, 0, 1]])["auc"] == pytest.approx(0.0)
    # True a a b b, predicted a b b b; then true a a, predicted a b.
    rows = torch.eye(3)[[0, 1, 1, 1]]
    assert TASK.judge(torch.tensor([0, 0, 1, 1]), rows) == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert TASK.judge(torch.tensor([0, 0]), rows[:2]) == pytest.approx((2 / 3 + 0) / 2)


def test_equal_probabilities_predict_the_lower_class():
    assert TASK.judge(torch.tensor([0]), torch.tensor([[0.5, 0.5, 0.0]])) == 1.0


def test_a_prediction_that_is_not_finite_is_refused():
    broken = PROBABILITIES.clone()
    broken[1, 2] = np.nan
    with pytest.raises(InputError, match="1 of 6 predictions"):
        TASK.metrics(LABELS, broken)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.0), (1.0, math.nan)])
def test_class_weights_must_fit_the_classes(weights):
    with pytest.raises(UsageError, match="2 classes need as many positive weights"):
        ClassificationTask(("a", "b"), class_weights=weights)


def test_classes_absent_from_a_fold_are_a_caveat_of_its_auc():
    assert TASK.caveats(torch.tensor([0, 1])) == (
        "No bag of class c: auc is the mean over the other classes.",
    )
    assert TASK.caveats(torch.tensor([0, 1, 2])) == ()
