"""Evidence as SpatialData, and features from it. What needs the extra `wsidata` skips where it is not installed."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from builders import PATCH, make_cohort
from builders.commands import gcemil
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.foreign import wsidata
from gcemil.bags.foreign.source import ReadOptions
from gcemil.errors import StoreError, UsageError
from gcemil.records import read_evidence

needs_spatialdata = pytest.mark.skipif(
    importlib.util.find_spec("spatialdata") is None,
    reason="spatialdata is not installed: extra wsidata",
)
pytestmark = pytest.mark.filterwarnings("ignore")
"""Of the libraries below spatialdata, which are not ours to mend."""


@needs_spatialdata
def test_evidence_is_read_back_from_the_stores(classification_runs, tmp_path):
    import spatialdata

    result = gcemil("export", classification_runs.gce, "--wsidata", tmp_path / "stores")
    assert result.exit_code == 0, (result.output, result.exception)
    files = sorted((classification_runs.gce / "fold_0" / "evidence").glob("*.h5"))
    assert sorted(path.name for path in (tmp_path / "stores").iterdir()) == [
        f"{path.stem}.zarr" for path in files
    ]
    evidence = read_evidence(files[0])
    found = spatialdata.read_zarr(tmp_path / "stores" / f"{files[0].stem}.zarr")
    tiles, table = found.shapes["tiles"], found.tables["gce_tiles"]
    assert tiles["gce_evidence"].tolist() == evidence.selected.tolist()
    assert tiles.geometry.bounds[["minx", "miny"]].to_numpy().tolist() == evidence.coords.tolist()
    np.testing.assert_allclose(table.X, evidence.responses)
    np.testing.assert_allclose(table.obs["gce_gate"], evidence.gates)
    assert table.var["prompt"].tolist() == list(evidence.prompts)
    assert table.uns["gcemil"]["slide_id"] == evidence.slide_id
    size = int(Cohort.load(classification_runs.cohort).patch_size)
    assert found.attrs["tile_spec"]["tiles"]["width"] == size
    again = gcemil("export", classification_runs.gce, "--wsidata", tmp_path / "stores")
    assert isinstance(again.exception, UsageError)
    assert "exists. Give a new folder" in str(again.exception)


def write_store(path, features, coords, *tables, tile_ids=None):
    """A slide as LazySlide leaves it: tiles, and a table of features for each encoder, in another order."""
    import geopandas
    from anndata import AnnData
    from pandas import Categorical, DataFrame
    from shapely import box
    from spatialdata import SpatialData
    from spatialdata.models import ShapesModel, TableModel

    order = np.arange(len(coords))[::-1]
    x, y = coords.T
    shapes = geopandas.GeoDataFrame(
        {"tile_id": np.arange(len(coords)), "geometry": box(x, y, x + PATCH, y + PATCH)}
    )
    ids = order if tile_ids is None else tile_ids
    found = {}
    for name in tables:
        obs = DataFrame(
            {"tile_id": ids, "library_id": Categorical(["tiles"] * len(ids))}, index=ids.astype(str)
        )
        table = AnnData(X=features[order], obs=obs)
        found[name] = TableModel.parse(
            table, region="tiles", region_key="library_id", instance_key="tile_id"
        )
    SpatialData(shapes={"tiles": ShapesModel.parse(shapes)}, tables=found).write(path)


@pytest.fixture
def lazy(tmp_path):
    """A cohort of ours, and the same slides as stores."""
    cohort = make_cohort(tmp_path / "ours", n_cases=3, n_patches=8)
    (tmp_path / "stores").mkdir()
    return cohort, tmp_path / "stores"


@needs_spatialdata
def test_features_of_lazyslide_become_a_cohort(lazy, tmp_path):
    cohort, stores = lazy
    for row in cohort.slides:
        path = cohort.feature_file(row.slide_id)
        features = store.read(path, "features").astype(np.float32)
        write_store(
            stores / f"{row.slide_id}.zarr",
            features,
            store.read(path, "coords"),
            "uni_tiles",
            "gce_tiles",
        )
    result = gcemil(
        "import", stores, "--labels", cohort.folder / "slides.csv", "--out", tmp_path / "new"
    )
    assert result.exit_code == 0, (result.output, result.exception)
    found = Cohort.load(tmp_path / "new")
    assert (found.card.encoder, found.card.patch_size_level0) == ("uni", PATCH)
    for row in cohort.slides:
        old, new = cohort.feature_file(row.slide_id), found.feature_file(row.slide_id)
        np.testing.assert_allclose(
            store.read(new, "features")[::-1], store.read(old, "features").astype(np.float32)
        )
        assert store.read(new, "coords")[::-1].tolist() == store.read(old, "coords").tolist()


@needs_spatialdata
def test_stores_that_do_not_say_enough_are_refused_in_one_sentence(lazy):
    cohort, stores = lazy
    row = cohort.slides[0]
    features = np.ones((8, 4), np.float32)
    coords = store.read(cohort.feature_file(row.slide_id), "coords")
    write_store(stores / "a.zarr", features, coords, "uni_tiles", "conch_tiles")
    with pytest.raises(
        UsageError, match="has the feature tables uni_tiles, conch_tiles|conch_tiles, uni_tiles"
    ):
        wsidata.LAYOUT.read(stores)
    assert wsidata.LAYOUT.read(stores, ReadOptions(encoder="conch")).encoder == "conch"
    write_store(stores / "b.zarr", features, coords, "conch_tiles", tile_ids=np.arange(100, 108))
    with pytest.raises(
        Exception, match="b.zarr: table 'conch_tiles' has tile 100, which 'tiles' does not have"
    ):
        wsidata.LAYOUT.read(stores, ReadOptions(encoder="conch"))


def test_a_store_that_wants_to_be_unpickled_is_never_read(tmp_path, monkeypatch):
    array = tmp_path / "a.zarr" / "tables" / "uni_tiles" / "X"
    array.mkdir(parents=True)
    (array / ".zarray").write_text(
        json.dumps({"zarr_format": 2, "filters": [{"id": "pickle", "protocol": 5}]})
    )
    # The store is refused before the library sees it, so anything may stand for the library.
    monkeypatch.setitem(sys.modules, "spatialdata", json)
    with pytest.raises(StoreError, match="needs Python objects to be unpickled"):
        wsidata.LAYOUT.read(tmp_path)
