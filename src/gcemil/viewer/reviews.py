"""What a person says of single patches, and how far that is what the evidence says.

RUN/fold_<k>/reviews/<slide>.json holds every mark beside whether the patch was evidence when it was marked.

  agreement   share of marks that repeat the evidence: accepted inside it, rejected outside it
  kappa       Cohen's: (agreement - chance) / (1 - chance); None while one of the two always says the same
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gcemil.errors import RunError, UsageError
from gcemil.files import is_file, read_record, write_json
from gcemil.viewer.security import inside
from gcemil.viewer.session import OpenedSlide, ViewerSession

ACCEPT, REJECT = "accept", "reject"


@dataclass(frozen=True)
class Mark:
    """What a person said of one patch, and whether it was evidence then."""

    patch: int
    mark: Literal["accept", "reject"]
    in_evidence: bool


@dataclass(frozen=True)
class Review:
    """What reviews/<slide>.json says."""

    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Agreement:
    """Counts of marks by what the evidence says of the patch."""

    accepted_evidence: int = 0
    rejected_evidence: int = 0
    accepted_others: int = 0
    """Patches a person takes for evidence and the model did not."""
    rejected_others: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @property
    def n_marks(self) -> int:
        return sum(vars(self).values())

    @property
    def agreement(self) -> float | None:
        return (self.accepted_evidence + self.rejected_others) / self.n_marks if self.n_marks else None

    @property
    def kappa(self) -> float | None:
        if self.agreement is None:
            return None
        accepted = (self.accepted_evidence + self.accepted_others) / self.n_marks
        evidence = (self.accepted_evidence + self.rejected_evidence) / self.n_marks
        if accepted in (0.0, 1.0) or evidence in (0.0, 1.0):
            return None
        chance = accepted * evidence + (1 - accepted) * (1 - evidence)
        return (self.agreement - chance) / (1 - chance)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "n_marks": self.n_marks, "agreement": self.agreement, "kappa": self.kappa}


def save_review(session: ViewerSession, slide: OpenedSlide, given: Any) -> Agreement:
    """Write the marks of one slide; patches count from the slide's first row."""
    n_patches = len(slide.coords)
    accepted, rejected = (_patches(given, name, n_patches) for name in ("accepted", "rejected"))
    if both := set(accepted) & set(rejected):
        raise UsageError(f"Patch {min(both)} is accepted and rejected. Mark it once.")
    evidence = slide.chosen.numpy()[slide.rows]
    verdicts = {**dict.fromkeys(accepted, ACCEPT), **dict.fromkeys(rejected, REJECT)}
    marks = [
        {"patch": patch, "mark": verdicts[patch], "in_evidence": bool(evidence[patch])}
        for patch in sorted(verdicts)
    ]
    review = {
        "slide_id": slide.slide_id,
        "rule": slide.rule,
        "n_patches": n_patches,
        "hashes": slide.hashes,
        "marks": marks,
    }
    write_json(review_file(session, slide.slide_id), review)
    return counted(marks)


def review_file(session: ViewerSession, slide_id: str) -> Path:
    return inside(inside(session.folder, "reviews"), f"{slide_id}.json")


def read_marks(session: ViewerSession, slide_id: str) -> list[dict[str, Any]]:
    """The marks of one slide; none where nobody reviewed it."""
    path = review_file(session, slide_id)
    if not is_file(path):
        return []
    remedy = "It is no review of gcemil; move it away and review the slide again."
    return [asdict(mark) for mark in read_record(path, Review, error=RunError, remedy=remedy).marks]


def agreements(session: ViewerSession) -> dict[str, Any]:
    """Every reviewed slide of the fold, and all together."""
    found = {slide_id: counted(read_marks(session, slide_id)) for slide_id in session.specs}
    reviewed = {slide_id: one for slide_id, one in found.items() if one.n_marks}
    return {
        "total": sum(reviewed.values(), Agreement()).to_json(),
        "slides": {slide_id: one.to_json() for slide_id, one in reviewed.items()},
    }


def counted(marks: Sequence[dict[str, Any]]) -> Agreement:
    pairs = [(entry["mark"], bool(entry["in_evidence"])) for entry in marks]
    return Agreement(
        accepted_evidence=pairs.count((ACCEPT, True)),
        rejected_evidence=pairs.count((REJECT, True)),
        accepted_others=pairs.count((ACCEPT, False)),
        rejected_others=pairs.count((REJECT, False)),
    )


def _patches(given: Any, name: str, n_patches: int) -> list[int]:
    patches = given.get(name) if isinstance(given, dict) else None
    if not isinstance(patches, list) or not all(type(one) is int and 0 <= one < n_patches for one in patches):
        raise UsageError(f"'{name}' of a review is a list of patches from 0 to {n_patches - 1}.")
    return sorted(set(patches))
