"""What a feature file says of its making: the encoder, its weights, the type, and how the patches were cut.

Files of `gcemil encode` say all of it. Simulated and imported ones do not, and nothing can be encoded to match them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gcemil.bags import store
from gcemil.bags.arrays import read_coords
from gcemil.bags.patching import PATCH_NUMBERS, is_number, stated_settings
from gcemil.errors import InputError
from gcemil.features.encoders import PatchEncoder, load_encoder
from gcemil.features.extract import FeatureType
from gcemil.features.loaders import WeightSource
from gcemil.slides.grid import PatchGrid, PatchSettings

TYPES: dict[str, FeatureType] = {"float16": "float16", "float32": "float32"}


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


def feature_origin(path: Path) -> FeatureOrigin:
    """The origin that a feature file states."""
    if not store.has(path, "features") or not store.has(path, "coords"):
        raise unknown_origin(path, "coords")
    root, coords = store.attributes(path), store.attributes(path, "coords")
    missing = [key for key in ("encoder", "encoder_fingerprint") if key not in root]
    missing += [key for key in PATCH_NUMBERS if not is_number(coords.get(key))]
    dtype = TYPES.get(store.describe(path)["features"].dtype.name)
    if missing or dtype is None:
        raise unknown_origin(path, missing[0] if missing else "a known type")
    return FeatureOrigin(
        encoder=str(root["encoder"]),
        fingerprint=str(root["encoder_fingerprint"]),
        dtype=dtype,
        patches=stated_settings(coords),
        rules=str(coords.get("rules_fingerprint")),
    )


def one_origin(paths: Iterable[Path]) -> FeatureOrigin:
    """The origin that all these files share."""
    found = {path: feature_origin(path) for path in paths}
    (first, origin), *others = found.items()
    for path, other in others:
        if other != origin:
            raise InputError(
                f"{path} was not made as {first} was: another encoder, type or kind of patch. Encode the cohort again in one go."
            )
    return origin


def encoded_grid(path: Path) -> PatchGrid:
    """The patches of a feature file, row by row; their share of tissue is not kept there and given as 1."""
    origin = feature_origin(path)
    coords = read_coords(path)
    mpp = float(store.attributes(path, "coords")["level0_mpp"])
    return PatchGrid(coords, origin.patches, mpp, np.ones(len(coords)))


def matching_encoder(
    origin: FeatureOrigin, *, source: WeightSource | None = None, device: str | None = None
) -> PatchEncoder:
    """The encoder of this origin, which must have the very weights that made the features."""
    encoder = load_encoder(origin.encoder, source=source, device=device)
    if encoder.fingerprint != origin.fingerprint:
        raise InputError(
            f"The weights of '{origin.encoder}' here are not those that made the features of the run. "
            "Give the same weights with --weights, or encode the cohort and train again."
        )
    return encoder


def unknown_origin(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} does not state '{what}': simulated or imported features have no encoder that new slides could be put through. "
        "Encode the slides with 'gcemil encode' and train on that cohort."
    )
