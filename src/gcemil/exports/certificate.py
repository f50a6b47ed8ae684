"""The keep/remove certificate: four predictions of one bag, and what they say of its evidence S.

  sufficient    |Phi(X_S) - Phi(X)|    <= delta_s      keeping only the evidence changes little     (Definition 1)
  necessary     |Phi(X_notS) - Phi(X)| >= delta_n      removing it changes something                (Definition 2)
  recoverable   |Phi(X_pi) - Phi(X_S)| <= delta_r      the gates and the patches say the same       (Definition 3)

Phi is the probability of the class predicted on X, the risk in units of the training risks, or the value in
deviations of the training labels. Verdicts are made in
gcemil.diagnostics.snr; here they are kept, put into words and written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gcemil.errors import RunError
from gcemil.files import read_record, without_nan, write_json
from gcemil.records import FurtherSet, RegionVerdict, certify, describe_verdict

NEW = "new"
"""The part of a slide that no fold of the cohort knows."""
VerdictName = Literal["sufficient", "necessary", "recoverable"]


class Criterion(NamedTuple):
    """How one definition is judged."""

    bound: str
    change: str
    """The metric that says how far the two outputs are apart."""
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
class Prediction:
    """What the model says of one version of the bag."""

    values: dict[str, float]
    """prob_<class>, risk or value."""
    output: float
    """Phi."""


@dataclass(frozen=True)
class Predictions:
    """X, X_pi, X_S and X_notS."""

    full: Prediction
    gated: Prediction | None
    kept: Prediction
    removed: Prediction | None


def describe_direction(found: Predictions) -> str:
    """Which way Phi moves when the patches are kept alone and removed, and whether the predicted class stays."""
    steps = [("from the patches alone", found.kept), ("without them", found.removed)]
    told = [_describe_step(place, found.full, one) for place, one in steps if one is not None]
    return f"Phi is {found.full.output:.3f}, {', and '.join(told)}."


def _describe_step(place: str, full: Prediction, other: Prediction) -> str:
    # Adding 0 takes the sign off a zero.
    change = round(other.output - full.output, 3) + 0.0
    text = f"{place} {other.output:.3f} ({change:+.3f}"
    if len(full.values) > 1:
        before, after = (max(one.values, key=one.values.__getitem__) for one in (full, other))
        text += (
            ", the class stays"
            if before == after
            else f", the class becomes {after.removeprefix('prob_')}"
        )
    return f"{text})"


@dataclass(frozen=True)
class Verdict:
    """Whether one definition holds; None where it does not apply."""

    held: bool | None
    change: float | None
    """How far the two outputs are apart; None where one of them does not exist."""
    tolerance: float

    def sentence(self, name: VerdictName) -> str:
        """The verdict and the two numbers behind it."""
        word = {True: name, False: f"not {name}", None: f"{name} or not cannot be said"}[self.held]
        if self.change is None:
            return f"{word}: {CRITERIA[name].without_change}"
        return f"{word}: change {self.change:.3f}, {CRITERIA[name].bound} {self.tolerance:g}"


@dataclass(frozen=True)
class AnchorCoverage:
    """How surely the evidence shows one anchor."""

    prompt: str
    coverage: float
    target: float
    """What recovery had to reach; 0 where the anchor does not count for this prediction."""
    weight: float
    """How much the predicted class, or the number, uses the anchor."""

    @property
    def covered(self) -> bool | None:
        """None for an anchor that does not count."""
        return None if self.target == 0 else self.coverage >= self.target


@dataclass(frozen=True)
class Subject:
    """Which patches of which bag are certified."""

    slide_id: str
    bag_id: str
    bag_slides: tuple[str, ...]
    part: str
    """The part of the fold the bag is in, of which only test is unseen; 'new' for a slide outside the cohort."""
    n_patches: int
    n_selected: int
    slide_n_patches: int
    slide_n_selected: int

    @property
    def fraction(self) -> float:
        """Share of the bag's patches that is selected."""
        return self.n_selected / self.n_patches

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before reading on."""
        notes = []
        if len(self.bag_slides) > 1:
            notes.append(
                f"Case '{self.bag_id}' has {len(self.bag_slides)} slides, which form one bag: predictions, verdicts, fraction "
                f"and coverage are of the case. {self.slide_n_selected} of its {self.n_selected} selected patches lie on "
                f"slide '{self.slide_id}'."
            )
        if self.part not in ("test", NEW):
            notes.append(
                f"The model is not new to this slide: it is in the {self.part} part of the fold."
            )
        return tuple(notes)


@dataclass(frozen=True)
class Consensus:
    """How several folds agree on a slide."""

    folds: tuple[int, ...]
    per_fold: tuple[dict[str, float], ...]
    """prob_<class>, risk or value, of each from all patches."""
    n_chosen: tuple[int, ...]
    """Patches that each chose by itself."""
    n_unanimous: int
    """Patches that all chose."""
    spread: float
    """Deviation over the folds of the probability of the predicted class, or of the number."""

    @property
    def sentence(self) -> str:
        """The agreement in one line."""
        return (
            f"Mean of {len(self.folds)} folds ({', '.join(map(str, self.folds))}), spread {self.spread:.3f}; the patches are "
            f"those that most folds chose, {self.n_unanimous} of them chosen by all."
        )


@dataclass(frozen=True)
class Certificate:
    """What was kept and removed, what the model said each time, and what follows from it."""

    subject: Subject
    rule: str
    """How the patches were chosen."""
    output_name: str
    """What Phi is."""
    predictions: Predictions
    verdicts: dict[VerdictName, Verdict]
    stop_reason: str | None
    """Why recovery ended; None for a rule without recovery."""
    anchors: tuple[AnchorCoverage, ...]
    settings: dict[str, Any]
    provenance: dict[str, Any]
    notes: tuple[str, ...] = ()
    regions: tuple[RegionVerdict, ...] = ()
    """Connected regions of the patches by score mass, where they were judged."""
    further: tuple[FurtherSet, ...] = ()
    """Disjoint sets that carry the prediction as well, and the one whose removal turns it; rows of the bag."""
    is_confirmed: bool | None = None
    """Whether the evidence exceeds what slides without a lesion show; None: not measured."""
    model_warning: str | None = None
    """Why evidence of this model is not certified; None where the model has learned."""
    consensus: Consensus | None = None
    """How several folds agree; None for one."""

    @property
    def is_necessary(self) -> bool | None:
        """None for a whole bag, of which nothing is left to compare with."""
        necessary = self.verdicts["necessary"]
        return None if necessary.change is None else necessary.held

    @property
    def is_evidence(self) -> bool:
        """Whether the patches may be shown as evidence: by a model that has learned, and not for nothing."""
        return (
            self.model_warning is None
            and self.is_necessary is not False
            and self.is_confirmed is not False
        )

    @property
    def verdict(self) -> str:
        """Whether the patches are evidence at all, in words."""
        verdict = describe_verdict(
            self.verdicts["sufficient"].held, self.is_necessary, self.is_confirmed
        )
        return certify(verdict, self.model_warning)

    @property
    def short_verdict(self) -> str:
        """The verdict for the head of a picture."""
        is_sufficient = self.verdicts["sufficient"].held
        return shorten_verdict(
            self.verdict, bool(self.is_evidence and self.is_necessary and is_sufficient)
        )

    @property
    def headline(self) -> str:
        """The three verdicts in one line; that there is no evidence comes first."""
        found = [self.verdicts[name].sentence(name) for name in CRITERIA]
        return "; ".join(found if self.is_evidence else [self.verdict, *found])

    def to_json(self) -> dict[str, Any]:
        """The certificate as plain values."""
        value: dict[str, Any] = without_nan(asdict(self))
        value["headline"] = self.headline
        value["verdict"] = self.verdict
        value["direction"] = describe_direction(self.predictions)
        warning = [] if self.model_warning is None else [self.model_warning]
        value["notes"] = [*warning, *self.subject.notes, *self.notes]
        value["subject"]["fraction"] = self.subject.fraction
        for entry, anchor in zip(value["anchors"], self.anchors, strict=True):
            entry["covered"] = anchor.covered
        return value


def shorten_verdict(verdict: str, is_confirmed: bool) -> str:
    """The verdict without its reason; evidence that is sufficient and necessary is called confirmed."""
    return f"confirmed, {verdict}" if is_confirmed else verdict.partition(":")[0]


def write_certificate(path: Path, certificate: Certificate) -> Path:
    """Write the certificate as JSON."""
    return write_json(path, certificate.to_json())


def read_certificate(path: Path) -> Certificate:
    """A certificate as it was written; what follows from the rest is left out and made again."""
    remedy = "It is no certificate of gcemil; make it again with 'gcemil explain'."
    found = read_record(path, Certificate, error=RunError, remedy=remedy)
    if missing := [name for name in CRITERIA if name not in found.verdicts]:
        raise RunError(f"{path} has no verdict '{missing[0]}'. {remedy}")
    derived = (*found.subject.notes, found.model_warning)
    return replace(found, notes=tuple(note for note in found.notes if note not in derived))
