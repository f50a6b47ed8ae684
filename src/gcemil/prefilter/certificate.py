"""When a prediction from kept patches is trusted, and how many patches a prefilter keeps.

The wrapper's budget and the cap of recovery are shares of the slide. On a bag of kept patches they
are scaled up, so that the same number of patches may be evidence as on the whole bag: budget N / k,
at most 1. A least number of patches stays as it is.

  doubt        of a prediction from kept patches: 1 - min(P(c | evidence), P(c | all kept)), c the
               class of the evidence; for a risk, |risk of the evidence - risk of all kept| in
               deviations of the training risks
  certified    doubt <= limit; otherwise the slide falls back to all its patches
  limit        the largest doubt seen on validation such that (changed + 1) / (n + 1) <= risk,
               `changed` counting the certified slides whose prediction is not that of the whole
               bag, and such that the task metric with fall-backs is at least `utility_share` of
               that of the whole bags
  cost         share of patches that are encoded: keep_rate for a certified slide, 1 after a
               fall-back
  keep rate    the cheapest of the ladder among those that are at least the share of patches that is
               evidence on the whole bags; ties go to the larger rate, which sees more

Fewer patches than the evidence has may give the same prediction, but cannot show what it rests on.
The first condition is conformal risk control: a new exchangeable slide is certified and yet
predicted otherwise with probability at most `risk`, if only the limit is chosen. Few
slides are not enough: below 1 / risk - 1 of them nothing is certified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field

from gcemil.bags.bag import Bag
from gcemil.config import Settings
from gcemil.explanation import Explanation, explain_bag
from gcemil.model import GceMil
from gcemil.outputs import create_output, guess_task
from gcemil.shapes import Logits

Certified = Bool[np.ndarray, "n"]
UtilityOf = Callable[[Certified], float]
"""The task metric when these slides are predicted from kept patches and the others from all."""


@dataclass(frozen=True, eq=False)
class KeptAnswer:
    """The prediction from the kept patches of a bag."""

    rows: Int[np.ndarray, "k"]
    """The kept patches, as rows of the whole bag."""
    explanation: Explanation
    doubt: float

    @property
    def logits(self) -> Logits:
        """The main prediction on the evidence among the kept patches."""
        return self.explanation.kept.logits

    @property
    def evidence_rows(self) -> Int[np.ndarray, "e"]:
        """The evidence, as rows of the whole bag."""
        return self.rows[self.explanation.recovery.selected.cpu().numpy()]


def answer_from_kept(
    model: GceMil, bag: Bag, rows: Int[np.ndarray, "k"], *, deviation: float
) -> KeptAnswer:
    """Evidence and prediction from some sorted rows; `deviation` is of the training risks."""
    explanation = explain_bag(scale_budget(model, share=len(rows) / len(bag)), bag.take_rows(rows))
    evidence, everyone = explanation.kept.logits, explanation.output.answer.logits
    return KeptAnswer(rows, explanation, measure_doubt(evidence, everyone, deviation=deviation))


def scale_budget(model: GceMil, *, share: float) -> GceMil:
    """The same weights, with budget and cap for a bag of which this share is left."""
    settings = model.settings
    budget = min(1.0, settings.budget / share)
    recovery = settings.recovery.model_copy(
        update={"max_fraction": min(1.0, settings.recovery.max_fraction / share)}
    )
    gate = copy(model.gate)
    gate.budget = budget
    scaled = copy(model)
    # A shallow copy shares its table of modules; the gate with the other budget goes into a table
    # of its own.
    scaled._modules = {**model._modules, "gate": gate}
    scaled.settings = settings.model_copy(update={"budget": budget, "recovery": recovery})
    return scaled


def measure_doubt(evidence: Logits, everyone: Logits, *, deviation: float) -> float:
    """How far the evidence is from deciding alone what all kept patches decide."""
    output = create_output(guess_task(len(evidence)), len(evidence), deviation)
    if output.is_number:
        return output.gap(everyone, evidence)
    return 1 - float(output.phi(evidence, torch.stack([evidence, everyone])).min())


def is_changed(answer: Logits, full: Logits, *, deviation: float, tolerance: float) -> bool:
    """Whether a prediction differs from that of the whole bag."""
    output = create_output(guess_task(len(full)), len(full), deviation)
    if output.is_number:
        return output.gap(full, answer) > tolerance
    return not output.same_class(full, answer)


class CertificateSettings(Settings):
    """Requirements on the prefilter, checked on validation slides."""

    ladder: tuple[float, ...] = Field(
        (0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
        min_length=1,
        description="Keep rates that are tried.",
    )
    utility_share: float = Field(
        0.98, gt=0, description="Smallest task metric, as a share of the whole bags'."
    )
    risk: float = Field(
        0.1, gt=0, lt=1, description="Largest chance that a certified prediction has changed."
    )
    risk_tolerance: float = Field(
        0.25,
        gt=0,
        description="Survival: a risk that moved by more training deviations has changed.",
    )


@dataclass(frozen=True, eq=False)
class Trial:
    """One keep rate on the validation slides."""

    keep_rate: float
    doubts: Float[np.ndarray, "n"]
    changed: Bool[np.ndarray, "n"]
    """Whether the prediction from kept patches differs from that of the whole bag."""
    utility_of: UtilityOf
    recall: float
    """Mean share of the whole bag's evidence among the kept patches."""


@dataclass(frozen=True)
class RateOutcome:
    """The guarantee and the cost of a keep rate on the validation slides."""

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
    """Share of slides that are certified and predicted otherwise."""


def settle_limit(trial: Trial, settings: CertificateSettings) -> RateOutcome:
    """The largest limit that meets both requirements, and its cost."""
    n_slides = len(trial.doubts)
    certified = np.zeros(n_slides, dtype=bool)
    limit, utility = None, trial.utility_of(certified)
    full = utility
    for candidate in np.unique(trial.doubts)[::-1]:
        accepted = trial.doubts <= candidate
        # (0 + 1) / (9 + 1) is 0.1, whatever rounding makes of it.
        failures = (accepted & trial.changed).sum()
        if (failures + 1) / (n_slides + 1) > settings.risk + 1e-12:
            continue
        reached = trial.utility_of(accepted)
        if reached >= settings.utility_share * full:
            limit, certified, utility = float(candidate), accepted, reached
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


def choose_rate(outcomes: Sequence[RateOutcome], *, evidence_share: float) -> RateOutcome:
    """The cheapest rate with room for the evidence, else the largest."""
    roomy = [outcome for outcome in outcomes if outcome.keep_rate >= evidence_share]
    if not roomy:
        return max(outcomes, key=lambda outcome: outcome.keep_rate)
    return min(roomy, key=lambda outcome: (round(outcome.cost, 9), -outcome.keep_rate))
