"""Keep rate and limit of doubt on hand-made validation slides."""

import numpy as np
import pytest

from gcemil.prefilter.certificate import (
    CertificateSettings,
    RateOutcome,
    Trial,
    choose_rate,
    settle_limit,
)

LOOSE = CertificateSettings(risk=0.2)


def trial(doubts, changed, *, rate=0.1, worth=None):
    """Utility is the share of right answers: wrong where certified and in `worth`."""
    wrong = np.array(changed if worth is None else worth, dtype=bool)
    return Trial(
        rate,
        np.array(doubts, dtype=np.float64),
        np.array(changed, dtype=bool),
        lambda certified: 1 - float((certified & wrong).mean()),
        recall=0.9,
    )


def test_slides_that_never_change_are_all_certified():
    found = settle_limit(trial([0.1, 0.4, 0.2, 0.3], [0, 0, 0, 0]), LOOSE)
    assert (found.doubt_limit, found.fall_back, found.cost) == pytest.approx((0.4, 0.0, 0.1))
    assert (found.utility, found.relative_utility, found.changed) == pytest.approx((1.0, 1.0, 0.0))


def test_doubts_from_the_first_change_on_are_not_certified():
    # Four slides and risk 0.2: (0 + 1) / 5 is just allowed, a single change is not.
    found = settle_limit(trial([0.1, 0.4, 0.2, 0.3], [0, 0, 0, 1]), LOOSE)
    assert found.doubt_limit == pytest.approx(0.2)
    assert found.fall_back == pytest.approx(0.5)
    assert found.cost == pytest.approx(0.1 + 0.5 * 0.9)


def test_too_few_slides_certify_nothing():
    found = settle_limit(trial([0.1, 0.2, 0.3], [0, 0, 0]), LOOSE)
    assert found.doubt_limit is None
    assert (found.fall_back, found.cost) == pytest.approx((1.0, 1.0))
    assert found.utility == pytest.approx(1.0)


def test_a_limit_that_costs_utility_is_lowered():
    # Ten slides at risk 0.2 may change once, but the share of right answers must stay at 0.98.
    doubts, changed = np.arange(10) / 10, np.arange(10) == 6
    found = settle_limit(trial(doubts, changed), LOOSE)
    assert found.doubt_limit == pytest.approx(0.5)
    gained = settle_limit(trial(doubts, changed, worth=np.zeros(10)), LOOSE)
    assert gained.doubt_limit == pytest.approx(0.9)
    assert gained.changed == pytest.approx(0.1)


def rate(keep, cost):
    return RateOutcome(keep, 0.5, 0.0, cost, 1.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("costs", "share", "chosen"),
    [
        ({0.05: 0.6, 0.1: 0.19, 0.2: 0.2}, 0.02, 0.1),
        ({0.05: 0.3, 0.1: 0.3, 0.3: 0.3 + 1e-12}, 0.02, 0.3),
        ({0.05: 1.0, 0.5: 1.0}, 0.02, 0.5),
        # Two patches cannot show evidence of three, however well they answer.
        ({0.05: 0.05, 0.1: 0.1, 0.2: 0.2}, 0.07, 0.1),
        ({0.05: 0.05, 0.1: 0.1}, 0.4, 0.1),
    ],
)
def test_the_cheapest_rate_with_room_for_the_evidence_is_chosen_and_ties_go_to_the_larger(
    costs, share, chosen
):
    rates = [rate(keep, cost) for keep, cost in costs.items()]
    assert choose_rate(rates, evidence_share=share).keep_rate == chosen
