"""Every task through the questions of the training loop."""

import math

import numpy as np
import pytest
import torch

from gcemil.errors import InputError, UsageError
from gcemil.tasks.task import (
    ClassificationTask,
    RegressionTask,
    SurvivalTask,
    event_balanced_windows,
)

GRADES = ClassificationTask(("low", "mid", "high"))
SURVIVAL = SurvivalTask()


@pytest.mark.parametrize(
    ("task", "targets", "predictions"),
    [
        (GRADES, torch.tensor([0, 1, 2]), torch.eye(3)),
        (SURVIVAL, torch.tensor([[1.0, 1.0], [2.0, 0.0]]), torch.tensor([1.0, 0.0])),
    ],
)
def test_perfect_predictions_score_one_in_every_metric_and_in_the_judging_one(
    task, targets, predictions
):
    scores = task.metrics(targets, predictions)
    assert list(scores.values()) == pytest.approx([1.0] * len(scores))
    assert task.task_metric in scores


def test_an_eventless_window_is_seen_by_the_caller():
    assert SURVIVAL.loss(torch.zeros(2, 1), torch.tensor([[1.0, 0.0], [2.0, 0.0]])) is None


@pytest.mark.parametrize("task", [GRADES, SURVIVAL])
def test_one_bag_is_predicted_as_in_a_window(task):
    logits = torch.randn(4, task.n_outputs, generator=torch.Generator().manual_seed(0))
    together = task.prediction(logits)
    for row in range(4):
        torch.testing.assert_close(task.prediction(logits[row]), together[row])


def test_bfloat16_logits_are_computed_in_float32():
    logits = torch.zeros(2, 3, dtype=torch.bfloat16)
    assert GRADES.prediction(logits).dtype == torch.float32
    assert GRADES.loss(logits, torch.tensor([0, 1])).dtype == torch.float32


def test_survival_loss_reaches_every_bag_of_the_window():
    logits = torch.zeros(3, 1, requires_grad=True)
    loss = SURVIVAL.loss(logits, torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 0.0]]))
    assert loss is not None
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([-2 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("task", "targets", "message"),
    [
        (GRADES, torch.tensor([1, 1]), "AUC is undefined: all 2 bags are of class 'mid'"),
        (SURVIVAL, torch.tensor([[1.0, 0.0], [2.0, 0.0]]), "C-index is undefined: 2 bags with 0"),
        (SURVIVAL, torch.tensor([[1.0, 1.0]]), "C-index is undefined: 1 bags with 1 events"),
        (RegressionTask(), torch.tensor([5.0, 5.0]), "R2 is undefined"),
    ],
)
def test_targets_without_a_metric_are_refused_before_training_by_place(task, targets, message):
    with pytest.raises(InputError, match=f"fold 3 test: .*{message}"):
        task.check(targets, where="fold 3 test")


@pytest.mark.parametrize("target", [[-1.0, 1.0], [math.nan, 1.0], [1.0, 2.0]])
def test_a_target_that_is_no_survival_target_is_refused(target):
    with pytest.raises(InputError, match="an event 0 or 1, got time="):
        SURVIVAL.loss(torch.zeros(2, 1), torch.tensor([[1.0, 0.0], target]))


def test_survival_windows_are_balanced_by_event_and_classification_windows_take_any_bag():
    events = (torch.arange(12) < 3).float()
    targets = torch.stack([torch.arange(12.0), events], dim=1)
    survival = SURVIVAL.windows(targets, window_size=4, generator=np.random.default_rng(0))
    assert [float(events[window].sum()) for window in survival] == [1.0, 1.0, 1.0]
    labels = torch.zeros(12, dtype=torch.long)
    single = GRADES.windows(labels, window_size=1, generator=np.random.default_rng(0))
    assert sorted(int(window[0]) for window in single) == list(range(12))


@pytest.mark.parametrize(
    ("events", "size", "error", "message"),
    [
        ([True], 1, UsageError, "at least 2 bags, got 1"),
        ([False] * 3, 2, InputError, "None of 3 bags has an event"),
    ],
)
def test_windows_without_anything_to_learn_are_refused(events, size, error, message):
    with pytest.raises(error, match=message):
        event_balanced_windows(
            np.array(events), window_size=size, generator=np.random.default_rng(0)
        )
