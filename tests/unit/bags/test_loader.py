import threading

import numpy as np
import pytest

from builders import PATCH, grid_coords, make_cohort
from gcemil.bags import cohort as loader
from gcemil.bags.bag import find_blocks, sample_blocks, sample_patches
from gcemil.bags.cohort import SampleRule, load_bags
from gcemil.errors import StoreError


def test_all_patches_in_the_order_given(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=6)
    specs = cohort.bags[::-1]
    loaded = list(load_bags(cohort, specs, rule=SampleRule()))
    assert [spec for spec, _ in loaded] == list(specs)
    np.testing.assert_array_equal(loaded[0][1].features, cohort.read_bag(specs[0]).features)


@pytest.mark.parametrize("sampling", ["blocks", "patches"])
def test_a_sample_depends_on_seed_epoch_and_bag_alone(tmp_path, sampling):
    cohort = make_cohort(tmp_path, n_cases=4, n_patches=64)

    def rows(seed, epoch, specs):
        rule = SampleRule(limit=20, sampling=sampling, seed=seed)
        return {
            spec.bag_id: bag.features
            for spec, bag in load_bags(cohort, specs, rule=rule, epoch=epoch)
        }

    first = rows(1, 0, cohort.bags)
    again = rows(1, 0, cohort.bags[::-1])
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["s000_0"], rows(2, 0, cohort.bags)["s000_0"])
    assert not np.array_equal(first["s000_0"], rows(1, 1, cohort.bags)["s000_0"])


@pytest.mark.parametrize(("held", "waiting"), [(2**20, 3 + 1), (1, 0)])
def test_no_more_bags_and_bytes_are_held_than_allowed(tmp_path, monkeypatch, held, waiting):
    cohort = make_cohort(tmp_path, n_cases=12)
    read, original = [], loader.read_sampled_bag
    monkeypatch.setattr(loader, "HELD_BYTES", held)
    monkeypatch.setattr(
        loader, "read_sampled_bag", lambda *a, **k: read.append(1) or original(*a, **k)
    )
    bags = load_bags(cohort, cohort.bags, rule=SampleRule(), ahead=3)
    for taken, _ in enumerate(bags, start=1):
        # Those taken, waiting, and one that is being read.
        assert len(read) <= taken + waiting


def test_an_unreadable_slide_is_raised_where_the_bags_are_used(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=4)
    cohort.feature_file("s002_0").write_bytes(b"broken")
    with pytest.raises(StoreError, match=r"s002_0\.h5 cannot be read"):
        list(load_bags(cohort, cohort.bags, rule=SampleRule()))


def test_leaving_early_ends_the_reading_thread(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=20)
    bags = load_bags(cohort, cohort.bags, rule=SampleRule(), ahead=2)
    next(bags)
    bags.close()
    assert not any(thread.name.startswith("gcemil-read-ahead") for thread in threading.enumerate())


def test_samples_are_sorted_distinct_and_of_the_right_number():
    for rows in (
        sample_patches(1000, 64, np.random.default_rng(1)),
        sample_blocks(grid_coords(1000, 40), PATCH, 64, np.random.default_rng(1)),
    ):
        assert len(rows) == 64
        assert (np.diff(rows) > 0).all()


def test_whole_blocks_of_four_by_four_are_drawn_and_only_the_last_is_cut():
    coords = grid_coords(64, width=8)
    assert np.bincount(find_blocks(coords, PATCH)).tolist() == [16, 16, 16, 16]
    rows = sample_blocks(coords, PATCH, 24, np.random.default_rng(3))
    drawn = np.bincount(find_blocks(coords, PATCH)[rows], minlength=4)
    assert sorted(drawn.tolist()) == [0, 0, 8, 16]
