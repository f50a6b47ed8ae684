"""Predictions straight from slide files: tissue, patches, features and evidence in one pass.

full, gce, soft, discrete   every patch is encoded
prefilter                   the union over the folds of the patches that their students keep is
                            encoded. When every fold certifies its prediction, the result is the
                            mean over the folds of the prediction from the evidence among their kept
                            patches. Otherwise the remaining patches are encoded too, and the result
                            is the main prediction of the run on the whole bag.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int

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
from gcemil.runs.folder import Run, main_mode
from gcemil.runs.predict import (
    FoldModel,
    SlidePrediction,
    available_modes,
    average_folds,
    load_fold_models,
    predict_new_bag,
)
from gcemil.slides.grid import PatchGrid, patch_grid
from gcemil.slides.reader import ANY_EXTENSIONS, SlideReader, name_slide, open_slide
from gcemil.slides.tissue import find_tissue
from gcemil.units import LevelZeroPx

FileMode = Literal["full", "gce", "soft", "discrete", "prefilter"]


class PatchSource:
    """The patches of an open slide, encoded on first use."""

    def __init__(
        self, slide: SlideReader, grid: PatchGrid, encoder: PatchEncoder, settings: EncodeSettings
    ) -> None:
        self.slide, self.grid, self.encoder, self.settings = slide, grid, encoder, settings
        self._features = np.zeros((len(grid), encoder.spec.dim), settings.dtype)
        self.is_encoded = np.zeros(len(grid), dtype=bool)

    def encode(self, rows: Int[np.ndarray, "k"]) -> None:
        """Make the features of these patches that are not there yet."""
        missing = rows[~self.is_encoded[rows]]
        if len(missing):
            self._features[missing] = encode_patches(
                self.slide, self.grid, self.encoder, self.settings, rows=missing
            )
            self.is_encoded[missing] = True

    def bag(self, slide_id: str) -> Bag:
        """All patches; those not yet encoded have features of 0."""
        side = LevelZeroPx(int(self.grid.patch_size_level0))
        return slide_bag(slide_id, self._features, self.grid.coords, side)


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the time of the block to one part of the work."""
    before = time.perf_counter()
    yield
    seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - before


@dataclass(frozen=True, eq=False)
class SlideFilePrediction(SlidePrediction):
    """The prediction for a slide file, and its cost."""

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
        """Check everything before the first slide; a loaded encoder and folds may be handed in."""
        folds = folds or load_fold_models(
            run, folds=None if fold is None else (fold,), needs_evidence=mode != "full"
        )
        filtered = folds if mode == "prefilter" else ()
        fitted = tuple(_load_fold_prefilter(run, model) for model in filtered)
        origin = fitted[0].origin if fitted else read_run_origin(run)
        if any(prefilter.origin != origin for prefilter in fitted):
            raise RunError(
                f"The folds of {run} have prefilters of different encoders. "
                "Fit them again with 'gcemil prefilter'."
            )
        ready = encoder or load_matching_encoder(
            origin, source=source, device=device, precision=precision
        )
        if ready.fingerprint != origin.fingerprint:
            raise UsageError(
                f"The encoder '{ready.name}' is not the one that made the features of {run}, "
                f"'{origin.encoder}'."
            )
        return cls(folds, origin, ready, mode, fitted)

    def use_folds(self, folds: tuple[FoldModel, ...]) -> SlidePredictor:
        """The same with some of its folds."""
        pairs = zip(self.folds, self.prefilters, strict=bool(self.prefilters))
        return replace(
            self, folds=folds, prefilters=tuple(own for one, own in pairs if one in folds)
        )

    @property
    def main_mode(self) -> Literal["full", "gce"]:
        """The mode of the main prediction, which a certificate compares with the kept patches."""
        modes = available_modes(self.folds[0].loaded.network)
        return "gce" if main_mode(modes) == "gce" else "full"

    @torch.no_grad()
    def predict(self, path: Path, *, mpp: float | None = None) -> SlideFilePrediction:
        """One slide file; `mpp` serves where it does not state its pixel size."""
        slide_id = plain_id(name_slide(path))
        seconds: dict[str, float] = {}
        with open_slide(path, fallback_mpp=mpp) as slide:
            with _timed(seconds, "tissue"):
                grid = patch_grid(slide, find_tissue(slide), self.origin.patches)
            if len(grid) == 0:
                raise InputError(
                    f"{path}: no patch with enough tissue was found. Look at the contact sheets of "
                    "'gcemil encode --patches-only'."
                )
            source = PatchSource(slide, grid, self.encoder, EncodeSettings(dtype=self.origin.dtype))
            rows, predicted, certified = np.arange(len(grid)), None, None
            mode = self.main_mode if self.mode == "prefilter" else self.mode
            if self.mode == "prefilter":
                kept, predicted = self._predict_kept(source, slide_id, seconds)
                certified = predicted is not None
                rows = kept if certified else rows
            if predicted is None:
                with _timed(seconds, "encoding"):
                    source.encode(rows)
                with _timed(seconds, "prediction"):
                    predicted = predict_new_bag(self.folds, source.bag(slide_id), mode)
        n_encoded = int(source.is_encoded.sum())
        return SlideFilePrediction(
            **vars(predicted),
            rows=rows,
            n_patches=len(grid),
            n_encoded=n_encoded,
            certified=certified,
            seconds=seconds,
            bag=source.bag(slide_id) if n_encoded == len(grid) else None,
        )

    def _predict_kept(
        self, source: PatchSource, slide_id: str, seconds: dict[str, float]
    ) -> tuple[Int[np.ndarray, "_"], SlidePrediction | None]:
        """Rows kept for the first fold, and the prediction, or None if not certified."""
        with _timed(seconds, "prefilter"):
            kept = _keep_rows_of_folds(self.prefilters, source)
        with _timed(seconds, "encoding"):
            source.encode(np.unique(np.concatenate(kept)))
        bag = source.bag(slide_id)
        answers: list[KeptAnswer] = []
        with _timed(seconds, "prediction"):
            for fold, fitted, rows in zip(self.folds, self.prefilters, kept, strict=True):
                model, deviation = _wrapped_model(fold), fitted.risk_deviation
                answer = answer_from_kept(model, bag, rows, deviation=deviation)
                if not fitted.certifies(answer.doubt):
                    return kept[0], None
                answers.append(answer)
        first = answers[0]
        model, bag = _wrapped_model(self.folds[0]), bag.take_rows(first.rows)
        evidence = slide_evidence(model, bag, first.explanation)[0]
        per_fold = [
            fold.values(answer.logits) for fold, answer in zip(self.folds, answers, strict=True)
        ]
        means = average_folds(self.folds, per_fold)
        return first.rows, SlidePrediction(slide_id, means, per_fold, evidence)


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
            f"{path} was distilled from another model than {one.checkpoint}. "
            f"Fit it again with 'gcemil prefilter {run} SLIDES'."
        )
    return fitted


def _wrapped_model(fold: FoldModel) -> GceMil:
    """The wrapper of a fold; plain hosts were refused when the run was opened."""
    model: GceMil = fold.loaded.model  # type: ignore[assignment]
    return model


def _keep_rows_of_folds(
    prefilters: Sequence[FittedPrefilter], source: PatchSource
) -> list[Int[np.ndarray, "_"]]:
    """The rows that each fold's student keeps; folds of the same view_mpp share one view."""
    views: dict[float, LowView] = {}
    kept = []
    for fitted in prefilters:
        mpp = fitted.settings.view_mpp
        if mpp not in views:
            views[mpp] = read_view(source.slide, mpp)
        crops = cut_crops(views[mpp], source.grid, fitted.settings.crop_px(source.grid.settings))
        kept.append(keep_rows(score_crops(fitted.student, crops), fitted.keep_rate))
    return kept
