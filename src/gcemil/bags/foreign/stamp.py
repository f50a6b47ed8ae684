"""STAMP: <out>/<extractor>[-<hash>]/<path>.h5 with `feats` and `coords` in micrometres (float32).

level-0 pixel = micrometres / mpp of the slide, and that mpp stands nowhere in the file: it has to
be given. Files older than the `tile_size_um` attribute have `tile_size`; the oldest have neither,
and a stride near 224 there means pixels of a 224 px patch that spans 256 micrometres.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gcemil.bags import store
from gcemil.bags.bag import grid_stride
from gcemil.bags.foreign.source import (
    UNKNOWN_ENCODER,
    FeatureLayout,
    ForeignSlide,
    Mpp,
    ReadOptions,
    Rows,
    as_float,
    check_feature_shape,
    plain_id,
    squeeze_bag,
)
from gcemil.bags.store import check_coords, stated_number
from gcemil.bags.tables import has_columns, read_frame
from gcemil.errors import CohortError, StoreError, UsageError
from gcemil.units import LevelZeroPx, Microns

MicronRows = Float[np.ndarray, "n 2"]

_OLDEST_STRIDE_PX = 224
_OLDEST_TILE_UM = 256.0


def parse_mpp(text: str) -> Mpp:
    """Micrometres per pixel as typed: a number, or the path of a table of slide_id and mpp."""
    try:
        return float(text)
    except ValueError:
        path = Path(text)
        table = read_frame(path)
    if not has_columns(table, "slide_id", "mpp"):
        raise UsageError(f"{path} needs the columns slide_id and mpp; it has: {', '.join(table)}.")
    try:
        return dict(zip(table["slide_id"].map(plain_id), table["mpp"].astype(float), strict=True))
    except ValueError as error:
        raise UsageError(f"{path}: every mpp must be a number ({error}).") from error


def _find_tile_size(
    attributes: dict[str, Any], coords: MicronRows, path: Path
) -> tuple[Microns, float]:
    """Edge of a patch in micrometres, and the factor from stored coordinates to micrometres."""
    tile_um, tile = (stated_number(attributes, name) for name in ("tile_size_um", "tile_size"))
    if tile_um is not None:
        return Microns(tile_um), 1.0
    if tile is not None and attributes.get("unit") == "um":
        return Microns(tile), 1.0
    stride = tile or grid_stride(coords)
    if stride is not None and round(stride) == _OLDEST_STRIDE_PX:
        return Microns(_OLDEST_TILE_UM), _OLDEST_TILE_UM / _OLDEST_STRIDE_PX
    raise CohortError(
        f"{path} says no tile size and its stride is {stride}, so its coordinates have no unit. "
        "Preprocess it with a newer STAMP."
    )


def _read_slide(path: Path, slide_id: str, options: ReadOptions) -> ForeignSlide:
    attributes, layouts = store.attributes(path), store.describe(path)
    if (kind := attributes.get("feat_type", "tile")) != "tile":
        raise CohortError(
            f"{path} holds one vector per {kind}, not patches. Point at the tile features."
        )
    encoder = str(attributes.get("extractor", UNKNOWN_ENCODER))
    # Files without coordinates call their features patch_embeddings.
    key = "feats" if "feats" in layouts else "patch_embeddings"
    n_patches, dim = check_feature_shape(path, layouts, key)
    if "coords" not in layouts or n_patches == 0:
        load = partial(_load_rows, path, key, None)
        placed = "coords" in layouts
        return ForeignSlide(
            slide_id, path, n_patches, dim, None, load, has_coords=placed, encoder=encoder
        )
    tile_um, factor = _find_tile_size(attributes, _read_microns(path), path)
    slide_mpp = options.mpp.get(slide_id) if isinstance(options.mpp, Mapping) else options.mpp
    if slide_mpp is None or not 0 < slide_mpp < math.inf:
        raise UsageError(
            f"{path}: STAMP coordinates are micrometres and the file does not say the slide's "
            "micrometres per pixel. Give it with --mpp (0.25 for most 40x scans, 0.5 for 20x), or "
            "a "
            f"table of slide_id and mpp; got {slide_mpp} for '{slide_id}'."
        )
    size = options.patch_size or LevelZeroPx(max(1, round(tile_um / slide_mpp)))
    load = partial(_load_rows, path, key, factor / slide_mpp)
    given = f"{slide_mpp} for every slide"
    if isinstance(options.mpp, Mapping):
        given = "given per slide"
    notes = (
        f"STAMP coordinates are micrometres; divided by mpp ({given}) and rounded to level-0 "
        "pixels.",
        f"Patches span {tile_um:g} micrometres.",
    )
    return ForeignSlide(slide_id, path, n_patches, dim, size, load, notes=notes, encoder=encoder)


def _load_rows(path: Path, key: str, scale: float | None) -> Rows:
    features = as_float(squeeze_bag(store.read(path, key)))
    if scale is None:
        return features, None
    return features, check_coords(np.rint(_read_microns(path) * scale), path)


def _read_microns(path: Path) -> MicronRows:
    coords = squeeze_bag(store.read(path, "coords")).astype(np.float64)
    if coords.ndim != 2 or not np.isfinite(coords).all():
        raise StoreError(
            f"{path}: coordinates of shape {coords.shape}, some of them perhaps NaN or infinite, "
            "are not places on a slide. Preprocess the slide again."
        )
    return coords


LAYOUT = FeatureLayout(
    tool="stamp",
    name="STAMP",
    title="STAMP features",
    # STAMP keeps the folders of the slides below that of the extractor.
    find_files=lambda source, options: (source, sorted(source.rglob("*.h5"))),
    read_slide=_read_slide,
    assumes="STAMP features are converted (feats → features), so they are copied, as stored.",
    owns_file=lambda datasets, attributes: "feats" in datasets or "patch_embeddings" in datasets,
    needs=" --mpp MPP",
)
