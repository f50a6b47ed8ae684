import numpy as np
import pytest

from gcemil.slides.grid import patch_positions
from gcemil.slides.reader import best_level, magnification


@pytest.mark.parametrize(
    ("mpp", "power"), [(0.25, 40), (0.2527, 40), (0.5, 20), (0.499, 20), (1.0, 10), (20.0, 1)]
)
def test_magnification_is_the_nominal_power_of_a_pixel_size(mpp, power):
    assert magnification(mpp) == power


def test_positions_by_hand():
    assert patch_positions(0, 1024, side=128.0, step=128.0, mpp=0.5).tolist() == [0, 256, 512, 768]
    assert patch_positions(10, 1023, side=128.0, step=128.0, mpp=0.5).tolist() == [10, 266, 522]
    assert patch_positions(0, 600, side=128.0, step=64.0, mpp=0.5).tolist() == [0, 128, 256]


def test_rounding_errors_do_not_add_up():
    found = patch_positions(0, 300_000, side=128.0, step=128.0, mpp=0.2527)
    exact = np.arange(len(found)) * 128 / 0.2527
    assert len(found) == 592
    assert np.abs(found - exact).max() <= 0.5
    # A grid of the rounded step would be half a patch off by now.
    assert abs(591 * round(128 / 0.2527) - exact[-1]) > 250


def test_the_level_read_is_the_coarsest_that_has_the_pixels():
    downsamples = (1.0, 4.0004, 16.0)
    assert best_level(downsamples, 1.0) == 0
    assert best_level(downsamples, 3.9) == 0
    assert best_level(downsamples, 4.0) == 1
    assert best_level(downsamples, 100.0) == 2
    assert best_level(downsamples, 0.5) == 0
