"""Several targets of two values: loss, metrics, and what is refused."""

from math import log, nan

import pytest
import torch

from gcemil.errors import InputError
from gcemil.tasks.task import MultilabelTask

TASK = MultilabelTask(("ER", "PR"))


def test_the_loss_is_the_mean_over_the_labels_that_are_known():
    logits = torch.tensor([[log(3.0), 5.0], [-log(3.0), -log(3.0)]])
    targets = torch.tensor([[1.0, nan], [1.0, 0.0]])
    # Probabilities .75, (unknown), .25 and .25.
    expected = (-log(0.75) - log(0.25) - log(0.75)) / 3
    assert float(TASK.loss(logits, targets)) == pytest.approx(expected)


def test_an_unknown_label_has_no_gradient():
    logits = torch.zeros(1, 2, requires_grad=True)
    TASK.loss(logits, torch.tensor([[1.0, nan]])).backward()
    assert logits.grad.tolist() == [[-0.5, 0.0]]


def test_a_window_without_a_known_label_teaches_nothing():
    assert TASK.loss(torch.zeros(1, 2), torch.full((1, 2), nan)) is None


def test_class_weights_are_those_of_the_positives():
    weighted = MultilabelTask(("ER", "PR"), (3.0, 1.0))
    logits, targets = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    assert float(weighted.loss(logits, targets)) == pytest.approx((3 * log(2) + log(2)) / 2)


def test_metrics_are_those_of_each_target_and_their_mean():
    targets = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, nan], [1.0, 0.0]])
    predictions = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, 0.0], [0.9, 0.3]])
    found = TASK.metrics(targets, predictions)
    assert found["auc_ER"] == 0.75
    assert found["auc_PR"] == 1.0
    assert found["auc"] == 0.875
    # ER: one of three called positive is not; PR: all right.
    assert found["macro_f1"] == pytest.approx(((2 / 3 + 4 / 5) / 2 + 1) / 2)


def test_a_constant_prediction_explains_nothing_and_a_good_one_much():
    targets = torch.tensor([[0.0, 1.0], [1.0, nan], [1.0, 0.0], [0.0, 0.0]])
    shares = torch.tensor([0.5, 1 / 3])
    assert TASK.explained(targets, torch.logit(shares).expand(4, 2)) == pytest.approx(0, abs=1e-6)
    assert TASK.explained(targets, 10 * (targets.nan_to_num() - 0.5)) > 0.9


@pytest.mark.parametrize(
    ("column", "said"),
    [([1.0, 1.0, nan], "is 1 on all bags that have a label"), ([nan] * 3, "has no label")],
)
def test_a_target_of_one_value_in_a_part_is_refused(column, said):
    targets = torch.stack([torch.tensor([0.0, 1.0, 1.0]), torch.tensor(column)], dim=1)
    with pytest.raises(InputError, match=f"fold 0, part val: target 'PR' {said}"):
        TASK.check(targets, where="fold 0, part val")
