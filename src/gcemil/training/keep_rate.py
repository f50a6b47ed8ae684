"""How many patches the prefilter keeps, and when a prediction from them is trusted; both settled on validation slides.

  doubt        of a prediction from kept patches: 1 - min(P(c | evidence), P(c | all kept)), c the class of the evidence;
               for a risk, |risk of the evidence - risk of all kept| in deviations of the training risks
  certified    doubt <= limit; otherwise the slide falls back to all its patches
  limit        the largest doubt seen on validation such that (changed + 1) / (n + 1) <= risk, `changed` counting the certified
               slides whose answer is not that of the whole bag, and such that the task metric with fall-backs is at least
               `utility_share` of that of the whole bags
  cost         share of patches that are encoded: keep_rate for a certified slide, 1 for one that falls back
  keep rate    that of the ladder with the lowest cost, of those that are at least the share of patches that is evidence on the
               whole bags; ties go to the larger rate, which sees more

Fewer patches than the evidence has may give the same answer, but they cannot show what it rests on. The first condition is
conformal risk control: a new exchangeable slide is certified and yet answered otherwise with probability at most `risk`, were
the limit the only thing chosen. Few slides promise little: below 1 / risk - 1 of them nothing is certified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field

from gcemil.config import Settings

Certified = Bool[np.ndarray, "n"]
UtilityOf = Callable[[Certified], float]
"""The task metric when these slides are predicted from kept patches and the others from all."""


class CertificateSettings(Settings):
    """What is asked of the prefilter on validation slides."""

    ladder: tuple[float, ...] = Field(
        (0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5), min_length=1, description="Keep rates that are tried."
    )  # fmt: skip
    utility_share: float = Field(
        0.98, gt=0, description="Smallest task metric, as a share of the whole bags'."
    )
    risk: float = Field(0.1, gt=0, lt=1, description="Largest chance that a certified answer is another one.")
    risk_tolerance: float = Field(
        0.25,
        gt=0,
        description="Survival: a risk that moved further, in deviations of training risks, has changed.",
    )


@dataclass(frozen=True, eq=False)
class Trial:
    """One keep rate on the validation slides."""

    keep_rate: float
    doubts: Float[np.ndarray, "n"]
    changed: Bool[np.ndarray, "n"]
    """Whether the answer from kept patches is not that of the whole bag."""
    utility_of: UtilityOf
    recall: float
    """Mean share of the whole bag's evidence among the kept patches."""


@dataclass(frozen=True)
class RateOutcome:
    """What a keep rate came to on validation."""

    keep_rate: float
    doubt_limit: float | None
    """None where nothing could be certified."""
    fall_back: float
    """Share of slides that fall back."""
    cost: float
    utility: float
    relative_utility: float | None
    recall: float
    changed: float
    """Share of slides that are certified and answered otherwise."""


def outcome_of(trial: Trial, settings: CertificateSettings) -> RateOutcome:
    """The largest limit that keeps both promises, and what it costs."""
    nobody = np.zeros(len(trial.doubts), dtype=bool)
    full = trial.utility_of(nobody)
    limit, certified, utility = None, nobody, full
    for candidate in allowed_limits(trial.doubts, trial.changed, settings.risk):
        accepted = trial.doubts <= candidate
        reached = trial.utility_of(accepted)
        if reached >= settings.utility_share * full:
            limit, certified, utility = candidate, accepted, reached
            break
    fall_back = 1 - float(certified.mean())
    return RateOutcome(
        keep_rate=trial.keep_rate,
        doubt_limit=limit,
        fall_back=fall_back,
        cost=trial.keep_rate + fall_back * (1 - trial.keep_rate),
        utility=utility,
        relative_utility=utility / full if full else None,
        recall=trial.recall,
        changed=float((certified & trial.changed).mean()),
    )


def allowed_limits(
    doubts: Float[np.ndarray, "n"], changed: Bool[np.ndarray, "n"], risk: float
) -> list[float]:
    """Doubts that may serve as limit, the largest first."""
    candidates = np.unique(doubts)
    failures = ((doubts[None, :] <= candidates[:, None]) & changed[None, :]).sum(axis=1)
    # (0 + 1) / (9 + 1) is 0.1, whatever rounding makes of it.
    allowed = (failures + 1) / (len(doubts) + 1) <= risk + 1e-12
    return [float(value) for value in candidates[allowed][::-1]]


def chosen_outcome(outcomes: Sequence[RateOutcome], *, evidence_share: float) -> RateOutcome:
    """The cheapest that has room for the evidence, else the largest; of equally cheap ones that which keeps most."""
    roomy = [one for one in outcomes if one.keep_rate >= evidence_share]
    if not roomy:
        return max(outcomes, key=lambda one: one.keep_rate)
    return min(roomy, key=lambda one: (round(one.cost, 9), -one.keep_rate))
