"""The verdicts of the keep/remove certificate, in words.

  sufficient    |Phi(X_S) - Phi(X)|    <= delta_s   (Definition 1) keeping it changes little
  necessary     |Phi(X_notS) - Phi(X)| >= delta_n   (Definition 2) removing it changes something
  recoverable   |Phi(X_pi) - Phi(X_S)| <= delta_r   (Definition 3) gates and patches agree

Phi is the probability of the class predicted on X, the risk in units of the training risks, or the
value in deviations of the training labels. explain.py predicts the four and writes
certificate.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gcemil.records import certify, describe_verdict

VerdictName = Literal["sufficient", "necessary", "recoverable"]


class Criterion(NamedTuple):
    """How one definition is judged."""

    bound: str
    change: str
    """The metric of the distance of the two outputs."""
    tolerance: str
    """The setting of the S/N/R diagnostic that limits it."""
    without_change: str
    """Why there may be no change to judge."""


CRITERIA: dict[VerdictName, Criterion] = {
    "sufficient": Criterion(
        "at most",
        "full_kept_gap",
        "sufficiency_tolerance",
        "there is no prediction from the evidence",
    ),
    "necessary": Criterion(
        "at least",
        "removal_gap",
        "necessity_tolerance",
        "the evidence is the whole bag, nothing is left without it",
    ),
    "recoverable": Criterion(
        "at most", "cd_gap", "recoverability_tolerance", "the rule has no gates"
    ),
}


@dataclass(frozen=True)
class Verdict:
    """Whether one definition holds; None where it does not apply."""

    held: bool | None
    change: float | None
    """How far the two outputs are apart; None where one of them does not exist."""
    tolerance: float

    def sentence(self, name: VerdictName) -> str:
        """The verdict and the two numbers behind it."""
        word = {True: name, False: f"not {name}", None: f"{name} or not is undecided"}[self.held]
        if self.change is None:
            return f"{word}: {CRITERIA[name].without_change}"
        return f"{word}: change {self.change:.3f}, {CRITERIA[name].bound} {self.tolerance:g}"


@dataclass(frozen=True)
class Judgement:
    """The three verdicts on a set of patches, and whether the set may be shown as evidence."""

    verdicts: Mapping[VerdictName, Verdict]
    is_confirmed: bool | None = None
    """Whether the evidence exceeds what slides without a lesion show; None: not measured."""
    model_warning: str | None = None
    """Why evidence of this model is not certified; None where the model has learned."""

    @property
    def is_necessary(self) -> bool | None:
        """None for a whole bag, of which nothing is left to compare with."""
        necessary = self.verdicts["necessary"]
        return None if necessary.change is None else necessary.held

    @property
    def is_evidence(self) -> bool:
        """Whether the model has learned and needs these patches."""
        return (
            self.model_warning is None
            and self.is_necessary is not False
            and self.is_confirmed is not False
        )

    @property
    def text(self) -> str:
        """Whether the patches are evidence at all, in words."""
        is_sufficient = self.verdicts["sufficient"].held
        verdict = describe_verdict(is_sufficient, self.is_necessary, self.is_confirmed)
        return certify(verdict, self.model_warning)

    @property
    def short_text(self) -> str:
        """The verdict for the head of a picture."""
        holds = self.is_evidence and self.is_necessary and self.verdicts["sufficient"].held
        return shorten_verdict(self.text, bool(holds))

    @property
    def headline(self) -> str:
        """The three verdicts in one line; that there is no evidence comes first."""
        sentences = [self.verdicts[name].sentence(name) for name in CRITERIA]
        return "; ".join(sentences if self.is_evidence else [self.text, *sentences])


def shorten_verdict(verdict: str, is_confirmed: bool) -> str:
    """The verdict without its reason; evidence that is sufficient and necessary is confirmed."""
    return f"confirmed, {verdict}" if is_confirmed else verdict.partition(":")[0]


def describe_direction(predictions: Mapping[str, Any]) -> str:
    """How Phi and the class change when the patches are kept alone, and when they are removed."""
    full = predictions["full"]
    steps = []
    for name, place in (("kept", "from the patches alone"), ("removed", "without them")):
        if (other := predictions[name]) is None:
            continue
        # Adding 0 takes the sign off a zero.
        change = round(other["output"] - full["output"], 3) + 0.0
        step = f"{place} {other['output']:.3f} ({change:+.3f}"
        if len(full["values"]) > 1:
            before, after = (max(one["values"], key=one["values"].get) for one in (full, other))
            step += (
                ", the class stays"
                if before == after
                else f", the class becomes {after.removeprefix('prob_')}"
            )
        steps.append(f"{step})")
    return f"Phi is {full['output']:.3f}, {', and '.join(steps)}."
