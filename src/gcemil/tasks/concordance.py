"""Harrell's concordance index of risks with censored times, and its confidence interval.

A pair (i, j) is comparable when i had the event and j outlived it: t_i < t_j, or t_i = t_j with j censored.
It is concordant when risk_i > risk_j; risks within the tolerance are tied and count one half.

  C = (concordant + tied / 2) / comparable
  variance = sum over bags of (dC/dw_b)^2, dC/dw_b = sum over b's comparable pairs of (score - C) / comparable

The variance is the infinitesimal jackknife: a bag enters by all its pairs, as the earlier and as the later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float, Real

from gcemil.errors import InputError, UsageError


@dataclass(frozen=True)
class Concordance:
    """The index with the pairs it rests on."""

    index: float
    concordant: int
    discordant: int
    tied_risk: int
    tied_time: int
    """Comparable pairs of an event and a censoring at the same time."""
    standard_error: float

    def interval(self, *, level: float = 0.95) -> tuple[float, float] | None:
        """Normal interval within [0, 1]; None where all pairs agree, since they show no spread to estimate."""
        if not 0.0 < level < 1.0:
            raise UsageError(f"A confidence level lies between 0 and 1, got {level}. Use 0.95, for instance.")
        if self.standard_error == 0.0:
            return None
        reach = NormalDist().inv_cdf(0.5 + level / 2) * self.standard_error
        return max(0.0, self.index - reach), min(1.0, self.index + reach)


def concordance(
    risks: Float[np.ndarray, "n"],
    times: Real[np.ndarray, "n"],
    events: Bool[np.ndarray, "n"],
    *,
    tie_tolerance: float = 1e-8,
) -> Concordance:
    """Agreement of higher risk with earlier event over all comparable pairs."""
    if not np.isfinite(risks).all():
        raise InputError(
            f"{int((~np.isfinite(risks)).sum())} of {len(risks)} risks are NaN or infinite. The model has diverged."
        )
    comparable = comparable_pairs(times, events)
    n_comparable = int(comparable.sum())
    if n_comparable == 0:
        raise InputError(no_pair_message(events))
    difference = risks[events][:, None] - risks
    tied = comparable & (np.abs(difference) <= tie_tolerance)
    concordant = comparable & ~tied & (difference > 0)
    score = concordant + 0.5 * tied
    index = float(score.sum() / n_comparable)
    n_concordant, n_tied = int(concordant.sum()), int(tied.sum())
    return Concordance(
        index=index,
        concordant=n_concordant,
        discordant=n_comparable - n_concordant - n_tied,
        tied_risk=n_tied,
        tied_time=int((comparable & (times[events][:, None] == times)).sum()),
        standard_error=jackknife_error(score - index * comparable, events) / n_comparable,
    )


def comparable_pairs(times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]) -> Bool[np.ndarray, "e n"]:
    """One row per event: who is known to have outlived it."""
    event_times = times[events][:, None]
    return (event_times < times) | ((event_times == times) & ~events)


def jackknife_error(residual: Float[np.ndarray, "e n"], events: Bool[np.ndarray, "n"]) -> float:
    """Root of the summed squares of every bag's residual pairs."""
    per_bag = residual.sum(axis=0)
    per_bag[events] += residual.sum(axis=1)
    return float(np.sqrt((per_bag**2).sum()))


def no_pair_message(events: Bool[np.ndarray, "n"]) -> str:
    return (
        f"The C-index is undefined: {len(events)} bags with {int(events.sum())} events hold no comparable pair. "
        "Evaluate on a fold with an event that another bag outlived."
    )
