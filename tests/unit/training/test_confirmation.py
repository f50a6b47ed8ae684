"""Evidence on slides without a lesion: how strong it must be before it is confirmed."""

from __future__ import annotations

import numpy as np
import pytest

from gcemil.training.directions import conformal_quantile


@pytest.mark.parametrize(
    ("values", "rate", "expected"),
    [
        ([], 0.1, 0.0),
        ([0.3], 0.1, 0.3),
        ([0.1, 0.5, 0.2], 0.1, 0.5),
        ([round(0.1 * k, 1) for k in range(9)], 0.1, 0.8),
        ([round(0.1 * k, 1) for k in range(9)], 0.5, 0.4),
    ],
)
def test_quantile_of_a_few_values(values: list[float], rate: float, expected: float) -> None:
    assert conformal_quantile(values, rate) == expected


def test_a_new_value_exceeds_the_quantile_no_more_often_than_promised() -> None:
    generator = np.random.default_rng(0)
    exceeded = [
        draws[-1] > conformal_quantile(list(draws[:-1]), 0.1) for draws in generator.random((4000, 31))
    ]
    # Exactly 3/31 are expected: the rank of the quantile among 30 values is 28.
    assert np.mean(exceeded) == pytest.approx(3 / 31, abs=0.015)
