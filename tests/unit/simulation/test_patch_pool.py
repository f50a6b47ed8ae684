"""Labelled patches: how they are read, held out and dealt."""

import numpy as np
import pytest

from builders.pools import CLASSES, make_pool
from gcemil.bags import store
from gcemil.errors import InputError
from gcemil.simulation.patch_pool import UNUSED, deal_patches, hold_out, read_pool


def test_a_pool_reads_back_as_it_was_written(tmp_path):
    pool = make_pool(5, patients=3)
    pool.write(tmp_path / "pool.h5")
    found = read_pool(tmp_path / "pool.h5")
    assert np.array_equal(found.features, pool.features)
    assert found.labels.tolist() == pool.labels.tolist()
    assert found.patients.tolist() == pool.patients.tolist()
    assert found.encoder == "test-encoder"


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"labels": np.array([b"a"])}, "has no 'features'"),
        ({"features": np.ones((2, 3), np.float32)}, "has no 'labels'"),
        (
            {"features": np.ones((2, 3), np.int32), "labels": np.array([b"a", b"b"])},
            "not float16 or float32",
        ),
        (
            {"features": np.ones((2, 3), np.float32), "labels": np.array([b"a"])},
            "1 labels for 2 patches",
        ),
        (
            {"features": np.full((1, 3), np.nan, np.float32), "labels": np.array([b"a"])},
            "NaN or infinite",
        ),
        (
            {"features": np.ones((0, 3), np.float32), "labels": np.zeros(0, np.int64)},
            "holds no patch",
        ),
    ],
)
def test_a_file_that_is_no_pool_is_refused(tmp_path, datasets, message):
    store.write(tmp_path / "p.h5", datasets)
    with pytest.raises(InputError, match=message):
        read_pool(tmp_path / "p.h5")


def test_every_part_gets_its_share_of_every_class():
    pool = make_pool(100)
    part = deal_patches(
        pool, CLASSES[:3], np.zeros(0, int), (0.5, 0.2, 0.3), np.random.default_rng(0)
    )
    for name in CLASSES[:3]:
        assert np.bincount(part[pool.labels == name]).tolist() == [50, 20, 30]
    assert (part[pool.labels == "adenoma"] == UNUSED).all()


def test_held_out_patches_are_dealt_to_nobody():
    pool = make_pool(20)
    examples, more = hold_out(pool, CLASSES, 3, 10, np.random.default_rng(0))
    assert {name: int((pool.labels[examples] == name).sum()) for name in CLASSES} == dict.fromkeys(
        CLASSES, 3
    )
    assert len(more) == 10
    assert not set(examples) & set(more)
    held = np.concatenate([examples, more])
    part = deal_patches(pool, CLASSES, held, (1, 1), np.random.default_rng(0))
    assert (part[held] == UNUSED).all()
    assert (np.delete(part, held) != UNUSED).all()


def test_a_patient_stands_in_one_part_only_and_parts_are_even():
    pool = make_pool(120, patients=24)
    part = deal_patches(pool, CLASSES, np.zeros(0, int), (1, 1, 1), np.random.default_rng(0))
    for name in np.unique(pool.patients):
        assert len(np.unique(part[pool.patients == name])) == 1
    for name in CLASSES:
        assert np.bincount(part[pool.labels == name]).tolist() == [40, 40, 40]


def test_patients_of_held_out_patches_enter_no_part():
    pool = make_pool(120, patients=24)
    examples, more = hold_out(pool, CLASSES, 4, 12, np.random.default_rng(0))
    held = np.concatenate([examples, more])
    part = deal_patches(pool, CLASSES, held, (1, 1, 1), np.random.default_rng(0))
    dealt = set(pool.patients[part != UNUSED])
    assert dealt
    assert not dealt & set(pool.patients[held])


def test_parts_that_cannot_all_have_a_class_are_refused():
    with pytest.raises(
        InputError, match="class 'normal' has 2 patches left to deal, too few for 3 parts"
    ):
        deal_patches(make_pool(2), CLASSES, np.zeros(0, int), (1, 1, 1), np.random.default_rng(0))
    with pytest.raises(InputError, match="of 2 patients left to deal, too few for 3 parts"):
        deal_patches(
            make_pool(9, patients=2), CLASSES, np.zeros(0, int), (1, 1, 1), np.random.default_rng(0)
        )
