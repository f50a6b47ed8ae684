"""Regression: the loss and the metrics by hand and against scipy, and what is refused."""

import numpy as np
import pytest
import torch
from scipy import stats

from gcemil.errors import InputError
from gcemil.tasks.task import RegressionTask, correlate, measure_task_metric

TASK = RegressionTask(mean=10.0, deviation=2.0)


def test_the_loss_is_the_squared_error_in_training_deviations():
    logits = torch.tensor([[0.0], [1.0]])
    # Labels 12 and 8 are +1 and -1 deviations: errors 1 and 2.
    assert TASK.loss(logits, torch.tensor([12.0, 8.0])).item() == pytest.approx((1 + 4) / 2)


def test_a_prediction_is_in_the_unit_of_the_labels():
    assert TASK.prediction(torch.tensor([[0.0], [1.5]])).tolist() == [10.0, 13.0]
    assert TASK.prediction(torch.tensor([-1.0])).item() == 8.0


def test_metrics_are_those_of_scipy():
    draws = np.random.default_rng(0)
    labels = draws.normal(size=30)
    values = labels + draws.normal(size=30)
    found = RegressionTask().metrics(torch.from_numpy(labels), torch.from_numpy(values))
    assert found["pearson"] == pytest.approx(stats.pearsonr(labels, values).statistic)
    assert found["spearman"] == pytest.approx(stats.spearmanr(labels, values).statistic)
    assert found["mae"] == pytest.approx(np.abs(labels - values).mean())
    assert found["r2"] == pytest.approx(
        1 - ((labels - values) ** 2).sum() / ((labels - labels.mean()) ** 2).sum()
    )


def test_the_mean_of_the_labels_has_an_r2_of_zero_and_no_correlation():
    labels = torch.tensor([1.0, 2.0, 6.0])
    found = RegressionTask().metrics(labels, torch.full((3,), 3.0))
    assert (found["r2"], found["pearson"], found["spearman"]) == (0.0, 0.0, 0.0)
    assert correlate(np.zeros(3), np.arange(3.0)) == 0.0


def test_the_task_metric_reads_logits_in_the_scale_of_the_network():
    labels = torch.tensor([8.0, 10.0, 12.0])
    assert measure_task_metric(TASK, labels, torch.tensor([[-1.0], [0.0], [1.0]])) == pytest.approx(
        1.0
    )


@pytest.mark.parametrize(
    ("labels", "values", "words"),
    [
        ([3.0, 3.0], [1.0, 2.0], "all 2 bags have the value 3"),
        ([1.0, 2.0], [float("nan"), 2.0], "1 of 2 predictions are NaN"),
    ],
)
def test_what_has_no_metric_is_said(labels, values, words):
    with pytest.raises(InputError, match=words):
        TASK.metrics(torch.tensor(labels), torch.tensor(values))
