"""What a person says of single patches, and how far that is what the evidence says.

RUN/fold_<k>/reviews/<slide>.json holds every mark beside whether the patch was evidence when it was marked. A file that
is no review is named and left alone: the slide is shown without marks, and none are saved over it.

  agreement   share of marks that repeat the evidence: accepted inside it, rejected outside it
  kappa       Cohen's: (agreement - chance) / (1 - chance); None while one of the two always says the same
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gcemil.errors import GcemilError, RunError, UsageError
from gcemil.files import read_record, write_json
from gcemil.viewer.security import inside
from gcemil.viewer.session import OpenedSlide, ViewerSession

ACCEPT, REJECT = "accept", "reject"
REMEDY = "It is no review of this slide; move it away and review the slide again."


@dataclass(frozen=True)
class Mark:
    """What a person said of one patch, and whether it was evidence then."""

    patch: int
    mark: Literal["accept", "reject"]
    in_evidence: bool


@dataclass(frozen=True)
class Review:
    """What reviews/<slide>.json says."""

    n_patches: int
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
        """Marks in all."""
        return sum(vars(self).values())

    @property
    def agreement(self) -> float | None:
        """Share of marks that agree with the evidence; None without marks."""
        return (self.accepted_evidence + self.rejected_others) / self.n_marks if self.n_marks else None

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa of marks and evidence; None where either has one kind only, which leaves nothing to agree on."""
        if self.agreement is None:
            return None
        accepted = (self.accepted_evidence + self.accepted_others) / self.n_marks
        evidence = (self.accepted_evidence + self.rejected_evidence) / self.n_marks
        if accepted in (0.0, 1.0) or evidence in (0.0, 1.0):
            return None
        chance = accepted * evidence + (1 - accepted) * (1 - evidence)
        return (self.agreement - chance) / (1 - chance)

    def to_json(self) -> dict[str, Any]:
        """Counts and agreement as plain values."""
        return {**asdict(self), "n_marks": self.n_marks, "agreement": self.agreement, "kappa": self.kappa}


def save_review(session: ViewerSession, slide: OpenedSlide, given: Any) -> Agreement:
    """Write the marks of one slide; patches count from the slide's first row."""
    n_patches = len(slide.coords)
    accepted, rejected = (_read_patches(given, name, n_patches) for name in ("accepted", "rejected"))
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
    # Marks that cannot be read may be somebody's work.
    read_marks(session, slide.slide_id, n_patches=n_patches)
    write_json(review_file(session, slide.slide_id), review)
    return count_marks(marks)


def review_file(session: ViewerSession, slide_id: str) -> Path:
    """Where the marks of a slide are saved."""
    return inside(inside(session.folder, "reviews"), f"{slide_id}.json")


def read_marks(
    session: ViewerSession, slide_id: str, *, n_patches: int | None = None
) -> list[dict[str, Any]]:
    """The marks of one slide, of as many patches as it has; none where it was not reviewed."""
    path = review_file(session, slide_id)
    if not _is_there(path):
        return []
    review = read_record(path, Review, error=RunError, remedy=REMEDY)
    if n_patches not in (None, review.n_patches):
        raise RunError(f"{path} is of {review.n_patches} patches, and the slide has {n_patches}. {REMEDY}")
    wrong = [mark.patch for mark in review.marks if not 0 <= mark.patch < review.n_patches]
    if wrong:
        raise RunError(f"{path} marks patch {wrong[0]} of {review.n_patches}. {REMEDY}")
    return [asdict(mark) for mark in review.marks]


def describe_marks(session: ViewerSession, slide: OpenedSlide) -> dict[str, Any]:
    """The marks to be drawn, or why there are none."""
    try:
        return {
            "marks": read_marks(session, slide.slide_id, n_patches=len(slide.coords)),
            "marks_problem": None,
        }
    except GcemilError as error:
        return {"marks": [], "marks_problem": str(error)}


def agreements(session: ViewerSession) -> dict[str, Any]:
    """Every reviewed slide of the fold, all together, and which reviews cannot be read."""
    found: dict[str, Agreement] = {}
    problems: list[str] = []
    for slide_id in session.specs:
        try:
            found[slide_id] = count_marks(read_marks(session, slide_id))
        except GcemilError as error:
            problems.append(str(error))
    reviewed = {slide_id: one for slide_id, one in found.items() if one.n_marks}
    return {
        "total": sum(reviewed.values(), Agreement()).to_json(),
        "slides": {slide_id: one.to_json() for slide_id, one in reviewed.items()},
        "problems": problems,
    }


def count_marks(marks: Sequence[dict[str, Any]]) -> Agreement:
    """How many marks accept and reject evidence and other patches."""
    pairs = [(entry["mark"], bool(entry["in_evidence"])) for entry in marks]
    return Agreement(
        accepted_evidence=pairs.count((ACCEPT, True)),
        rejected_evidence=pairs.count((REJECT, True)),
        accepted_others=pairs.count((ACCEPT, False)),
        rejected_others=pairs.count((REJECT, False)),
    )


def _is_there(path: Path) -> bool:
    """Also a folder or a pipe, which is then said to be no review."""
    try:
        return path.exists()
    except OSError:
        return False  # A name too long to exist.


def _read_patches(given: Any, name: str, n_patches: int) -> list[int]:
    patches = given.get(name) if isinstance(given, dict) else None
    if not isinstance(patches, list) or not all(type(one) is int and 0 <= one < n_patches for one in patches):
        raise UsageError(f"'{name}' of a review is a list of patches from 0 to {n_patches - 1}.")
    return sorted(set(patches))
