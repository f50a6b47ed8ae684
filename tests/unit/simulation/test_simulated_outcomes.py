"""Risk follows from coverage, time from risk."""

import numpy as np
import pytest

from gcemil.simulation.plan import Region, draw_outcomes, log_risk, share_of_concepts
from gcemil.simulation.profile import Dials


def test_log_risk_by_hand():
    dials = Dials(risk_effect=2, dose_exponent=0.5, evidence_max=0.04)
    factors = {"solid growth": 1.0, "lepidic-like regions": -0.5}
    shares = {"solid growth": 0.01, "lepidic-like regions": 0.09, "ink": 0.2}
    assert log_risk(shares, factors, dials) == pytest.approx(2 * (1.0 * 0.5 - 0.5 * 1.0))


def test_coverage_is_over_all_slides_of_the_case_and_ignores_bystanders():
    first = (Region("a", "evidence", 10), Region("a", "bystander", 50))
    second = (Region("a", "evidence", 5), Region("b", "evidence", 30))
    assert share_of_concepts((first, second), 300) == pytest.approx({"a": 0.05, "b": 0.1})


@pytest.mark.parametrize("censoring", [0.0, 0.3, 0.84])
def test_share_of_events_is_the_one_asked_for(censoring):
    seen = draw_outcomes(np.zeros(200), Dials(censoring=censoring), np.random.default_rng(0))
    assert sum(event for _, event in seen) == round(200 * (1 - censoring))
    assert min(time for time, _ in seen) > 0


def test_median_time_is_that_of_a_case_without_risk():
    seen = draw_outcomes(
        np.zeros(4000), Dials(censoring=0, median_time=30), np.random.default_rng(2)
    )
    assert np.median([time for time, _ in seen]) == pytest.approx(30, rel=0.06)
