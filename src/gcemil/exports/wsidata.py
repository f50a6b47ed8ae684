"""The evidence of a run's test slides as SpatialData: <slide>.zarr (extra `wsidata`).

  shapes/tiles       one square per patch in level-0 pixels of the whole file: tile_id, x, y,
                     tissue_id, gce_evidence, gce_gate, gce_attention, gce_score, gce_gain
  tables/gce_tiles   responses (n, anchors) of every patch; the same columns in obs; slide, fold,
                     verdict and hashes in uns
  attrs              tile_spec: how the tiles lie

Read from RUN/fold_<k>/evidence: no network is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gcemil.bags.bag import grid_stride
from gcemil.bags.cohort import Cohort
from gcemil.bags.foreign.wsidata import EVIDENCE_TABLE, EXTRA, TILES
from gcemil.errors import MissingExtraError, RunError, UsageError
from gcemil.files import atomic_folder
from gcemil.records import SlideEvidence, read_evidence
from gcemil.runs.folder import Run, RunFold


def write_wsidata(run: Path, folder: Path, *, fold: int | None = None) -> list[Path]:
    """A store for every test slide of the folds that are trained, or of one."""
    try:
        import spatialdata  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("spatialdata", EXTRA) from error
    _, cohort = Run(run).open_cohort()
    folds = Run(run).trained_folds() if fold is None else [Run(run).fold(fold)]
    todo = {
        path.stem: (own, path)
        for own in folds
        for path in sorted((own.path / "evidence").glob("*.h5"))
    }
    if not todo:
        raise RunError(
            f"{run} has no evidence files. A plain host has none; make others with 'gcemil train "
            f"{run} --again'."
        )
    targets = {slide_id: folder / f"{slide_id}.zarr" for slide_id in todo}
    if there := [path for path in targets.values() if path.exists()]:
        raise UsageError(f"{there[0]} exists. Give a new folder, or remove it.")
    for slide_id, (own, path) in todo.items():
        evidence = read_evidence(path)
        content = describe_slide(cohort, own, evidence)
        with atomic_folder(targets[slide_id]) as temporary:
            # The library makes the folder itself.
            temporary.rmdir()
            content.write(temporary)
    return list(targets.values())


def describe_slide(cohort: Cohort, fold: RunFold, evidence: SlideEvidence) -> Any:
    """The evidence of a slide as a SpatialData object."""
    import geopandas
    from anndata import AnnData
    from pandas import Categorical, DataFrame
    from shapely import box
    from spatialdata import SpatialData
    from spatialdata.models import ShapesModel, TableModel

    coords, size = evidence.coords, None
    if coords is not None:
        size = cohort.slide_patch_size(evidence.slide_id, coords)
    if coords is None or size is None:
        raise UsageError(
            f"Slide '{evidence.slide_id}' has no coordinates or no patch size, so its patches "
            "cannot be tiles."
        )
    columns = {
        "gce_evidence": evidence.selected,
        "gce_gate": evidence.gates,
        "gce_attention": evidence.scores,
        "gce_score": evidence.evidence_scores,
        "gce_gain": evidence.marginal_gain,
    }
    tile_id = np.arange(len(coords))
    left, top = coords.astype(np.int64).T
    tiles = geopandas.GeoDataFrame(
        {
            "tile_id": tile_id,
            "x": left,
            "y": top,
            "tissue_id": np.zeros(len(coords), dtype=np.int64),
            **columns,
            "geometry": box(left, top, left + size, top + size),
        }
    )
    library = Categorical([TILES] * len(coords))
    obs = DataFrame(
        {"tile_id": tile_id, "library_id": library, **columns}, index=tile_id.astype(str)
    )
    names = [f"{number}: {prompt}" for number, prompt in enumerate(evidence.prompts)]
    facts = {
        "slide_id": evidence.slide_id,
        "fold": fold.number,
        "verdict": evidence.verdict,
        "stop_reason": evidence.stop_reason,
        **{f"{name}_hash": value for name, value in evidence.hashes.items()},
    }
    table = AnnData(
        X=evidence.responses.astype(np.float32),
        obs=obs,
        var=DataFrame({"prompt": list(evidence.prompts)}, index=names),
        uns={"gcemil": facts},
    )
    parsed = TableModel.parse(table, region=TILES, region_key="library_id", instance_key="tile_id")
    step = round(grid_stride(coords) or size)
    slide = SpatialData(
        shapes={TILES: ShapesModel.parse(tiles)}, tables={f"{EVIDENCE_TABLE}_{TILES}": parsed}
    )
    # Tiles cut at level 0, as far apart as most of them lie.
    slide.attrs["tile_spec"] = {
        TILES: {
            **dict.fromkeys(("height", "width"), size),
            **dict.fromkeys(("stride_height", "stride_width"), step),
            **dict.fromkeys(("ops_level", "base_level"), 0),
            **dict.fromkeys(("ops_downsample", "base_downsample"), 1.0),
            **dict.fromkeys(("mpp", "tissue_name")),
        }
    }
    return slide
