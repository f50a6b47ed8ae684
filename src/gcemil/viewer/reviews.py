"""Marks of a reviewer on patches, and how far they agree with the evidence.

RUN/fold_<k>/reviews/<slide>.json holds every mark, and whether the patch was evidence at that time.
A file that is not a review is named and left alone: the slide is shown without marks, and none are
saved over it. Agreement and kappa are counted as in `gcemil review`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcemil.diagnostics.agreement import ACCEPT, NEGATIVE, POSITIVE, REJECT, Agreement
from gcemil.diagnostics.review import REMEDY, SavedReview, check_saved, judge_slide, list_marks
from gcemil.errors import GcemilError, InputError, RunError, UsageError
from gcemil.files import read_record, write_json
from gcemil.slides.geojson import parse_objects
from gcemil.viewer.session import OpenedSlide, ViewerSession


def save_review(session: ViewerSession, slide: OpenedSlide, content: Any) -> Agreement:
    """Write the marks of one slide; patches count from the slide's first row."""
    n_patches = len(slide.coords)
    accepted, rejected = (
        _read_patches(content, name, n_patches) for name in ("accepted", "rejected")
    )
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
    # Marks that cannot be read may be the work of a reviewer.
    read_marks(session, slide.slide_id, n_patches=n_patches)
    write_json(_review_file(session, slide.slide_id), review)
    return count_marks(marks)


def import_marks(session: ViewerSession, slide: OpenedSlide, content: Any) -> dict[str, Any]:
    """Add the marks of a GeoJSON file of QuPath; they replace earlier ones on the same patch."""
    try:
        objects = parse_objects(content, "The file")
        verdicts, notes = judge_slide(session.fold.cohort, slide.slide_id, objects, "The file")
    except InputError as error:
        raise UsageError(str(error)) from error
    saved = read_marks(session, slide.slide_id, n_patches=len(slide.coords))
    marks = {mark["patch"]: mark["mark"] for mark in saved}
    for verdict, kind in ((POSITIVE, ACCEPT), (NEGATIVE, REJECT)):
        marks |= dict.fromkeys(np.flatnonzero(verdicts == verdict).tolist(), kind)
    chosen = {
        name: [patch for patch, mark in marks.items() if mark == kind]
        for name, kind in (("accepted", ACCEPT), ("rejected", REJECT))
    }
    save_review(session, slide, chosen)
    return {**chosen, "n_imported": int(np.count_nonzero(verdicts)), "notes": notes}


def _review_file(session: ViewerSession, slide_id: str) -> Path:
    return session.folder / "reviews" / f"{slide_id}.json"


def read_marks(
    session: ViewerSession, slide_id: str, *, n_patches: int | None = None
) -> list[dict[str, Any]]:
    """The marks of one slide, of as many patches as it has; none where it was not reviewed."""
    path = _review_file(session, slide_id)
    if not path.exists():
        return []
    review = read_record(path, SavedReview, error=RunError, remedy=REMEDY)
    check_saved(review, n_patches, path)
    return list_marks(review)


def describe_marks(session: ViewerSession, slide: OpenedSlide) -> dict[str, Any]:
    """The marks to be drawn, or why there are none."""
    try:
        marks = read_marks(session, slide.slide_id, n_patches=len(slide.coords))
        return {"marks": marks, "marks_problem": None}
    except GcemilError as error:
        return {"marks": [], "marks_problem": str(error)}


def agreements(session: ViewerSession) -> dict[str, Any]:
    """Every reviewed slide of the fold, all together, and which reviews cannot be read."""
    counts: dict[str, Agreement] = {}
    problems: list[str] = []
    for slide_id in session.specs:
        try:
            counts[slide_id] = count_marks(read_marks(session, slide_id))
        except GcemilError as error:
            problems.append(str(error))
    reviewed = {slide_id: count for slide_id, count in counts.items() if count.n_marks}
    return {
        "total": sum(reviewed.values(), Agreement()).to_json(),
        "slides": {slide_id: count.to_json() for slide_id, count in reviewed.items()},
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


def _read_patches(content: Any, name: str, n_patches: int) -> list[int]:
    patches = content.get(name) if isinstance(content, dict) else None
    if not isinstance(patches, list) or not all(
        type(patch) is int and 0 <= patch < n_patches for patch in patches
    ):
        raise UsageError(f"'{name}' of a review is a list of patches from 0 to {n_patches - 1}.")
    return sorted(set(patches))
