"""SpatialData stores of wsidata and LazySlide: <slide>.zarr, one per slide (extra `wsidata`).

  shapes/<tiles>            one square per patch, level-0 pixels, columns tile_id and geometry
  tables/<encoder>_<tiles>  features (n, d), obs with tile_id; the region it is about is <tiles>

Rows are joined by tile_id. A store may hold the tables of several encoders; then one has to be
named. Zarr can name a codec that unpickles; a store that does is refused before anything of it is
read.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gcemil.bags.bag import CoordRows
from gcemil.bags.foreign.source import (
    FeatureLayout,
    ForeignSlide,
    ReadOptions,
    Rows,
    as_float,
    check_features,
)
from gcemil.bags.store import check_coords
from gcemil.errors import CohortError, MissingExtraError, StoreError, UsageError, error_text
from gcemil.files import read_text
from gcemil.units import LevelZeroPx

TILES = "tiles"
EVIDENCE_TABLE = "gce"
"""The table of ours, which holds responses and no features."""
EXTRA = "wsidata"
_METADATA = (".zarray", "zarr.json", ".zmetadata")


def _find_files(source: Path, options: ReadOptions) -> tuple[Path, list[Path]]:
    if source.name.endswith(".zarr"):
        return source.parent, [source]
    return source, sorted(path for path in source.glob("*.zarr") if path.is_dir())


def _read_slide(path: Path, slide_id: str, options: ReadOptions) -> ForeignSlide:
    opened = _open_store(path)
    key = _choose_table(opened, options.encoder, path)
    region = opened.tables[key].uns.get("spatialdata_attrs", {}).get("region", TILES)
    tiles = str(region if isinstance(region, str) else next(iter(region), TILES))
    if tiles not in opened.shapes:
        raise CohortError(
            f"{path}: table '{key}' is about '{tiles}', which is not a shape of the store."
        )
    n_patches, width = (int(number) for number in opened.tables[key].shape)
    coords = _read_coords(opened, key, tiles, path)
    if len(coords) != n_patches:
        raise CohortError(
            f"{path}: {n_patches} rows in table '{key}' for {len(coords)} tiles. "
            "Extract the slide again."
        )
    size = options.patch_size
    if size is None:
        bounds = opened.shapes[tiles].geometry.bounds
        sides = np.unique(np.round([bounds.maxx - bounds.minx, bounds.maxy - bounds.miny]))
        size = LevelZeroPx(int(sides[0])) if len(sides) == 1 and sides[0] > 0 else None
    load = partial(_load_rows, path, key, tiles)
    encoder = key.removesuffix(f"_{tiles}")
    return ForeignSlide(slide_id, path, n_patches, width, size, load, encoder=encoder)


def _load_rows(path: Path, key: str, tiles: str) -> Rows:
    opened = _open_store(path)
    values = opened.tables[key].X
    features = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    check_features(features.shape, features.dtype, path)
    return as_float(features), _read_coords(opened, key, tiles, path)


def _open_store(path: Path) -> Any:
    """The tiles and tables of a store, its pictures left alone."""
    try:
        import spatialdata
    except ImportError as error:
        raise MissingExtraError("spatialdata", EXTRA) from error
    refuse_pickle(path)
    try:
        return spatialdata.read_zarr(path, selection=("shapes", "tables"))
    except Exception as error:
        # Three libraries read a store, and a damaged one makes them raise almost anything.
        raise StoreError(
            f"{path} cannot be read as SpatialData ({error_text(error)}). Write it again."
        ) from error


def refuse_pickle(path: Path) -> None:
    """Refuse a store with a codec that unpickles."""
    for one in (one for name in _METADATA for one in path.rglob(name)):
        if "pickle" in read_text(one).lower():
            raise StoreError(
                f"{one} needs Python objects to be unpickled, which is never done. It is not read."
            )


def _choose_table(opened: Any, encoder: str | None, path: Path) -> str:
    names = [str(name) for name in opened.tables if not str(name).startswith(f"{EVIDENCE_TABLE}_")]
    chosen = [
        name
        for name in names
        if encoder is None or name == encoder or name.startswith(f"{encoder}_")
    ]
    if len(chosen) != 1:
        raise UsageError(
            f"{path} has the feature tables {', '.join(names) or 'none'}; exactly one is needed. "
            "Name its encoder with --encoder."
        )
    return chosen[0]


def _read_coords(opened: Any, key: str, tiles: str, path: Path) -> CoordRows:
    """The corner of the tile of every row, joined by tile_id."""
    shapes, table = opened.shapes[tiles], opened.tables[key]
    corners = np.round(shapes.geometry.bounds[["minx", "miny"]].to_numpy(dtype=np.float64))
    if "tile_id" in shapes.columns and "tile_id" in table.obs.columns:
        rows = pd.Index(shapes["tile_id"]).get_indexer(table.obs["tile_id"])
        if (rows < 0).any():
            tile = table.obs["tile_id"].iloc[int(np.argmin(rows))]
            raise CohortError(
                f"{path}: table '{key}' has tile {tile}, which '{tiles}' does not have."
            )
        corners = corners[rows]
    elif len(corners) != len(table):
        raise CohortError(
            f"{path}: {len(table)} rows in table '{key}' for {len(corners)} tiles, "
            "and no tile_id to join by."
        )
    return check_coords(corners, path)


LAYOUT = FeatureLayout(
    tool=EXTRA,
    name="wsidata",
    title="SpatialData stores of wsidata or LazySlide",
    find_files=_find_files,
    read_slide=_read_slide,
    assumes="Features of SpatialData stores are copied; tiles are taken as level-0 pixels.",
    owns_folder=lambda folder, names: any(name.endswith(".zarr") for name in (folder.name, *names)),
)
