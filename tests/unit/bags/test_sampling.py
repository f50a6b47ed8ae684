import numpy as np

from builders import PATCH, grid_coords
from gcemil.bags.loader import find_blocks, sample_blocks, sample_patches


def test_a_small_bag_is_taken_whole():
    assert sample_patches(5, 8, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]
    assert sample_blocks(grid_coords(5), PATCH, 8, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]


def test_samples_are_sorted_distinct_and_of_the_right_number():
    for rows in (
        sample_patches(1000, 64, np.random.default_rng(1)),
        sample_blocks(grid_coords(1000, 40), PATCH, 64, np.random.default_rng(1)),
    ):
        assert len(rows) == 64
        assert (np.diff(rows) > 0).all()


def test_every_patch_is_equally_likely():
    generator = np.random.default_rng(2)
    counts = np.zeros(40)
    for _ in range(4000):
        counts[sample_patches(40, 10, generator)] += 1
    assert abs(counts / 4000 - 0.25).max() < 0.04


def test_blocks_are_four_by_four():
    coords = grid_coords(64, width=8)
    assert np.bincount(find_blocks(coords, PATCH)).tolist() == [16, 16, 16, 16]


def test_whole_blocks_are_drawn_and_only_the_last_is_cut():
    coords = grid_coords(64, width=8)
    rows = sample_blocks(coords, PATCH, 24, np.random.default_rng(3))
    assert sorted(np.bincount(find_blocks(coords, PATCH)[rows], minlength=4).tolist()) == [0, 0, 8, 16]


def test_the_generator_alone_decides():
    coords = grid_coords(400, 20)
    first = sample_blocks(coords, PATCH, 50, np.random.default_rng(7))
    assert first.tolist() == sample_blocks(coords, PATCH, 50, np.random.default_rng(7)).tolist()
    assert first.tolist() != sample_blocks(coords, PATCH, 50, np.random.default_rng(8)).tolist()
