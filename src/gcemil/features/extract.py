"""Patches to vectors: `gcemil encode`.

features/<slide>.h5   features (n, d) · coords (n, 2) with the attributes of the patch file ·
                      attributes: encoder, encoder_fingerprint (weights and pixel preparation),
                      patches_fingerprint (the patch file), settings_fingerprint (all of these and
                      the type), precision, gcemil
encoding.csv          one line per slide: patches, what went wrong

These attributes are all it takes to encode a new slide in the same way (`read_feature_origin`).
Simulated and imported files have none, and no slide can be encoded to match them.

A feature file is written last and whole, so a slide that has one is done, and an interrupted batch
continues where it stopped. A slide that fails is a line in the result. A folder never holds
features of two encoders.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.cohort import feature_file, read_card
from gcemil.bags.fingerprint import file_fingerprint
from gcemil.bags.store import read_coords
from gcemil.config import Precision
from gcemil.errors import InputError, StoreError, UsageError
from gcemil.features.encoders import PatchEncoder, load_encoder, resolve_name
from gcemil.features.loaders import WeightSource
from gcemil.features.patching import (
    PATCHES_SUFFIX,
    BatchReport,
    OnSlide,
    PatchingRules,
    SlideOutcome,
    catch_failure,
    known_outcome,
    patch_slide,
    patches_path,
    read_patch_file,
    stated_settings,
    summary_file,
    write_outcomes,
    write_summary,
)
from gcemil.processes import run_jobs
from gcemil.slides.grid import PatchBatch, PatchGrid, PatchSettings, read_patches
from gcemil.slides.reader import SlideReader, open_slide

FeatureType = Literal["float16", "float32"]
_FEATURE_TYPES: dict[str, FeatureType] = {"float16": "float16", "float32": "float32"}
FeatureArray = Float[np.ndarray, "n d"]
_BATCHES_AHEAD = 2
"""Batches that wait for the model, beside the one that is being read."""
COLUMNS = ("slide_id", "status", "patches", "message")


@dataclass(frozen=True)
class EncodeSettings:
    """How slides are encoded; only the type shows in the features."""

    batch_size: int = 32
    workers: int = 2
    """Reader threads that feed the model."""
    dtype: FeatureType = "float16"


def encode_slides(
    slides: Mapping[str, Path],
    out: Path,
    encoder: PatchEncoder,
    settings: EncodeSettings | None = None,
    *,
    rules: PatchingRules | None = None,
    force: bool = False,
    on_slide: OnSlide = lambda done, total: None,
    cluster: str | None = None,
    source: WeightSource | None = None,
) -> BatchReport:
    """Encode every slide, patching those that have no patches in `out`.

    `force` replaces features of other settings. On a Ray `cluster` every worker loads the encoder
    for itself, from `source`.
    """
    chosen, rules = settings or EncodeSettings(), rules or PatchingRules()
    _refuse_mixed_encoders(out, encoder, replaced=set(slides) if force else set())
    batch = Batch(out, rules, chosen, force)
    if cluster is None:
        ended: Iterator[BothOutcomes] = (batch.process(encoder, *job) for job in slides.items())
    else:
        on_node = replace(batch, out=out.resolve())
        work = partial(_encode_in_worker, on_node, encoder.name, source, encoder.forced_precision)
        places = [(slide_id, path.resolve()) for slide_id, path in slides.items()]
        ended = (both for _, both in run_jobs(work, places, 1, cluster=cluster, gpus=1))
    encoded: dict[str, SlideOutcome] = {}
    patched: dict[str, SlideOutcome] = {}
    for outcome, of_patches in ended:
        encoded[outcome.slide_id] = outcome
        if of_patches is not None:
            patched[outcome.slide_id] = of_patches
        on_slide(len(encoded), len(slides))
    outcomes = tuple(encoded[slide_id] for slide_id in slides)
    notes = _summarise_patches(out, rules.patches, patched)
    try:
        write_outcomes(out / "encoding.csv", COLUMNS, outcomes, done="encoded")
    except StoreError as error:
        # The features are safe by now.
        notes = (*notes, f"{error} Run the command again.")
    return BatchReport(outcomes, notes)


BothOutcomes = tuple[SlideOutcome, SlideOutcome | None]
"""The outcome of a slide, and of its patches if they were made now."""


@dataclass(frozen=True)
class Batch:
    """How every slide of a command is encoded."""

    out: Path
    rules: PatchingRules
    settings: EncodeSettings
    force: bool

    def process(self, encoder: PatchEncoder, slide_id: str, path: Path) -> BothOutcomes:
        """Patch a slide that has no patches, and encode it."""
        patched = None
        if not patches_path(self.out, self.rules.patches, slide_id).is_file():
            patched = catch_failure(patch_slide, path, slide_id, self.out, self.rules)
            if patched.is_problem:
                return patched, patched
        return catch_failure(self._encode, path, slide_id, encoder), patched

    def _encode(self, path: Path, slide_id: str, encoder: PatchEncoder) -> SlideOutcome:
        """Write the features of one slide, unless it has them already."""
        patch_file = patches_path(self.out, self.rules.patches, slide_id)
        # Patches belong to the bytes of a slide, not to its name.
        coords_attributes = store.attributes(patch_file, "coords")
        if coords_attributes.get("slide_fingerprint") != file_fingerprint(path):
            raise InputError(
                f"{patch_file} was made from another file than {path}. "
                "Patch it again with 'gcemil encode --patches-only --force'."
            )
        patches_fingerprint = file_fingerprint(patch_file)
        fingerprint = settings_fingerprint(encoder, patches_fingerprint, self.settings.dtype)
        target = feature_file(self.out, slide_id)
        if target.is_file() and not self.force:
            if store.attributes(target).get("settings_fingerprint") != fingerprint:
                raise InputError(
                    f"{target} was made from other patches or in another type. Add --force to "
                    "replace it, or choose another --out."
                )
            n_patches = store.describe(target)["features"].shape[0]
            return SlideOutcome(slide_id, "already done", n_patches)
        grid = read_patch_file(patch_file)
        # The pixel size that placed the patches, not the one the file may state.
        with open_slide(path, mpp=grid.mpp) as slide:
            features = encode_patches(slide, grid, encoder, self.settings)
        store.write(
            target,
            {"features": features, "coords": grid.coords.astype(np.int64)},
            {
                "encoder": encoder.name,
                "encoder_fingerprint": encoder.fingerprint,
                "patches_fingerprint": patches_fingerprint,
                "settings_fingerprint": fingerprint,
                "precision": encoder.precision,
                "gcemil": __version__,
            },
            dataset_attributes={"features": {"encoder": encoder.name}, "coords": coords_attributes},
        )
        return SlideOutcome(slide_id, "encoded", len(features))


_load_in_worker = lru_cache(maxsize=1)(load_encoder)
"""The encoder, loaded once by every worker."""


def _encode_in_worker(
    batch: Batch,
    encoder: str,
    source: WeightSource | None,
    precision: Precision | None,
    slide: tuple[str, Path],
) -> BothOutcomes:
    """One slide on a node of a cluster."""
    return batch.process(_load_in_worker(encoder, source=source, precision=precision), *slide)


def _summarise_patches(
    out: Path, patches: PatchSettings, patched: dict[str, SlideOutcome]
) -> tuple[str, ...]:
    """The summary of all slides with patches, unless nothing is new; what went wrong with it."""
    path = summary_file(out, patches)
    if path.is_file() and all(outcome.is_problem for outcome in patched.values()):
        return ()
    files = (path.parent / "patches").glob(f"*{PATCHES_SUFFIX}")
    names = {file.name.removesuffix(PATCHES_SUFFIX): file for file in files}
    everyone = {name: known_outcome(file, name) for name, file in names.items()} | patched
    return write_summary(out, patches, [everyone[name] for name in sorted(everyone)])


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
    rows = np.arange(len(grid)) if rows is None else rows
    columns = []
    for part in encoder.parts:
        parts = [np.empty((0, part.spec.dim), chosen.dtype)]
        with closing(_read_batches(slide, grid, rows, part.spec.input_px, chosen)) as batches:
            for pixels in batches:
                # What overflows becomes infinite and is refused below.
                with np.errstate(over="ignore"):
                    parts.append(part(pixels).astype(chosen.dtype))
        columns.append(np.concatenate(parts))
    features: FeatureArray = np.concatenate(columns, axis=1)
    if not np.isfinite(features).all():
        raise InputError(
            f"Some features are not finite as {chosen.dtype}. Use --dtype float32, or check the "
            "encoder's weights."
        )
    return features


def _read_batches(
    slide: SlideReader,
    grid: PatchGrid,
    rows: Int[np.ndarray, "k"],
    patch_px: int,
    settings: EncodeSettings,
) -> Generator[PatchBatch, None, None]:
    """Batches of patches, each read by all threads together while the model works on the one
    before.

    OpenSlide and Pillow give up Python's lock while they decode and resample, which is why threads
    are enough.
    """
    pending: deque[list[Future[PatchBatch]]] = deque()
    # Leaving the pool waits: a slide must not be closed under a thread that still reads it.
    with ThreadPoolExecutor(settings.workers, thread_name_prefix="patch-reader") as readers:
        try:
            for start in range(0, len(rows), settings.batch_size):
                batch = rows[start : start + settings.batch_size]
                parts = np.array_split(batch, min(settings.workers, len(batch)))
                pending.append(
                    [readers.submit(read_patches, slide, grid, part, patch_px) for part in parts]
                )
                if len(pending) > _BATCHES_AHEAD:
                    yield np.concatenate([part.result() for part in pending.popleft()])
            while pending:
                yield np.concatenate([part.result() for part in pending.popleft()])
        finally:
            readers.shutdown(cancel_futures=True)


def _refuse_mixed_encoders(out: Path, encoder: PatchEncoder, *, replaced: set[str]) -> None:
    """A cohort comes from one encoder: the same name and the same weights."""
    named = read_card(out).encoder if (out / "cohort.yaml").is_file() else "unknown"
    if named != "unknown" and resolve_name(named) != encoder.name:
        raise UsageError(
            f"{out / 'cohort.yaml'} names the encoder '{named}', not '{encoder.name}'. Choose "
            "another --out."
        )
    for path in sorted((out / "features").glob("*.h5")):
        if path.stem in replaced:
            continue
        stated = store.attributes(path)
        if stated.get("encoder_fingerprint") != encoder.fingerprint:
            raise UsageError(
                f"{path} holds features of '{stated.get('encoder', 'an unknown encoder')}' with "
                f"other weights or pixels than '{encoder.name}' has here, and one cohort never "
                "mixes encoders. Choose another --out, or redo all its slides with --force."
            )


def settings_fingerprint(
    encoder: PatchEncoder, patches_fingerprint: str, dtype: FeatureType
) -> str:
    """One hash of everything that decides the features of a slide."""
    return hashlib.sha256(
        f"{encoder.fingerprint} {patches_fingerprint} {dtype}".encode()
    ).hexdigest()


@dataclass(frozen=True)
class FeatureOrigin:
    """All it takes to make features of a new slide that match those of a cohort."""

    encoder: str
    fingerprint: str
    """Fingerprint of the encoder's weights and of its preprocessing."""
    dtype: FeatureType
    patches: PatchSettings
    rules: str = field(compare=False)
    """Hash of tissue rules, patch settings and, if there is one, the slide's mask."""


def read_feature_origin(path: Path) -> FeatureOrigin:
    """The origin that a feature file states."""
    if not store.has(path, "features") or not store.has(path, "coords"):
        raise _unknown_origin_error(path, "coords")
    root, coords = store.attributes(path), store.attributes(path, "coords")
    for key in ("encoder", "encoder_fingerprint"):
        if key not in root:
            raise _unknown_origin_error(path, key)
    patches = stated_settings(coords, partial(_unknown_origin_error, path))
    dtype = _FEATURE_TYPES.get(store.describe(path)["features"].dtype.name)
    if dtype is None:
        raise _unknown_origin_error(path, "a known type")
    return FeatureOrigin(
        encoder=str(root["encoder"]),
        fingerprint=str(root["encoder_fingerprint"]),
        dtype=dtype,
        patches=patches,
        rules=str(coords.get("rules_fingerprint")),
    )


def require_one_origin(paths: Iterable[Path]) -> FeatureOrigin:
    """The origin that all these files share."""
    first, *others = paths
    origin = read_feature_origin(first)
    for path in others:
        if read_feature_origin(path) != origin:
            raise InputError(
                f"{path} was not made as {first} was: another encoder, type or kind of patch. "
                "Encode the cohort again in one go."
            )
    return origin


def read_encoded_grid(path: Path) -> PatchGrid:
    """The patches of a feature file; the share of tissue is not stored and given as 1."""
    origin = read_feature_origin(path)
    coords = read_coords(path)
    mpp = float(store.attributes(path, "coords")["level0_mpp"])
    return PatchGrid(coords, origin.patches, mpp, np.ones(len(coords)))


def load_matching_encoder(
    origin: FeatureOrigin,
    *,
    source: WeightSource | None = None,
    device: str | None = None,
    precision: Precision | None = None,
) -> PatchEncoder:
    """The encoder of this origin, which must have the very weights that made the features."""
    encoder = load_encoder(origin.encoder, source=source, device=device, precision=precision)
    if encoder.fingerprint != origin.fingerprint:
        raise InputError(
            f"The weights of '{origin.encoder}' here are not those that made the features of the "
            "run. Give the same weights with --weights, or encode the cohort and train again."
        )
    return encoder


def _unknown_origin_error(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} does not state '{what}': simulated or imported features have no encoder that new "
        "slides could be put through. Encode the slides with 'gcemil encode' and train on that "
        "cohort."
    )
