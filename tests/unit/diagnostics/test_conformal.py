"""Certificates from agreement tables small enough to sort by eye."""

import numpy as np
import pytest

from gcemil.diagnostics.guarantee import (
    Certificate,
    bags_needed,
    binomial_certificate,
    conformal_certificate,
    conformal_rank,
    failure_p_value,
    stable_sizes,
)

SIZES = (0.1, 0.2, 0.5, 1.0)


def table(*rows):
    """x = agrees."""
    return np.array([[char == "x" for char in row] for row in rows])


def test_a_stable_size_looks_at_every_larger_one():
    # The second bag agrees at 0.1 and changes its mind at 0.2: stable from 0.5.
    assert stable_sizes(table("xxxx", "x.xx", "...x", "..xx"), SIZES).tolist() == [0.1, 0.5, 1.0, 0.5]


def test_the_conformal_size_is_an_order_statistic():
    agrees = table("xxxx", "xxxx", ".xxx", ".xxx", "..xx", "..xx", "..xx", "...x", "...x")
    # ceil(10 x 0.5) = 5th of .1 .1 .2 .2 .5 .5 .5 1 1
    found = conformal_certificate(agrees, SIZES, alpha=0.5)
    assert (found.fraction, found.certified, found.rank) == (0.5, True, 5)
    # ceil(10 x 0.7) = 7 and ceil(10 x 0.9) = 9
    assert conformal_certificate(agrees, SIZES, alpha=0.3).fraction == 0.5
    assert conformal_certificate(agrees, SIZES, alpha=0.1).fraction == 1.0
    assert not conformal_certificate(agrees, SIZES, alpha=0.1).certified


def test_the_rank_is_not_moved_by_rounding():
    assert conformal_rank(9, 0.1) == 9
    assert conformal_rank(19, 0.05) == 19
    assert conformal_rank(20, 0.1) == 19


def test_too_few_bags_certify_nothing_even_if_all_agree_everywhere():
    eight = table(*["xxxx"] * 8)
    assert conformal_certificate(eight, SIZES, alpha=0.1) == Certificate(1.0, False, 8, 0.1)
    nine = table(*["xxxx"] * 9)
    assert conformal_certificate(nine, SIZES, alpha=0.1) == Certificate(0.1, True, 9, 0.1, rank=9)
    assert bags_needed(0.1) == 9


def test_the_test_needs_more_bags_for_its_stronger_promise():
    assert bags_needed(0.1, 0.9) == 22
    # 0.9^22 = 0.0985 and 0.9^21 = 0.1094
    assert failure_p_value(0, 22, alpha=0.1) == pytest.approx(0.9**22)
    for n_bags, certified in ((21, False), (22, True)):
        found = binomial_certificate(table(*["xxxx"] * n_bags), SIZES, alpha=0.1, confidence=0.9)
        assert found.certified == certified
        assert found.fraction == (0.1 if certified else 1.0)


def test_the_test_stops_at_the_first_size_that_fails():
    # No failure at 0.5, three of four at 0.2, none at 0.1: what lies below a failed size is not looked at.
    agrees = table("xxxx", "x.xx", "x.xx", "x.xx")
    found = binomial_certificate(agrees, SIZES, alpha=0.5, confidence=0.9)
    assert (found.fraction, found.certified) == (0.5, True)
    # 0.5^4 = 0.0625 passes at 0.9 and not at 0.95.
    assert not binomial_certificate(agrees, SIZES, alpha=0.5, confidence=0.95).certified


def test_no_calibration_bags_certify_nothing():
    nobody = np.zeros((0, 4), dtype=bool)
    assert not conformal_certificate(nobody, SIZES, alpha=0.1).certified
    assert not binomial_certificate(nobody, SIZES, alpha=0.1, confidence=0.9).certified


def test_bags_that_need_everything_get_everything():
    agrees = table(*["...x"] * 50)
    assert not conformal_certificate(agrees, SIZES, alpha=0.1).certified
    assert not binomial_certificate(agrees, SIZES, alpha=0.1, confidence=0.9).certified


def test_the_floor_is_what_few_test_bags_may_realise():
    # One test bag of a conformal promise of 0.9 fails with probability 0.1 > 0.05.
    assert Certificate(0.1, True, 9, 0.1, rank=9).realised_floor(1) == 0
    assert Certificate(0.1, True, 9, 0.1, rank=9).realised_floor(1000) < 0.9
    # P(Binomial(10, 0.9) <= 7) = 0.0702, <= 6: 0.0128
    assert Certificate(0.1, True, 30, 0.1).realised_floor(10) == pytest.approx(0.7)
    assert Certificate(1.0, False, 9, 0.1).realised_floor(10) == 1
