"""Whether a run has seen a slide: its part in every fold, from what the run itself keeps.

new      the slide is not of the run's cohort
test     the fold never saw it
val      the fold chose its epoch by it
train    the fold was trained on it
unknown  the folder does not say which slides it was trained on, as that of an exported model

A slide is known by its id, and a feature file of another name by its content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gcemil.bags.fingerprint import content_hash
from gcemil.bags.tables import read_table
from gcemil.files import is_file
from gcemil.runs.folder import Run, RunFold

SlidePart = Literal["new", "test", "val", "train", "unknown"]
_WORST_LAST: tuple[SlidePart, ...] = ("unknown", "new", "test", "val", "train")


@dataclass(frozen=True)
class SeenSlides:
    """The slides that a run was made with."""

    features: Mapping[str, str] | None = None
    """Slide → hash of its features; None where the run does not say."""
    judged: Mapping[Path, Mapping[str, str]] = field(default_factory=dict)
    """Folder of a fold → the slides it validated and tested on, with their part."""

    @classmethod
    def of_run(cls, run: Run, folds: Sequence[RunFold]) -> SeenSlides:
        """The slides of these folds."""
        finished = [fold for fold in folds if fold.is_finished]
        if not run.is_begun or not is_file(run.cohort_record) or len(finished) < len(folds):
            return cls()
        judged = {fold.path: _read_judged(fold) for fold in finished}
        return cls(run.training_cohort.parts["features"], judged)

    def find_slide(self, slide_id: str, path: Path) -> str | None:
        """The slide of the cohort that this file is; None where it is none of them."""
        known = self.features or {}
        # Slides are too large to be hashed whole.
        if slide_id in known or path.suffix.lower() not in (".h5", ".hdf5"):
            return slide_id if slide_id in known else None
        digest = content_hash(path)
        return next((name for name, own in known.items() if own == digest), None)

    def part(self, fold: Path, slide_id: str | None) -> SlidePart:
        """The part of the slide in this fold."""
        if self.features is None:
            return "unknown"
        if slide_id is None:
            return "new"
        part = self.judged[fold].get(slide_id)
        return "test" if part == "test" else "val" if part == "val" else "train"

    def least_seen(
        self, folds: Sequence[Path], slide_id: str, path: Path
    ) -> tuple[SlidePart, list[Path]]:
        """The folds that saw least of the slide, and its part in them."""
        known = self.find_slide(slide_id, path)
        parts = {fold: self.part(fold, known) for fold in folds}
        best = min(parts.values(), key=_WORST_LAST.index)
        return best, [fold for fold in folds if parts[fold] == best]


def _read_judged(fold: RunFold) -> dict[str, str]:
    """The slides of predictions.csv with their part; those of a case share a line."""
    # The main prediction, whichever it is, names every slide.
    rows = read_table(fold.predictions("full", ("full",)), ("slide_id", "split"))
    return {slide_id: row["split"] for row in rows for slide_id in row["slide_id"].split("|")}
