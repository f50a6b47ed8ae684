"""Predictions straight from slide files: tissue, patches, features and evidence in one go.

full, soft, discrete   every patch is encoded
prefilter              per fold, the patches its student keeps; encoded is the union over the folds. When every fold certifies its
                       answer, the prediction is the mean of the folds' answers from evidence among their kept patches. Otherwise
                       the remaining patches are encoded too, and the prediction is that of the whole bag.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from gcemil.bags.bag import Bag, slide_bag
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.foreign.source import plain_id
from gcemil.config import Precision
from gcemil.errors import InputError, RunError, UsageError
from gcemil.explanation import slide_evidence
from gcemil.features.encoders import PatchEncoder
from gcemil.features.extract import (
    EncodeSettings,
    FeatureOrigin,
    encode_patches,
    load_matching_encoder,
    read_feature_origin,
)
from gcemil.features.loaders import WeightSource
from gcemil.model import GceMil
from gcemil.prefilter.certificate import KeptAnswer, answer_from_kept
from gcemil.prefilter.student import (
    PREFILTER_FILE,
    FittedPrefilter,
    LowView,
    cut_crops,
    keep_rows,
    load_prefilter,
    read_view,
    score_crops,
)
from gcemil.runs.folder import Run
from gcemil.runs.predict import (
    FoldModel,
    Mode,
    SlidePrediction,
    average_folds,
    load_fold_models,
    predict_new_bag,
)
from gcemil.slides.grid import PatchGrid, patch_grid
from gcemil.slides.reader import ANY_EXTENSIONS, SlideReader, name_slide, open_slide
from gcemil.slides.tissue import find_tissue
from gcemil.units import LevelZeroPx

FileMode = Literal["full", "gce", "soft", "discrete", "prefilter"]


@dataclass(eq=False)
class PatchSource:
    """The patches of an open slide, encoded on first use."""

    slide: SlideReader
    grid: PatchGrid
    encoder: PatchEncoder
    settings: EncodeSettings
    _features: Float[np.ndarray, "n d"] = field(init=False)
    _known: Bool[np.ndarray, "n"] = field(init=False)

    def __post_init__(self) -> None:
        self._features = np.zeros((len(self.grid), self.encoder.spec.dim), self.settings.dtype)
        self._known = np.zeros(len(self.grid), dtype=bool)

    @property
    def n_encoded(self) -> int:
        """Patches that went through the encoder so far."""
        return int(self._known.sum())

    def encode(self, rows: Int[np.ndarray, "k"]) -> None:
        """Make the features of these patches that are not there yet."""
        missing = rows[~self._known[rows]]
        if len(missing):
            self._features[missing] = encode_patches(
                self.slide, self.grid, self.encoder, self.settings, rows=missing
            )
            self._known[missing] = True

    def bag(self, slide_id: str) -> Bag:
        """All patches; those not yet encoded have features of 0, and the caller must leave them out."""
        return slide_bag(
            slide_id,
            self._features,
            self.grid.coords,
            LevelZeroPx(int(self.grid.patch_size_level0)),
        )


@dataclass(eq=False)
class Stopwatch:
    """Seconds by part of the work."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to one part of the work."""
        before = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - before


@dataclass(frozen=True, eq=False)
class SlideFilePrediction(SlidePrediction):
    """The prediction for a slide file, and its cost; the evidence is over the patches encoded for the first fold."""

    rows: Int[np.ndarray, "_"]
    """The patches of `evidence`, as rows of the slide's grid."""
    n_patches: int
    n_encoded: int
    certified: bool | None
    """Whether the kept patches sufficed; None where nothing was filtered."""
    seconds: dict[str, float]
    bag: Bag | None = None
    """All patches, where all were encoded."""

    @property
    def evidence_rows(self) -> list[int]:
        """The evidence, as rows of the slide's grid."""
        return [] if self.evidence is None else self.rows[self.evidence.indices].tolist()


@dataclass(frozen=True, eq=False)
class SlidePredictor:
    """A run ready for slide files: its folds, and the encoder that made its features."""

    folds: tuple[FoldModel, ...]
    origin: FeatureOrigin
    encoder: PatchEncoder
    mode: FileMode
    prefilters: tuple[FittedPrefilter, ...] = ()
    """One for every fold in the mode of that name."""
    batch_size: int = 32

    @classmethod
    def open(
        cls,
        run: Path,
        *,
        mode: FileMode,
        fold: int | None = None,
        source: WeightSource | None = None,
        encoder: PatchEncoder | None = None,
        folds: tuple[FoldModel, ...] | None = None,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> SlidePredictor:
        """Everything is checked before the first slide; an encoder and folds already loaded may be handed in."""
        folds = folds or load_fold_models(
            run, folds=None if fold is None else (fold,), needs_evidence=mode != "full"
        )
        fitted = (
            tuple(_load_fold_prefilter(run, model) for model in folds)
            if mode == "prefilter"
            else ()
        )
        origin = fitted[0].origin if fitted else read_run_origin(run)
        if any(prefilter.origin != origin for prefilter in fitted):
            raise RunError(
                f"The folds of {run} have prefilters of different encoders. Fit them again with 'gcemil prefilter'."
            )
        ready = encoder or load_matching_encoder(
            origin, source=source, device=device, precision=precision
        )
        if ready.fingerprint != origin.fingerprint:
            raise UsageError(
                f"The encoder '{ready.name}' is not the one that made the features of {run}, '{origin.encoder}'."
            )
        return cls(folds, origin, ready, mode, fitted)

    def use_folds(self, folds: tuple[FoldModel, ...]) -> SlidePredictor:
        """The same with some of its folds."""
        fitted = tuple(
            own
            for one, own in zip(self.folds, self.prefilters, strict=bool(self.prefilters))
            if one in folds
        )
        return replace(self, folds=folds, prefilters=fitted)

    @torch.no_grad()
    def predict(self, path: Path, *, mpp: float | None = None) -> SlideFilePrediction:
        """One slide file; `mpp` serves where it does not state its pixel size."""
        watch, slide_id = Stopwatch(), plain_id(name_slide(path))
        with open_slide(path, fallback_mpp=mpp) as slide:
            with watch.part("tissue"):
                grid = patch_grid(slide, find_tissue(slide), self.origin.patches)
            if len(grid) == 0:
                raise InputError(
                    f"{path}: no patch with enough tissue was found. Look at the contact sheets of 'gcemil encode --patches-only'."
                )
            source = PatchSource(
                slide,
                grid,
                self.encoder,
                EncodeSettings(batch_size=self.batch_size, dtype=self.origin.dtype),
            )
            if self.mode == "prefilter":
                return self._predict_kept(source, slide_id, watch)
            return self._predict_whole(source, slide_id, watch, self.mode, certified=None)

    def _predict_kept(
        self, source: PatchSource, slide_id: str, watch: Stopwatch
    ) -> SlideFilePrediction:
        with watch.part("prefilter"):
            kept = _keep_rows_of_folds(self.prefilters, source)
        with watch.part("encoding"):
            source.encode(np.unique(np.concatenate(kept)))
        bag = source.bag(slide_id)
        answers: list[KeptAnswer] = []
        with watch.part("prediction"):
            for fold, fitted, rows in zip(self.folds, self.prefilters, kept, strict=True):
                answer = answer_from_kept(
                    _wrapped_model(fold), bag, rows, deviation=fitted.risk_deviation
                )
                if not fitted.certifies(answer.doubt):
                    break
                answers.append(answer)
        if len(answers) < len(self.folds):
            return self._predict_whole(source, slide_id, watch, "full", certified=False)
        first = answers[0]
        evidence = slide_evidence(
            _wrapped_model(self.folds[0]), bag.take_rows(first.rows), first.explanation
        )[0]
        per_fold = [
            fold.values(answer.logits) for fold, answer in zip(self.folds, answers, strict=True)
        ]
        predicted = SlidePrediction(
            slide_id, average_folds(self.folds, per_fold), per_fold, evidence
        )
        return self._with_cost(predicted, first.rows, source, watch, certified=True)

    def _predict_whole(
        self,
        source: PatchSource,
        slide_id: str,
        watch: Stopwatch,
        mode: Mode,
        *,
        certified: bool | None,
    ) -> SlideFilePrediction:
        everyone = np.arange(len(source.grid))
        with watch.part("encoding"):
            source.encode(everyone)
        bag = source.bag(slide_id)
        with watch.part("prediction"):
            predicted = predict_new_bag(self.folds, bag, mode)
        return self._with_cost(predicted, everyone, source, watch, certified=certified)

    def _with_cost(
        self,
        predicted: SlidePrediction,
        rows: Int[np.ndarray, "_"],
        source: PatchSource,
        watch: Stopwatch,
        *,
        certified: bool | None,
    ) -> SlideFilePrediction:
        return SlideFilePrediction(
            **vars(predicted),
            rows=rows,
            n_patches=len(source.grid),
            n_encoded=source.n_encoded,
            certified=certified,
            seconds=watch.seconds,
            bag=source.bag(predicted.slide_id) if source.n_encoded == len(source.grid) else None,
        )


def is_slide_file(path: Path) -> bool:
    """Whether a path names a slide rather than features."""
    return path.name.lower().endswith(ANY_EXTENSIONS)


def read_run_origin(run: Path) -> FeatureOrigin:
    """How the features were made that a run was trained on."""
    _, cohort = Run(run).open_cohort()
    return read_feature_origin(cohort.feature_file(cohort.slides[0].slide_id))


def _load_fold_prefilter(run: Path, one: FoldModel) -> FittedPrefilter:
    """The prefilter of a fold, which must have been distilled from this very model."""
    path = one.folder / PREFILTER_FILE
    fitted = load_prefilter(path)
    if fitted.model_hash != content_hash(one.checkpoint):
        raise RunError(
            f"{path} was distilled from another model than {one.checkpoint}. Fit it again with 'gcemil prefilter {run} SLIDES'."
        )
    return fitted


def _wrapped_model(fold: FoldModel) -> GceMil:
    """The wrapper of a fold; plain hosts were refused when the run was opened."""
    model: GceMil = fold.loaded.model  # type: ignore[assignment]
    return model


def _keep_rows_of_folds(
    prefilters: Sequence[FittedPrefilter], source: PatchSource
) -> list[Int[np.ndarray, "_"]]:
    """The rows that each fold's student keeps; folds that see alike share one view of the slide."""
    views: dict[float, LowView] = {}
    kept = []
    for fitted in prefilters:
        mpp = fitted.settings.view_mpp
        if mpp not in views:
            views[mpp] = read_view(source.slide, mpp)
        crops = cut_crops(views[mpp], source.grid, fitted.settings.crop_px(source.grid.settings))
        kept.append(keep_rows(score_crops(fitted.student, crops), fitted.keep_rate))
    return kept
