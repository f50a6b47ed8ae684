"""Risk follows from coverage, time from risk."""

import numpy as np
import pytest

from gcemil.simulation.plan import Region, draw_outcomes, log_risk, plan_survival, share_of_concepts
from gcemil.simulation.profile import Dials, load_profile


def test_log_risk_by_hand():
    dials = Dials(risk_effect=2, dose_exponent=0.5, evidence_max=0.04)
    factors = {"solid growth": 1.0, "lepidic-like regions": -0.5}
    shares = {"solid growth": 0.01, "lepidic-like regions": 0.09, "ink": 0.2}
    assert log_risk(shares, factors, dials) == pytest.approx(2 * (1.0 * 0.5 - 0.5 * 1.0))


def test_exponent_zero_counts_presence_alone():
    dials = Dials(risk_effect=3, dose_exponent=0)
    assert log_risk({"a": 0.001}, {"a": 1.0}, dials) == pytest.approx(3)
    assert log_risk({"a": 0.05}, {"a": 1.0}, dials) == pytest.approx(3)
    assert log_risk({"a": 0.0}, {"a": 1.0}, dials) == 0


def test_coverage_is_over_all_slides_of_the_case_and_ignores_bystanders():
    first = (Region("a", "evidence", 10), Region("a", "bystander", 50))
    second = (Region("a", "evidence", 5), Region("b", "evidence", 30))
    assert share_of_concepts((first, second), 300) == pytest.approx({"a": 0.05, "b": 0.1})


@pytest.mark.parametrize("censoring", [0.0, 0.3, 0.84])
def test_share_of_events_is_the_one_asked_for(censoring):
    seen = draw_outcomes(np.zeros(200), Dials(censoring=censoring), np.random.default_rng(0))
    assert sum(event for _, event in seen) == round(200 * (1 - censoring))
    assert min(time for time, _ in seen) > 0


def test_higher_risk_means_shorter_time():
    risks = np.repeat([-1.0, 1.0], 300)
    seen = draw_outcomes(risks, Dials(censoring=0), np.random.default_rng(1))
    times = np.array([time for time, _ in seen])
    assert np.median(times[:300]) > 2 * np.median(times[300:])


def test_median_time_is_that_of_a_case_without_risk():
    seen = draw_outcomes(np.zeros(4000), Dials(censoring=0, median_time=30), np.random.default_rng(2))
    assert np.median([time for time, _ in seen]) == pytest.approx(30, rel=0.06)


def test_severe_and_mild_cases_differ_in_risk():
    cases = plan_survival(
        load_profile("luad"), Dials(), prefix="luad", n_slides=200, patches=(200, 400), seed=0
    )
    risks = np.array([case.target for case in cases])
    assert risks.std() > 1
    assert (risks > 0).mean() == pytest.approx(0.5, abs=0.15)
