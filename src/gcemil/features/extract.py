"""Patches in, vectors out: `gcemil encode`.

features/<slide>.h5   features (n, d) · coords (n, 2) with the attributes of the patch file · attributes of the file:
                      encoder, encoder_fingerprint (weights and pixel preparation), patches_fingerprint (the patch file),
                      settings_fingerprint (all of these and the type), precision, gcemil
encoding.csv          one line per slide: patches, what went wrong

Files of `gcemil encode` say all it takes to encode a new slide in the same way, which `read_feature_origin` reads back. Simulated and
imported ones do not, and nothing can be encoded to match them.

A feature file is written last and whole, so a slide that has one is done, and an interrupted batch goes on where it stopped. A slide
that fails is a line in the result. Features of two encoders never meet in one folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.arrays import read_coords
from gcemil.bags.cohort import feature_file, read_card
from gcemil.bags.fingerprint import file_fingerprint
from gcemil.errors import InputError, StoreError, UsageError
from gcemil.features.encoders import PatchEncoder, load_encoder
from gcemil.features.loaders import WeightSource
from gcemil.features.patching import (
    PATCH_NUMBERS,
    BatchReport,
    SlideOutcome,
    catch_failure,
    is_number,
    patches_path,
    stated_settings,
    write_outcomes,
)
from gcemil.features.reading import SlideEnd, SlideJob, read_ahead, read_batches
from gcemil.slides.grid import PatchGrid, PatchSettings
from gcemil.slides.reader import SlideReader

FeatureType = Literal["float16", "float32"]
FeatureArray = Float[np.ndarray, "n d"]
BatchFeatures = Float[np.ndarray, "_ d"]
"""What the model says of one batch; the last one of a slide is shorter."""
_FEATURE_TYPES: dict[str, FeatureType] = {"float16": "float16", "float32": "float32"}
COLUMNS = ("slide_id", "status", "patches", "message")


@dataclass(frozen=True)
class EncodeSettings:
    """How slides are encoded; only the type shows in the features."""

    batch_size: int = 32
    workers: int = 2
    """Reader threads that feed the model."""
    dtype: FeatureType = "float16"

    def __post_init__(self) -> None:
        if min(self.batch_size, self.workers) < 1 or self.dtype not in ("float16", "float32"):
            raise UsageError(
                f"Encoding needs a batch and a reader thread at least, and float16 or float32 out, "
                f"got {self.batch_size}, {self.workers} and {self.dtype}."
            )


def encode_slides(
    slides: Mapping[str, Path],
    out: Path,
    encoder: PatchEncoder,
    settings: EncodeSettings | None = None,
    *,
    patches: PatchSettings | None = None,
    force: bool = False,
    on_slide: Callable[[int, int], None] = lambda done, total: None,
) -> BatchReport:
    """Encode every slide whose patches lie in `out`; `force` does again what was done with other settings."""
    chosen, placed = settings or EncodeSettings(), patches or PatchSettings()
    _refuse_mixed_encoders(out, encoder, replaced=set(slides) if force else set())
    outcomes: dict[str, SlideOutcome] = {}
    jobs: list[SlideJob] = []
    for slide_id, path in slides.items():
        job = SlideJob(slide_id, path, patches_path(out, placed, slide_id))
        known = catch_failure(slide_id, path, partial(_known_outcome, job, out, encoder, chosen, force=force))
        if known is None:
            jobs.append(job)
        else:
            outcomes[slide_id] = known
    on_slide(len(outcomes), len(slides))
    for outcome in _encode_jobs(jobs, out, encoder, chosen):
        outcomes[outcome.slide_id] = outcome
        on_slide(len(outcomes), len(slides))
    ordered = tuple(outcomes[slide_id] for slide_id in slides)
    try:
        write_outcomes(out / "encoding.csv", COLUMNS, ordered, done="encoded")
    except StoreError as error:
        # The features are safe by now.
        return BatchReport(ordered, (f"{error} Run the command again.",))
    return BatchReport(ordered)


def encode_patches(
    slide: SlideReader,
    grid: PatchGrid,
    encoder: PatchEncoder,
    settings: EncodeSettings | None = None,
    *,
    rows: Int[np.ndarray, "k"] | None = None,
) -> FeatureArray:
    """Features of an open slide in memory, of all patches or of these rows of the grid."""
    chosen = settings or EncodeSettings()
    size, side, workers = chosen.batch_size, encoder.spec.input_px, chosen.workers
    with ThreadPoolExecutor(workers) as readers:
        batches = read_batches(
            slide, grid, readers, batch_size=size, patch_px=side, workers=workers, rows=rows
        )
        with closing(batches):
            return stack_batches([encoder(pixels) for pixels in batches], encoder.spec.dim, chosen.dtype)


def _refuse_mixed_encoders(out: Path, encoder: PatchEncoder, *, replaced: set[str]) -> None:
    """A cohort comes from one encoder: the same name and the same weights."""
    if (out / "cohort.yaml").is_file() and (named := read_card(out).encoder) not in (encoder.name, "unknown"):
        raise UsageError(
            f"{out / 'cohort.yaml'} names the encoder '{named}', not '{encoder.name}'. Choose another --out."
        )
    for path in sorted((out / "features").glob("*.h5")):
        if path.stem in replaced:
            continue
        found = store.attributes(path)
        if found.get("encoder_fingerprint") != encoder.fingerprint:
            raise UsageError(
                f"{path} holds features of '{found.get('encoder', 'an unknown encoder')}' with other weights or pixels than "
                f"'{encoder.name}' has here, and one cohort never mixes encoders. Choose another --out, or redo all its slides with --force."
            )


def settings_fingerprint(encoder: PatchEncoder, patches_fingerprint: str, dtype: FeatureType) -> str:
    """One hash of everything that decides the features of a slide."""
    return hashlib.sha256(f"{encoder.fingerprint} {patches_fingerprint} {dtype}".encode()).hexdigest()


def stack_batches(parts: list[BatchFeatures], dim: int, dtype: FeatureType) -> FeatureArray:
    """The batches of one slide as one array, which must be finite in the type asked for."""
    if not parts:
        return np.empty((0, dim), dtype)
    features = np.concatenate([cast_features(part, dtype) for part in parts])
    if not np.isfinite(features).all():
        raise InputError(
            f"Some features are not finite as {dtype}. Use --dtype float32, or check the encoder's weights."
        )
    return features


def cast_features(features: FeatureArray, dtype: FeatureType) -> FeatureArray:
    """The features in this type; what overflows becomes infinite, which `stack_batches` refuses."""
    with np.errstate(over="ignore"):
        return features.astype(dtype)


def _known_outcome(
    job: SlideJob, out: Path, encoder: PatchEncoder, settings: EncodeSettings, *, force: bool
) -> SlideOutcome | None:
    """What can be said without reading pixels; None when the slide is to be encoded."""
    if not job.patches.is_file():
        why = (
            f"{job.patches} does not exist. Run 'gcemil patch {job.path} --out {out}' and read what it says."
        )
        return SlideOutcome(job.slide_id, "no patches", message=why)
    # Patches belong to the bytes of a slide, not to its name.
    if store.attributes(job.patches, "coords").get("slide_fingerprint") != file_fingerprint(job.path):
        raise InputError(
            f"{job.patches} was made from another file than {job.path}. Patch it again with 'gcemil patch --force'."
        )
    target = feature_file(out, job.slide_id)
    if force or not target.is_file():
        return None
    wanted = settings_fingerprint(encoder, file_fingerprint(job.patches), settings.dtype)
    if store.attributes(target).get("settings_fingerprint") != wanted:
        raise InputError(
            f"{target} was made from other patches or in another type. Add --force to replace it, or choose another --out."
        )
    return SlideOutcome(job.slide_id, "already done", store.describe(target)["features"].shape[0])


def _encode_jobs(
    jobs: list[SlideJob], out: Path, encoder: PatchEncoder, settings: EncodeSettings
) -> Iterator[SlideOutcome]:
    """The outcomes of these slides, one after the other."""
    stream = read_ahead(
        jobs, batch_size=settings.batch_size, patch_px=encoder.spec.input_px, workers=settings.workers
    )
    parts: list[BatchFeatures] = []
    with closing(stream):
        for item in stream:
            if not isinstance(item, SlideEnd):
                try:
                    parts.append(cast_features(encoder(item), settings.dtype))
                except torch.OutOfMemoryError as error:
                    raise UsageError(
                        f"{settings.batch_size} patches at once do not fit the memory of {encoder.device}. Use a smaller --batch-size."
                    ) from error
                continue
            whole, parts = parts, []
            work = partial(_write_features, item, whole, out, encoder, settings)
            yield catch_failure(item.job.slide_id, item.job.path, work)


def _write_features(
    end: SlideEnd,
    parts: list[BatchFeatures],
    out: Path,
    encoder: PatchEncoder,
    settings: EncodeSettings,
) -> SlideOutcome:
    if end.error is not None or end.grid is None:
        raise end.error or InputError(f"{end.job.patches} holds no grid.")
    features = stack_batches(parts, encoder.spec.dim, settings.dtype)
    patches_fingerprint = file_fingerprint(end.job.patches)
    attributes: dict[str, str | int | float | bool] = {
        "encoder": encoder.name,
        "encoder_fingerprint": encoder.fingerprint,
        "patches_fingerprint": patches_fingerprint,
        "settings_fingerprint": settings_fingerprint(encoder, patches_fingerprint, settings.dtype),
        "precision": encoder.precision,
        "gcemil": __version__,
    }
    store.write(
        feature_file(out, end.job.slide_id),
        {"features": features, "coords": end.grid.coords.astype(np.int64)},
        attributes,
        dataset_attributes={
            "features": {"encoder": encoder.name},
            "coords": store.attributes(end.job.patches, "coords"),
        },
    )
    return SlideOutcome(end.job.slide_id, "encoded", len(features))


# What a feature file says of its making


@dataclass(frozen=True)
class FeatureOrigin:
    """All it takes to make features of a new slide that match those of a cohort."""

    encoder: str
    fingerprint: str
    """Of the encoder's weights and of how it takes pixels."""
    dtype: FeatureType
    patches: PatchSettings
    rules: str = field(compare=False)
    """Hash of the tissue rules and patch settings of `gcemil patch`; a mask of a slide's own is in it."""


def read_feature_origin(path: Path) -> FeatureOrigin:
    """The origin that a feature file states."""
    if not store.has(path, "features") or not store.has(path, "coords"):
        raise _unknown_origin_error(path, "coords")
    root, coords = store.attributes(path), store.attributes(path, "coords")
    missing = [key for key in ("encoder", "encoder_fingerprint") if key not in root]
    missing += [key for key in PATCH_NUMBERS if not is_number(coords.get(key))]
    dtype = _FEATURE_TYPES.get(store.describe(path)["features"].dtype.name)
    if missing or dtype is None:
        raise _unknown_origin_error(path, missing[0] if missing else "a known type")
    return FeatureOrigin(
        encoder=str(root["encoder"]),
        fingerprint=str(root["encoder_fingerprint"]),
        dtype=dtype,
        patches=stated_settings(coords),
        rules=str(coords.get("rules_fingerprint")),
    )


def require_one_origin(paths: Iterable[Path]) -> FeatureOrigin:
    """The origin that all these files share."""
    first, *others = paths
    origin = read_feature_origin(first)
    for path in others:
        if read_feature_origin(path) != origin:
            raise InputError(
                f"{path} was not made as {first} was: another encoder, type or kind of patch. Encode the cohort again in one go."
            )
    return origin


def read_encoded_grid(path: Path) -> PatchGrid:
    """The patches of a feature file, row by row; their share of tissue is not kept there and given as 1."""
    origin = read_feature_origin(path)
    coords = read_coords(path)
    mpp = float(store.attributes(path, "coords")["level0_mpp"])
    return PatchGrid(coords, origin.patches, mpp, np.ones(len(coords)))


def load_matching_encoder(origin: FeatureOrigin, *, source: WeightSource | None = None) -> PatchEncoder:
    """The encoder of this origin, which must have the very weights that made the features."""
    encoder = load_encoder(origin.encoder, source=source)
    if encoder.fingerprint != origin.fingerprint:
        raise InputError(
            f"The weights of '{origin.encoder}' here are not those that made the features of the run. "
            "Give the same weights with --weights, or encode the cohort and train again."
        )
    return encoder


def _unknown_origin_error(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} does not state '{what}': simulated or imported features have no encoder that new slides could be put through. "
        "Encode the slides with 'gcemil encode' and train on that cohort."
    )
