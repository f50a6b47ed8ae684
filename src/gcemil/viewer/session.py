"""A run opened for looking: one fold, its test slides, its network; every slide embedded once.

A slide belongs to a bag. Where a case has several slides they are one bag: the page shows one slide at a time, and
predictions are those of the case.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int

from gcemil.bags.cohort import BagSpec
from gcemil.diagnostics.snr import Tolerances
from gcemil.diagnostics.trained_fold import FoldBag, TrainedFold
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
from gcemil.shapes import Logits, Scores, Selected
from gcemil.viewer.tiles import GridTiles, ThumbnailTiles, Tiles, open_slide_tiles

OPEN_SLIDES, OPEN_PATCHES = 3, 150_000
"""Bags kept in memory, embedded, and the patches they may hold together; the one opened longest ago goes first."""
CACHED_TILES = 512
CACHED_ANSWERS = 256
"""Subsets whose prediction is cached: a removal repeats what its certificate computed, an undo what came before."""
UNKNOWN_PATCH = 256
"""Side of a drawn patch whose size nothing states."""


@dataclass(frozen=True, eq=False)
class OpenedSlide:
    """One slide and its embedded bag."""

    slide_id: str
    fold: TrainedFold
    bench: FoldBag
    full: HostOutput
    """X."""
    gated: Logits | None
    """Logits of X_pi; None without the wrapper."""
    chosen: Selected
    """Over the bag: the recovered evidence, or the patches of highest attention where there is no wrapper."""
    evidence: SlideEvidence | None
    has_coords: bool
    coords: Int[np.ndarray, "n 2"]
    patch_size: int
    tiles: Tiles
    note: str | None
    mpp: float | None
    """Micrometres per level-0 pixel; None where no file states it."""

    @property
    def rows(self) -> slice:
        """Where the slide lies in its bag."""
        return self.bench.bag.rows_of(self.slide_id)

    @property
    def rule(self) -> str:
        """What chose the patches."""
        return EVIDENCE_RULE if self.evidence is not None else "attention top-k"

    @cached_property
    def model_warning(self) -> str | None:
        """Why evidence of the run is not certified."""
        return Run(self.fold.run).model_warning

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; those of a risk are not asked for."""
        return tuple(name.removeprefix("prob_") for name in self.fold.task.prediction_names)

    @cached_property
    def class_support(self) -> list[Scores]:
        """How much each patch of the bag speaks for each class, as far as the host can say."""
        return self.bench.predict("wrapped").class_support

    @cached_property
    def tile(self) -> Callable[[int, int, int], bytes]:
        """Tiles, the last ones remembered."""
        return lru_cache(CACHED_TILES)(self.tiles.tile)

    @cached_property
    def _pool(self) -> Callable[[bytes], Logits]:
        @lru_cache(CACHED_ANSWERS)
        def pool(mask: bytes) -> Logits:
            selected = torch.from_numpy(np.frombuffer(mask, dtype=bool).copy())
            return self.bench.view.interventions.kept(selected).logits

        return pool

    def kept(self, selected: Selected) -> Logits | None:
        """The host on these patches of the bag alone; None when there are none."""
        if not bool(selected.any()):
            return None
        return self.full.logits if bool(selected.all()) else self._pool(selected.numpy().tobytes())

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Fingerprints of network and features."""
        return hash_inputs(self.fold, self.slide_id)


class ViewerSession:
    """One fold of a run while somebody looks at it."""

    def __init__(
        self, fold: TrainedFold, *, tolerances: Tolerances | None = None, slides: Path | None = None
    ) -> None:
        self.fold = fold
        self._slide_files = {} if slides is None else find_slides([slides])
        self.tolerances = tolerances or Tolerances()
        self.specs: dict[str, BagSpec] = {
            slide_id: spec for spec in fold.specs("test") for slide_id in spec.slide_ids
        }
        self.opened: dict[str, OpenedSlide] = {}
        """Slides in memory; read on any thread, changed by `slide` alone."""
        # Requests come on several threads; the network answers them one after the other on its own.
        self.network = ThreadPoolExecutor(1, thread_name_prefix="network")

    @classmethod
    def open(
        cls,
        run: Path,
        fold: int | None = None,
        *,
        tolerances: Tolerances | None = None,
        slides: Path | None = None,
        device: str = "cpu",
    ) -> ViewerSession:
        """Open this fold, or the first that is trained; `slides` is a folder of slide files."""
        opened = TrainedFold.open(run, list_trained_folds(run, fold)[0], device=device)
        session = cls(opened, tolerances=tolerances, slides=slides)
        if slides is not None and not session.specs.keys() & session._slide_files.keys():
            raise UsageError(
                f"{slides} holds none of the {len(session.specs)} test slides, such as "
                f"'{next(iter(session.specs))}'. A slide file is named <slide id>.svs, .tif, .ndpi or the like."
            )
        return session

    def slide_file(self, slide_id: str) -> Path | None:
        """The slide itself: in the folder that was named, or beside the features."""
        return self._slide_files.get(slide_id) or self.fold.cohort.slide_file(slide_id)

    @property
    def folder(self) -> Path:
        """The folder of the fold."""
        return Run(self.fold.run).fold(self.fold.fold).path

    def slide(self, slide_id: str) -> OpenedSlide:
        """The slide, opened once and kept for a while."""
        if slide_id not in self.specs:
            raise UsageError(f"Fold {self.fold.fold} of this run tests no slide '{slide_id}'.")
        if slide_id not in self.opened:
            spec = self.specs[slide_id]
            # First, so that two large slides are never in memory together.
            self._make_room(len(self.fold.cohort.layout(spec)))
            self.opened[slide_id] = _open_slide(
                self.fold, spec, slide_id, self.slide_file(slide_id)
            )
        return self.opened[slide_id]

    def _make_room(self, n_patches: int) -> None:
        """Let go of the slides opened longest ago, until one with so many patches may be opened."""
        while self.opened and (
            len(self.opened) >= OPEN_SLIDES
            or sum(len(slide.bench) for slide in self.opened.values()) + n_patches > OPEN_PATCHES
        ):
            self.opened.pop(next(iter(self.opened))).tiles.close()

    def close(self) -> None:
        """Close every slide."""
        while self.opened:
            self.opened.popitem()[1].tiles.close()


def _open_slide(
    fold: TrainedFold, spec: BagSpec, slide_id: str, slide_file: Path | None
) -> OpenedSlide:
    """The bag through the network once, and the pictures of the slide."""
    bench = FoldBag(spec, fold.cohort.read_bag(spec), fold)
    evidence, gated = None, None
    if fold.model is not None and (explanation := bench.explanation) is not None:
        full, chosen = explanation.output.answer, explanation.recovery.selected
        gated = bench.view.interventions.gated(explanation.output.log_gates).logits
        records = slide_evidence(fold.model, bench.bag, explanation)
        evidence = next(record for record in records if record.slide_id == slide_id)
    else:
        full = bench.view.full
        chosen = top_k(full.scores, subset_size(len(bench), fold.own_budget))
    rows = bench.bag.rows_of(slide_id)
    level0 = bench.bag.slide_coords(slide_id)
    tiles: Tiles | None = None
    if level0 is None:
        coords, size = place_in_square(rows.stop - rows.start), None
        note: str | None = (
            "The slide has no coordinates: its patches are shown in the order of its feature file."
        )
    else:
        coords = level0.astype(np.int64)
        size = fold.cohort.slide_patch_size(slide_id, coords)
        tiles, note = open_slide_tiles(slide_file)
        if (
            tiles is None
            and (thumbnail := read_own_thumbnail(fold.cohort.folder, slide_id)) is not None
        ):
            tiles = ThumbnailTiles(thumbnail)
            note = "The small picture of the slide is shown: no slide file is known."
    tiles = tiles or GridTiles(coords, size or UNKNOWN_PATCH)
    return OpenedSlide(
        slide_id=slide_id,
        fold=fold,
        bench=bench,
        full=full,
        gated=gated,
        chosen=chosen,
        evidence=evidence,
        has_coords=level0 is not None,
        coords=coords,
        patch_size=size or UNKNOWN_PATCH,
        tiles=tiles,
        note=note,
        mpp=None if level0 is None else read_cohort_place(fold.cohort, slide_id).mpp,
    )


def place_in_square(n_patches: int) -> Int[np.ndarray, "n 2"]:
    """A square in the order of the file, for patches that lie nowhere."""
    side = max(1, round(n_patches**0.5))
    index = np.arange(n_patches, dtype=np.int64)
    return np.stack((index % side, index // side), axis=1) * UNKNOWN_PATCH
