"""A trained fold whose selector is to be imitated: its model, its bags, and the slide files they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.tables import file_fingerprint
from gcemil.errors import UsageError
from gcemil.features.origin import FeatureOrigin, encoded_grid, one_origin
from gcemil.features.prefilter import PrefilterSettings
from gcemil.features.prefilter_view import Crops, low_view, patch_crops
from gcemil.model import GceMil
from gcemil.runs.folder import FoldParts, create_task, fold_parts, open_cohort
from gcemil.runs.network import load_network
from gcemil.runs.records import read_metrics
from gcemil.slides.reader import open_slide
from gcemil.tasks.task import Task


@dataclass(frozen=True, eq=False)
class TaughtFold:
    """A trained fold whose selector is to be imitated, and the slide files of its bags."""

    folder: Path
    cohort: Cohort
    parts: FoldParts
    task: Task
    model: GceMil
    slides: Mapping[str, Path]
    origin: FeatureOrigin
    risk_deviation: float

    def crops(self, slide_id: str, settings: PrefilterSettings) -> Crops:
        """The low-magnification view around every patch of a slide, in the order of its features."""
        grid = encoded_grid(self.cohort.feature_file(slide_id))
        # The pixel size that placed the patches, not the one the file may state.
        with open_slide(self.slides[slide_id], mpp=grid.mpp) as slide:
            return patch_crops(low_view(slide, settings.view_mpp), grid, settings.crop_px(grid.settings))


def opened_fold(run: Path, fold: int, slides: Mapping[str, Path]) -> TaughtFold:
    """The fold, its selector and its slide files; everything that is missing is told before anything is read."""
    card, cohort = open_cohort(run)
    folder = run / f"fold_{fold}"
    model = load_network(folder / "checkpoint.safetensors")[0].model
    if model is None:
        raise UsageError(f"{run} is a plain host: it has no selector to imitate. Train with --gce.")
    parts = fold_parts(cohort, read_fold(cohort, fold))
    needed = [slide_id for spec in (*parts.train, *parts.val) for slide_id in spec.slide_ids]
    origin = one_origin(cohort.feature_file(slide_id) for slide_id in needed)
    refuse_missing(needed, slides, cohort)
    return TaughtFold(
        folder,
        cohort,
        parts,
        create_task(cohort, card.settings),
        model,
        slides,
        origin,
        risk_deviation(folder),
    )


def refuse_missing(needed: Sequence[str], slides: Mapping[str, Path], cohort: Cohort) -> None:
    """Every slide needs its file, and the very file that was patched."""
    if missing := [slide_id for slide_id in needed if slide_id not in slides]:
        raise UsageError(
            f"{len(missing)} of {len(needed)} training and validation slides have no file, the first is '{missing[0]}'. "
            "Give the folder that 'gcemil encode' was given."
        )
    for slide_id in needed:
        stated = store.attributes(cohort.feature_file(slide_id), "coords").get("slide_fingerprint")
        if stated is not None and stated != file_fingerprint(slides[slide_id]):
            raise UsageError(
                f"{slides[slide_id]} is not the file that {cohort.feature_file(slide_id)} was made from. Give the same slides."
            )


def risk_deviation(folder: Path) -> float:
    """Deviation of the training risks as training wrote it; 1 for classification."""
    return read_metrics(folder).details.risk_deviation
