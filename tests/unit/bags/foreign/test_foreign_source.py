import numpy as np

from foreign_builders import grid
from gcemil.bags.bag import coordinate_step, grid_stride


def test_stride_is_the_step_of_the_grid():
    assert grid_stride(grid(9, 512)) == 512


def test_stride_ignores_the_offset_between_tissue_contours():
    both = np.concatenate([grid(8, 512), grid(8, 512, origin=(7003, 5))])
    assert grid_stride(both) == 512
    assert coordinate_step(both) == 512


def test_stride_of_micrometres_is_not_rounded_away():
    assert grid_stride(grid(8, 1).astype(np.float32) * np.float32(256.5)) == 256.5


def test_lonely_patches_have_no_stride():
    assert grid_stride(np.array([[0, 0], [7, 3]])) is None
