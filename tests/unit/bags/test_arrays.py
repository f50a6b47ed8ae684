"""Numbers that no slide, table or setting can have are refused where they are read, each with a sentence."""

import h5py
import numpy as np
import pytest

from builders import grid_coords, make_cohort
from gcemil.bags import store
from gcemil.bags.validate import validate
from gcemil.errors import CohortError, StoreError


def features(dtype="f4", n_patches=12):
    return np.random.default_rng(0).normal(size=(n_patches, 8)).astype(dtype)


def written(path, **datasets):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", libver="latest") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


def with_one(value, dtype):
    coords = grid_coords(12).astype(dtype)
    coords[7, 1] = value
    return coords


WILD_COORDS = [
    (with_one(np.inf, "f8"), "1 patches have NaN or infinite coordinates, the first is row 7"),
    (with_one(np.nan, "f4"), "1 patches have NaN or infinite coordinates, the first is row 7"),
    (with_one(-512, "i8"), "a coordinate is -512, but level-0 pixels count from the corner"),
    (with_one(1e30, "f8"), "a coordinate is 1e\\+30, farther than any slide reaches"),
    (with_one(2**64 - 1, "u8"), "a coordinate is 1.84467e\\+19, farther than any slide reaches"),
    (with_one(0.5, "f8"), "coordinates are fractions"),
    (np.zeros((12, 2), bool), "coordinates are bool, not whole numbers"),
    (np.zeros((12, 3), int), r"coordinates have shape \(12, 3\), not \(patches, 2\)"),
]


@pytest.mark.parametrize(("coords", "message"), WILD_COORDS)
def test_coordinates_that_no_patch_can_have_are_refused(tmp_path, coords, message):
    path = written(tmp_path / "a.h5", features=features(), coords=coords)
    for read in (store.read_coords, store.read_patch_layout):
        with pytest.raises(StoreError, match=rf"a\.h5: {message}"):
            read(path)


@pytest.mark.parametrize("dtype", ["i8", "u1", "?"])
def test_features_that_are_no_fractions_are_refused(tmp_path, dtype):
    cohort = make_cohort(tmp_path, n_cases=4)
    written(cohort.feature_file("s001_0"), features=features(dtype), coords=grid_coords(12))
    with pytest.raises(CohortError, match=r"s001_0\.h5: features are .*, not float16 or float32"):
        cohort.read_bag(cohort.bags[1])
    assert any(
        problem.where == "s001_0" and "not float16 or float32" in problem.what
        for problem in validate(tmp_path)
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("evidence", np.nan, "nan at patch 3"),
        ("evidence", 2, "2 at patch 3, but it is 0 or 1"),
        ("evidence", 0.5, "0.5 at patch 3, but it is 0 or 1"),
        ("overlap", np.nan, "nan at patch 3"),
        ("overlap", 1.5, "1.5 at patch 3, but it is a share from 0 to 1"),
        ("overlap", -0.1, "-0.1 at patch 3, but it is a share from 0 to 1"),
        ("region", -1, "-1 at patch 3, but it is a whole number from 0"),
        ("concept", 0.5, "0.5 at patch 3, but it is a whole number from 0"),
        ("concept", np.inf, "inf at patch 3"),
    ],
)
def test_truth_that_no_patch_can_have_is_refused(tmp_path, name, value, message):
    values = np.zeros(12)
    values[3] = value
    path = written(tmp_path / "s001_0.h5", **{name: values})
    with pytest.raises(StoreError, match=rf"s001_0\.h5: '{name}' is {message}"):
        store.read_truth(path, name, 12)
    with pytest.raises(StoreError, match=rf"'{name}' has shape \(12,\) for 11 patches"):
        store.read_truth(path, name, 11)


@pytest.mark.parametrize("value", [np.nan, 1e300])
def test_anchors_are_finite_in_single_precision(tmp_path, value):
    embeddings = np.eye(3)
    embeddings[1, 1] = value
    prompts = np.array([b"a", b"b", b"c"])
    path = written(tmp_path / "anchors.h5", embeddings=embeddings, prompts=prompts)
    with pytest.raises(
        StoreError, match="1 rows have NaN or infinite 'embeddings', the first is row 1"
    ):
        store.read_anchors(path)
