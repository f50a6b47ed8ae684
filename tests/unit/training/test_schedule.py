"""Rates and temperatures by hand."""

import pytest

from gcemil.config import TrainSettings
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.training.optimizer import (
    READ_TEMPERATURE,
    evidence_weight,
    scheduled_rate,
)


@pytest.mark.parametrize(
    ("settings", "n_bags", "survival", "epochs"),
    [
        ({}, 30, False, 67),
        ({}, 90, False, 23),
        ({}, 400, False, 15),
        ({"bags_per_step": 4}, 90, False, 87),
        # A survival window counts once per bag, whatever the setting for classes.
        ({"bags_per_step": 4}, 90, True, 23),
        ({"min_steps": 90, "min_epochs": 3}, 30, False, 3),
        ({"epochs": 2}, 30, False, 2),
    ],
)
def test_small_cohorts_take_more_epochs_so_that_the_steps_are_as_many(
    settings, n_bags, survival, epochs
):
    assert TrainSettings(**settings).count_epochs(n_bags, survival=survival) == epochs


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1.0, 0.5, 0.0]),
        ({"final_rate": 0.2}, [1.0, 0.6, 0.2]),
        ({"schedule": "constant"}, [1.0, 1.0, 1.0]),
        ({"schedule": "step"}, [1.0, 0.2, 0.2]),
    ],
)
def test_the_rate_follows_its_schedule(settings, rates):
    found = [scheduled_rate(TrainSettings(**settings), 1.0, progress) for progress in (0, 0.5, 1)]
    assert found == pytest.approx(rates)


def test_the_evidence_says_nothing_while_the_host_warms_up_and_then_more_and_more():
    assert [
        evidence_weight(0.4, 0.2, progress) for progress in (0.0, 0.39, 0.5, 0.6, 1.0)
    ] == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])
    assert evidence_weight(0.4, 0.0, 0.4) == pytest.approx(1.0)


def test_gates_around_an_untaught_host_are_read_cold_whichever_epoch_was_chosen(
    classification_runs,
):
    model = TrainedFold.open(classification_runs.gce, 0).model
    assert float(model.temperature) == pytest.approx(READ_TEMPERATURE)
