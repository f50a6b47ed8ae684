"""One fold of a run, its test slides and its network; every slide is embedded once.

A slide belongs to a bag. If a case has several slides they are one bag: the page shows one slide at
a time, and predictions are those of the case.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Int

from gcemil.bags.cohort import BagSpec
from gcemil.diagnostics.snr import Tolerances
from gcemil.diagnostics.trained_fold import FoldBag, PredictedBag, TrainedFold
from gcemil.errors import UsageError
from gcemil.explanation import slide_evidence
from gcemil.exports.explain import EVIDENCE_RULE
from gcemil.exports.explain_cohort import hash_inputs, list_trained_folds
from gcemil.exports.overlay import read_cohort_place, read_own_thumbnail
from gcemil.features.patching import find_slides
from gcemil.hosts.host import HostOutput
from gcemil.records import SlideEvidence
from gcemil.recovery import subset_size, top_k
from gcemil.runs.folder import Run
from gcemil.shapes import Logits, Selected
from gcemil.viewer.tiles import GridTiles, ThumbnailTiles, Tiles, open_slide_tiles

OPEN_SLIDES, OPEN_PATCHES = 3, 150_000
"""Embedded bags kept in memory, and their patches together; the oldest one goes first."""
CACHED_TILES = 512
UNKNOWN_PATCH = 256
"""Side of a drawn patch whose size nothing states."""


@dataclass(frozen=True, eq=False)
class OpenedSlide:
    """One slide and its embedded bag."""

    slide_id: str
    fold: TrainedFold
    bench: FoldBag
    view: PredictedBag
    """The bag under the network of the run."""
    gated: Logits | None
    """Logits of X_pi; None without the wrapper."""
    chosen: Selected
    """Over the bag: the recovered evidence, or the most attended patches of a plain host."""
    evidence: SlideEvidence | None
    has_coords: bool
    coords: Int[np.ndarray, "n 2"]
    patch_size: int
    tiles: Tiles
    note: str | None
    mpp: float | None
    """Micrometres per level-0 pixel; None where no file states it."""

    @property
    def full(self) -> HostOutput:
        """X."""
        return self.view.full

    @property
    def rows(self) -> slice:
        """The rows of the slide in its bag."""
        return self.bench.bag.rows_of(self.slide_id)

    @property
    def rule(self) -> str:
        """What chose the patches."""
        return EVIDENCE_RULE if self.evidence is not None else "attention top-k"

    @cached_property
    def model_warning(self) -> str | None:
        """Why evidence of the run is not certified."""
        return Run(self.fold.run).model_warning

    @cached_property
    def tile(self) -> Callable[[int, int, int], bytes]:
        """Tiles, the last ones remembered."""
        return lru_cache(CACHED_TILES)(self.tiles.tile)

    def kept(self, selected: Selected) -> Logits | None:
        """The prediction from these patches of the bag alone; None when there are none."""
        return self.view.kept(selected) if bool(selected.any()) else None

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Fingerprints of network and features."""
        return hash_inputs(self.fold, self.slide_id)


class ViewerSession:
    """One fold of a run in the viewer: the named one, or the first that is trained."""

    def __init__(
        self,
        run: Path,
        fold: int | None = None,
        *,
        tolerances: Tolerances | None = None,
        slides: Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.fold = TrainedFold.open(run, list_trained_folds(run, fold)[0], device=device)
        self.folder = Run(run).fold(self.fold.fold).path
        self.tolerances = tolerances or Tolerances()
        self.specs: dict[str, BagSpec] = {
            slide_id: spec for spec in self.fold.specs("test") for slide_id in spec.slide_ids
        }
        self._slide_files = {} if slides is None else find_slides([slides])
        if slides is not None and not self.specs.keys() & self._slide_files.keys():
            raise UsageError(
                f"{slides} holds none of the {len(self.specs)} test slides, such as "
                f"'{next(iter(self.specs))}'. A slide file is named <slide id>.svs, .tif, .ndpi or "
                "the like."
            )
        self.opened: dict[str, OpenedSlide] = {}
        """Slides in memory; read on any thread, changed by `slide` alone."""
        # Requests come on several threads; the network computes on one, request by request.
        self.network = ThreadPoolExecutor(1, thread_name_prefix="network")

    def slide_file(self, slide_id: str) -> Path | None:
        """The slide file: in the folder that was named, or beside the features."""
        return self._slide_files.get(slide_id) or self.fold.cohort.slide_file(slide_id)

    def slide(self, slide_id: str) -> OpenedSlide:
        """The slide, opened once and kept for a while."""
        if slide_id not in self.specs:
            raise UsageError(f"Fold {self.fold.fold} of this run tests no slide '{slide_id}'.")
        if slide_id not in self.opened:
            spec = self.specs[slide_id]
            # First, so that two large slides are never in memory together.
            self._make_room(len(self.fold.cohort.layout(spec)))
            file = self.slide_file(slide_id)
            self.opened[slide_id] = _open_slide(self.fold, spec, slide_id, file)
        return self.opened[slide_id]

    def _make_room(self, n_patches: int) -> None:
        """Drop the slides opened longest ago, until one with so many patches may be opened."""
        while self.opened and (
            len(self.opened) >= OPEN_SLIDES
            or sum(len(slide.bench) for slide in self.opened.values()) + n_patches > OPEN_PATCHES
        ):
            self.opened.pop(next(iter(self.opened)))


def _open_slide(
    fold: TrainedFold, spec: BagSpec, slide_id: str, slide_file: Path | None
) -> OpenedSlide:
    """The bag through the network once, and the pictures of the slide."""
    bench = FoldBag(spec, fold.cohort.read_bag(spec), fold)
    evidence, gated, view = None, None, bench.predict("wrapped")
    if fold.model is not None and (explanation := bench.explanation) is not None:
        chosen = explanation.recovery.selected
        gated = bench.view.interventions.gated(explanation.output.log_gates).logits
        records = slide_evidence(fold.model, bench.bag, explanation)
        evidence = next(record for record in records if record.slide_id == slide_id)
    else:
        chosen = top_k(view.full.scores, subset_size(len(bench), fold.own_budget))
    level0 = bench.bag.slide_coords(slide_id)
    tiles: Tiles | None = None
    if level0 is None:
        rows = bench.bag.rows_of(slide_id)
        coords, size = place_in_square(rows.stop - rows.start), None
        note: str | None = (
            "The slide has no coordinates: its patches are shown in the order of its feature file."
        )
    else:
        coords = level0.astype(np.int64)
        size = fold.cohort.slide_patch_size(slide_id, coords)
        tiles, note = open_slide_tiles(slide_file)
        thumbnail = None if tiles else read_own_thumbnail(fold.cohort.folder, slide_id)
        if thumbnail is not None:
            tiles = ThumbnailTiles(thumbnail)
            note = "The small picture of the slide is shown: no slide file is known."
    return OpenedSlide(
        slide_id=slide_id,
        fold=fold,
        bench=bench,
        view=view,
        gated=gated,
        chosen=chosen,
        evidence=evidence,
        has_coords=level0 is not None,
        coords=coords,
        patch_size=size or UNKNOWN_PATCH,
        tiles=tiles or GridTiles(coords, size or UNKNOWN_PATCH),
        note=note,
        mpp=None if level0 is None else read_cohort_place(fold.cohort, slide_id).mpp,
    )


def place_in_square(n_patches: int) -> Int[np.ndarray, "n 2"]:
    """A square in the order of the file, for patches without coordinates."""
    side = max(1, round(n_patches**0.5))
    index = np.arange(n_patches, dtype=np.int64)
    return np.stack((index % side, index // side), axis=1) * UNKNOWN_PATCH
