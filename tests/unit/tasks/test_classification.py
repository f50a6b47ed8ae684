import math

import numpy as np
import pytest
import torch

from gcemil.errors import InputError
from gcemil.tasks.classification import (
    accuracy,
    confusion,
    cross_entropy,
    macro_auc,
    macro_f1,
)

# Truth a a a b b c; predicted a a b b b a.
LABELS = np.array([0, 0, 0, 1, 1, 2])
PROBABILITIES = np.array(
    [[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.3, 0.5, 0.2], [0.2, 0.7, 0.1], [0.1, 0.6, 0.3], [0.4, 0.3, 0.3]]
)
CLASSES = ("a", "b", "c")


def test_cross_entropy_is_minus_the_log_of_the_true_class():
    logits = torch.tensor([[1.0, 3.0]], dtype=torch.float64).log()
    assert cross_entropy(logits, torch.tensor([1])).item() == pytest.approx(math.log(4 / 3))


def test_a_class_weight_scales_the_loss_of_a_single_bag():
    logits = torch.zeros(1, 2, dtype=torch.float64)
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    loss = cross_entropy(logits, torch.tensor([1]), class_weights=weights)
    assert loss.item() == pytest.approx(3 * math.log(2))


def test_confusion_counts_truth_by_row_and_prediction_by_column():
    assert confusion(LABELS, PROBABILITIES).tolist() == [[2, 1, 0], [0, 2, 0], [1, 0, 0]]


def test_equal_probabilities_predict_the_lower_class():
    assert confusion(np.array([1]), np.array([[0.5, 0.5]])).tolist() == [[0, 0], [1, 0]]


def test_accuracy_and_macro_f1_of_six_bags_by_hand():
    matrix = confusion(LABELS, PROBABILITIES)
    assert accuracy(matrix) == pytest.approx(4 / 6)
    assert macro_f1(matrix) == pytest.approx((4 / 6 + 4 / 5 + 0) / 3)


def test_macro_f1_leaves_out_a_class_that_is_neither_true_nor_predicted():
    assert macro_f1(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]])) == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_macro_f1_counts_a_class_predicted_in_vain_as_zero():
    assert macro_f1(np.array([[1, 1], [0, 0]])) == pytest.approx((2 / 3 + 0) / 2)


def test_macro_auc_of_six_bags_by_hand():
    # a: .8 .6 .3 against .2 .1 .4, 8 of 9; b: .7 .6 against .1 .3 .5 .3, all; c: .3 against .1 .1 .2 .1 .3, 4.5 of 5.
    assert macro_auc(LABELS, PROBABILITIES, classes=CLASSES) == pytest.approx((8 / 9 + 1 + 4.5 / 5) / 3)


def test_an_absent_class_is_not_averaged():
    # Without the last bag, a: .8 .6 .3 against .2 .1, all; b: .7 .6 against .1 .3 .5, all.
    assert macro_auc(LABELS[:5], PROBABILITIES[:5], classes=CLASSES) == pytest.approx(1.0)
    # The first two bags of a change places with b's: .1 .2 .3 against .8 .6 and .7 .6 .5 against .1 .3.
    swapped = PROBABILITIES[[4, 3, 2, 0, 1]]
    assert macro_auc(LABELS[:5], swapped, classes=CLASSES) == pytest.approx((0.0 + 0.0) / 2)


@pytest.mark.parametrize("n", [1, 3], ids=["one bag", "one class"])
def test_auc_of_one_class_is_refused(n):
    with pytest.raises(InputError, match=f"all {n} bags are of class 'a'"):
        macro_auc(LABELS[:n], PROBABILITIES[:n], classes=CLASSES)


def test_no_bags_are_refused():
    with pytest.raises(InputError, match="There is no bag"):
        confusion(LABELS[:0], PROBABILITIES[:0])


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_outside_the_classes_is_refused(label):
    with pytest.raises(InputError, match=f"are 0 to 2, got {label}"):
        confusion(np.array([label]), PROBABILITIES[:1])
    with pytest.raises(InputError, match=f"are 0 to 2, got {label}"):
        cross_entropy(torch.zeros(1, 3), torch.tensor([label]))


def test_a_prediction_that_is_not_finite_is_refused():
    broken = PROBABILITIES.copy()
    broken[1, 2] = np.nan
    with pytest.raises(InputError, match="1 of 6 predictions"):
        confusion(LABELS, broken)


def test_fewer_classes_than_probabilities_are_refused():
    with pytest.raises(InputError, match="3 probabilities per bag for 2 classes"):
        macro_auc(LABELS[:4], PROBABILITIES[:4], classes=("a", "b"))
