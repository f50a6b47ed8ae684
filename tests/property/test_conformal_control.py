"""The promises of a guarantee, on exchangeable bags whose true rates are known."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gcemil.diagnostics.guarantee import binomial_certificate, conformal_certificate, stable_sizes

SIZES = (0.01, 0.05, 0.1, 0.3, 1.0)
alphas = st.sampled_from([0.05, 0.1, 0.2, 0.3, 0.5])
WORLDS = 200


@st.composite
def agreement_tables(draw):
    """Any table of agreement, the whole bag agreeing with itself."""
    rows = draw(
        st.lists(
            st.lists(st.booleans(), min_size=len(SIZES) - 1, max_size=len(SIZES) - 1),
            min_size=2,
            max_size=40,
        )
    )
    return np.array([[*row, True] for row in rows])


@settings(max_examples=50)
@given(agreement_tables(), alphas)
def test_holding_out_each_bag_in_turn_at_least_the_promised_share_is_covered(agrees, alpha):
    """Exchangeability without chance: the new bag is equally likely to be any of the n + 1."""
    covered = []
    for held_out in range(len(agrees)):
        rest = np.delete(agrees, held_out, axis=0)
        certificate = conformal_certificate(rest, SIZES, alpha=alpha)
        covered.append(bool(agrees[held_out, SIZES.index(certificate.fraction)]))
    assert np.mean(covered) >= 1 - alpha - 1e-9


@settings(max_examples=50)
@given(agreement_tables(), alphas)
def test_a_smaller_risk_never_gets_a_smaller_size(agrees, alpha):
    strict = conformal_certificate(agrees, SIZES, alpha=alpha / 2)
    assert strict.fraction >= conformal_certificate(agrees, SIZES, alpha=alpha).fraction
    tested = binomial_certificate(agrees, SIZES, alpha=alpha / 2, confidence=0.9)
    assert (
        tested.fraction >= binomial_certificate(agrees, SIZES, alpha=alpha, confidence=0.9).fraction
    )


@given(agreement_tables())
def test_a_bag_agrees_at_its_stable_size_and_at_every_larger_one(agrees):
    for row, size in zip(agrees, stable_sizes(agrees, SIZES), strict=True):
        column = SIZES.index(size)
        assert row[column:].all()
        assert column == 0 or not row[column - 1]


def drawn(rates, n_bags, generator):
    """Bags that agree at each size with its own rate: neither monotone nor equal between bags."""
    luck = generator.random((n_bags, len(SIZES)))
    return luck < np.array([*rates, 1.0])


rate_lists = st.lists(
    st.floats(0.3, 1.0, allow_subnormal=False), min_size=len(SIZES) - 1, max_size=len(SIZES) - 1
)


@settings(max_examples=10)
@given(rate_lists, st.integers(5, 60), alphas, st.integers(0, 2**32 - 1))
def test_the_realised_rate_keeps_the_conformal_promise(rates, n_bags, alpha, seed):
    generator = np.random.default_rng(seed)
    agreed = 0
    for _ in range(WORLDS):
        certificate = conformal_certificate(drawn(rates, n_bags, generator), SIZES, alpha=alpha)
        agreed += int(drawn(rates, 1, generator)[0, SIZES.index(certificate.fraction)])
    # Five standard errors of a binomial share.
    assert agreed / WORLDS >= 1 - alpha - 5 * math.sqrt(alpha * (1 - alpha) / WORLDS)


@settings(max_examples=10)
@given(rate_lists, st.integers(5, 60), alphas, st.integers(0, 2**32 - 1))
def test_a_tested_size_is_rarely_worse_than_promised(rates, n_bags, alpha, seed):
    generator = np.random.default_rng(seed)
    true_rates = dict(zip(SIZES, [*rates, 1.0], strict=True))
    broken = 0
    for _ in range(WORLDS):
        agrees = drawn(rates, n_bags, generator)
        certificate = binomial_certificate(agrees, SIZES, alpha=alpha, confidence=0.9)
        broken += true_rates[certificate.fraction] < 1 - alpha
    assert broken / WORLDS <= 0.1 + 5 * math.sqrt(0.1 * 0.9 / WORLDS)


@settings(max_examples=10)
@given(rate_lists, st.integers(10, 60), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_kept_promise_seldom_realises_less_than_its_floor(rates, n_bags, n_test, seed):
    generator = np.random.default_rng(seed)
    below = 0
    floors: dict[bool, float] = {}
    for _ in range(WORLDS):
        certificate = conformal_certificate(drawn(rates, n_bags, generator), SIZES, alpha=0.2)
        realised = drawn(rates, n_test, generator)[:, SIZES.index(certificate.fraction)].mean()
        # The same in every world that certifies at all.
        if certificate.certified not in floors:
            floors[certificate.certified] = certificate.realised_floor(n_test)
        below += realised < floors[certificate.certified] - 1e-9
    assert below / WORLDS <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / WORLDS)
